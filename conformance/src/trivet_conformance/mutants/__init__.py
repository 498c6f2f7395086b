"""Variants on which the kit tests itself: wrong providers, and legal ones that differ.

This is the only place of the kit that knows operators by name. A wrong variant names the family
that must kill it; a legal one is accepted by all.
"""

from __future__ import annotations

from typing import Final

from trivet_conformance.mutants import (
    legal_attention,
    legal_forms,
    legal_numbers,
    wrong_alias,
    wrong_attention,
    wrong_layout,
    wrong_meta,
    wrong_special,
    wrong_value,
)
from trivet_conformance.mutants.variant import Variant

_MODULES: Final = (
    wrong_value,
    wrong_attention,
    wrong_meta,
    wrong_alias,
    wrong_layout,
    wrong_special,
    legal_numbers,
    legal_attention,
    legal_forms,
)

VARIANTS: Final[tuple[Variant, ...]] = tuple(v for m in _MODULES for v in m.VARIANTS)
"""Every variant, mutants first."""

__all__ = ["VARIANTS", "Variant"]
