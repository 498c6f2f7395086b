"""Which suite this is."""

from __future__ import annotations

from typing import Final

SUITE: Final = "1.0"
"""Version of families, profiles and must-pass lists; it is part of every claim."""

RELEASED: Final[frozenset[str]] = frozenset()
"""Versions whose lists are frozen: what changes afterwards is a new version."""
