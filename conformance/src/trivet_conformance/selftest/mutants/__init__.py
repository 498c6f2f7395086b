"""Variants on which the kit tests itself: wrong providers, and legal ones that differ.

This is the only place of the kit that knows operators by name. A wrong variant names the family
that must kill it; a legal one is accepted by all. Every module of the folders that has a tuple
``VARIANTS`` takes part.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Final

from trivet_conformance.selftest.mutants.variant import Variant


def _variants() -> tuple[Variant, ...]:
    names = sorted(m.name for m in pkgutil.walk_packages(__path__, f"{__name__}."))
    modules = [importlib.import_module(name) for name in names]
    found = [v for m in modules for v in getattr(m, "VARIANTS", ())]
    return tuple(sorted(found, key=lambda v: not v.killer))


VARIANTS: Final[tuple[Variant, ...]] = _variants()
"""Every variant, mutants first."""

__all__ = ["VARIANTS", "Variant"]
