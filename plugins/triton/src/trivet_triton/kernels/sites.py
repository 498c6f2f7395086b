"""What a bind settles: launches that are made before the first call, and the function of a site.

A family's ``runner`` makes a function for one kind of call (dtypes, sizes, scalars); the plain
operator looks it up for each call, a site has it from its facts. It holds launches of two sorts,
for tensors and strides at multiples of 16 bytes and for others: a bind makes the sort that its
facts allow, the other one is made at the first call that needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeAlias

import torch

from trivet.errors import DomainError

Facts: TypeAlias = Mapping[str, Any]
Site: TypeAlias = Callable[..., Any]


class Launches(dict[int, Any]):
    """Index of a device -> its launches by size, made when they are first asked for."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, index: int) -> Any:
        made = self[index] = self._make(index)
        return made

    def at_home(self) -> None:
        """Makes those of the current device; where there is none, programs are interpreted."""
        there = torch.accelerator.is_available()
        _ = self[torch.accelerator.current_device_index() if there else -1]


def at_bind(
    make: Callable[..., Site],
    *paths: str,
    dense: tuple[str, ...] = (),
    aligned: tuple[str, ...] = (),
) -> Site:
    """A hook ``resolve``, which makes a function once for equal values.

    Args:
        make: ``make(values of the paths, known dense, known aligned)``.
        paths: facts that must be settled; where one is open there is no function for the site.
        dense: tensors that are looked at for being contiguous unless facts say so of all.
        aligned: tensors whose addresses are looked at unless facts say of all of them that they
            start at multiples of 16 bytes; left out where they are looked at always.
    """
    made = cache(make)

    def resolve(facts: Facts) -> Site | None:
        values = [facts.get(path) for path in paths]
        if not all(isinstance(v, (int, float, str, torch.dtype)) for v in values):
            return None
        values.append(all(facts.get(f"{name}.contiguous") is True for name in dense))
        if aligned:
            starts = (facts.get(f"{name}.offset_aligned") or 1 for name in aligned)
            values.append(all(start % 16 == 0 for start in starts))
        try:
            return made(*values)
        except DomainError:  # scalars that no kernel takes: each call says so, as without a bind
            return None

    return resolve
