"""Implementations on torch's own kernels; vendors' plugins offer what they find here."""

from __future__ import annotations
