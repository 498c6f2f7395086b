"""Kernels in Triton, one module a family of operators; the plugin offers what it finds here."""

from __future__ import annotations
