"""Looks at an allocator once, before anything is built on it: later errors lead nowhere."""

from __future__ import annotations

from typing import Any, Final

import torch

from trivet.contracts.memory import ABILITIES, Traits
from trivet.plugins.answers import has_abilities

LEAST: Final = ("traits", "allocate", "deallocate")
"""The functions that an allocator has at least."""


def allocator_problem(allocator: object) -> str:
    """Why something cannot serve as an ``Allocator``; empty where it can."""
    if isinstance(allocator, type):
        return f"{allocator.__qualname__} is a class; make one of it: {allocator.__qualname__}(...)"
    name = type(allocator).__qualname__
    absent = [f"{n}()" for n in LEAST if not callable(getattr(allocator, n, None))]
    if absent:
        return f"{name} is no allocator: it has no {', '.join(absent)}"
    traits = allocator.traits()  # type: ignore[attr-defined]  # looked for above
    if not isinstance(traits, Traits):
        return f"{name}.traits() returns {traits!r}, no Traits"
    device: Any = traits.device
    if not isinstance(device, torch.device):
        return f"{name}.traits() has the device {device!r}, no torch.device"
    return ""


def ability_problem(provided: object) -> str:
    """Why something is no memory that ``trivet_memory`` may return; empty where it is."""
    if isinstance(provided, type):
        return allocator_problem(provided)
    if has_abilities(provided, *ABILITIES):
        return ""
    name = type(provided).__qualname__
    here = [n for n in LEAST if callable(getattr(type(provided), n, None))]  # never foreign code
    absent = ", ".join(f"{n}()" for n in LEAST if n not in here)
    nearly = f"; for an Allocator it lacks {absent}" if here else ""
    return f"{name} is none of: {', '.join(a.__name__ for a in ABILITIES)}{nearly}"
