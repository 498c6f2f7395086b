"""Sizes and tags as callers give them: what is none is refused before anything changes."""

from __future__ import annotations

import operator

from trivet.errors import MemoryFault
from trivet.plugins.describe import shown


def whole(value: object, what: str) -> int:
    """A number of bytes, blocks or tokens as a plain integer.

    NaN is below no limit and a fraction fits no buffer, so that neither may reach a sum.

    Args:
        value: what a caller gave.
        what: what it is a size of, with the verb's place left open: ``"a buffer of {} bytes"``.

    Raises:
        MemoryFault: it is no whole number, or below 0.
    """
    if type(value) is int and value >= 0:
        return value
    try:
        found = int(operator.index(value))  # type: ignore[arg-type]  # that is the question
    except TypeError:
        found = -1
    if found < 0:
        msg = f"{what.format(shown(value))} cannot be made"
        raise MemoryFault(msg, fix="a whole number, 0 or more") from None
    return found


def limit(value: object, name: str) -> int | None:
    """A limit as a plain integer, or None for none.

    Raises:
        MemoryFault: it is no whole number, or below 0.
    """
    try:
        return None if value is None else whole(value, "{}")
    except MemoryFault as error:
        msg = f"{name} of {shown(value)} bytes is no limit"
        raise MemoryFault(msg, fix="a whole number, 0 or more, or None") from error


def label(tag: object) -> str:
    """A tag, which is text: it is a key of the account and a word of every message.

    Raises:
        MemoryFault: it is none.
    """
    if isinstance(tag, str):
        return tag
    raise MemoryFault(f"a tag is text, not {shown(tag)}", fix="name what the memory is for")
