"""Errors that come second, or that no caller can take: a collection that ends buffers has none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from trivet.plugins.describe import said


def unraisable(error: BaseException, where: object, doing: str) -> None:
    """Reports an error that no caller can take, as Python reports those of finalisers."""
    told = SimpleNamespace(
        exc_type=type(error),
        exc_value=error,
        exc_traceback=error.__traceback__,
        err_msg=f"Exception ignored {doing} in",
        object=where,
    )
    sys.unraisablehook(told)  # its own class cannot be made


@contextmanager
def noted(first: BaseException, what: str) -> Iterator[None]:
    """Makes what goes wrong inside a note of the error that came first, so that it hides none."""
    try:
        yield
    except Exception as second:  # noqa: BLE001  # of a vendor's code; told with the first
        first.add_note(f"{what}: {said(second)}")


def brief(error: BaseException) -> str:
    """The first line of an error's text, whatever its ``__str__`` does; its type without any."""
    return said(error).removeprefix(f"{type(error).__name__}: ").partition("\n")[0]


def bare(error: Exception) -> Exception:
    """An error that can be kept: without the frames of its tracebacks, which hold what was used."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = None
            left += [one.__cause__, one.__context__]
    return error
