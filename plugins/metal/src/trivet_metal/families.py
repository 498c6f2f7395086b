"""Families of Apple's GPUs: which chip belongs to which, and what a launch may use there.

Sources: Apple's "Metal feature set tables" for the limits, which are the same from the M1 on, and
its data sheets for the chips.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_OF_CHIP: Final = {1: 7, 2: 8, 3: 9, 4: 9, 5: 10}
"""Generation of an M chip -> number of its family of GPUs."""

OLDEST: Final = 7
NEWEST: Final = max(_OF_CHIP.values())


@dataclass(frozen=True)
class Limits:
    """What a launch may use.

    Args:
        threads: threads of a threadgroup.
        threadgroup_bytes: memory that a threadgroup shares.
        buffers: arguments of a kernel.
        simd_width: threads that run in step.
    """

    threads: int = 1024
    threadgroup_bytes: int = 32768
    buffers: int = 31
    simd_width: int = 32


def family_of(chip: str) -> int | None:
    """The number of the family of a chip (``"Apple M3 Max"``, ``"m3"``), or None if unknown.

    A chip that is newer than this table has at least what the newest one here has.
    """
    found = re.search(r"\bM(\d+)\b", chip, re.IGNORECASE)
    if found is None:
        return None
    return _OF_CHIP.get(int(found[1]), NEWEST if int(found[1]) > max(_OF_CHIP) else None)


def architectures(family: int) -> tuple[str, ...]:
    """Names of a family and of all before it whose features it has, most specific first."""
    return tuple(f"apple{number}" for number in range(family, OLDEST - 1, -1))


def limits(family: int) -> Limits:
    """The limits of a family; they did not change between the first and the newest known one."""
    del family
    return Limits()
