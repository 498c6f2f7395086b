"""Implementations on torch's own kernels; the plugin offers what it finds here."""

from __future__ import annotations
