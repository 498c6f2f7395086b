"""Faults that are put into implementations as they are, to see that a run tells of each.

A fault happens at one call and no other, so that a check that looks once too seldom misses it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from trivet_conformance.subject.subject import Subject, Target

Fault = Callable[[Any], Any]
"""Turns what a call returned into what it returns with the fault; it may raise instead."""


def raises(made: Any) -> Any:
    """An error that is none of the contract's."""
    del made
    msg = "a fault that was put there"
    raise RuntimeError(msg)


def out_of_memory(made: Any) -> Any:
    """Memory of the device that is not enough."""
    del made
    msg = "a fault that was put there: out of memory"
    raise torch.OutOfMemoryError(msg)


def interrupts(made: Any) -> Any:
    """An end of the interpreter."""
    del made
    raise SystemExit(0)


def returns_nothing(made: Any) -> Any:
    """None, or a tensor where nothing is returned."""
    return torch.zeros(()) if made is None else None


def another_dtype(made: Any) -> Any:
    """Every tensor in another dtype; where none is returned, one that is not asked for."""
    if isinstance(made, Tensor):
        return made.to(torch.float64 if made.dtype != torch.float64 else torch.float32)
    if isinstance(made, tuple | list):
        return type(made)(another_dtype(one) for one in made)
    return torch.zeros(())


FAULTS: Final[Mapping[str, Fault]] = MappingProxyType(
    {f.__name__: f for f in (raises, out_of_memory, interrupts, returns_nothing, another_dtype)}
)
"""Every fault, by name."""


def with_fault(subject: Subject, fault: Fault, *, at: int = 1) -> Subject:
    """A subject with a fault in each of its implementations.

    Args:
        subject: what is right without it.
        fault: one of ``FAULTS``.
        at: at which call of an implementation it happens, counted from one.
    """
    targets = tuple(_with_fault(target, fault, at) for target in subject.targets)
    return replace(subject, targets=targets)


def _with_fault(target: Target, fault: Fault, at: int) -> Target:
    claim = target.implementation.claim
    counted = itertools.count(1)

    @functools.wraps(claim.function)
    def function(*args: Any, **kwargs: Any) -> Any:
        made = claim.function(*args, **kwargs)
        return fault(made) if next(counted) == at else made

    broken = replace(target.implementation, claim=claim.of(function))
    siblings = tuple(broken if s is target.implementation else s for s in target.siblings)
    return replace(target, implementation=broken, siblings=siblings)
