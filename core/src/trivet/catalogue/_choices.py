"""What references refuse themselves, because no shape says it."""

from __future__ import annotations

from collections.abc import Sequence

from trivet.errors import DomainError


def declared(argument: str, value: str, allowed: Sequence[str]) -> None:
    """Refuses a choice that is not declared, so that it never means another one.

    Raises:
        DomainError: names the argument, the value and what is allowed.
    """
    if value not in allowed:
        msg = f"{argument}={value!r}"
        raise DomainError(msg, fix=f"use one of {', '.join(map(repr, allowed))}")
