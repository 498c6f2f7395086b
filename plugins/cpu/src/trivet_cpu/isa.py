"""Which instruction set level the kernels use, and another one for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from trivet.errors import DomainError
from trivet_cpu.kernel_library import LEVELS, op, refuse


def level() -> str:
    """The level in use: the widest that is compiled and that this machine runs."""
    return LEVELS[op("isa")()]


FLOATS: Final = ("float32", "bfloat16", *(() if level() == "baseline" else ("float16",)))
"""Dtypes that the kernels offer here. All levels compute with float16, but the plainest one has no
instruction that converts it, and is slower than torch there in some shapes."""


def levels() -> tuple[str, ...]:
    """The levels that are compiled and that this machine runs."""
    bits = op("isa_levels")()
    return tuple(name for i, name in enumerate(LEVELS) if bits >> i & 1)


@contextmanager
def using(name: str) -> Iterator[None]:
    """Uses another level inside the block; for tests, while no kernel runs elsewhere.

    Raises:
        DomainError: there is no such level, it is not compiled, or cannot run on this machine.
    """
    if name not in LEVELS:
        msg = f"there is no level {name!r}"
        raise DomainError(msg, fix=f"use one of {', '.join(levels())}")
    before = op("isa")()
    try:
        op("set_isa")(LEVELS.index(name))
    except RuntimeError as error:
        refuse(error)
    try:
        yield
    finally:
        op("set_isa")(before)
