"""Values as they are typed on a command line: facts, shapes, sizes, dtypes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import click
import torch

from trivet.contracts.terms import Interval
from trivet.settings import near_misses

_WORDS: Final[dict[str, Any]] = {"true": True, "false": False, "none": None, "[]": []}
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_RANGE: Final = re.compile(r"([0-9]*)\.\.([0-9]*)")
_SHAPE: Final = re.compile(r"[0-9]+(x[0-9]+)*")
_STRIDES: Final = re.compile(r"[0-9]+(,[0-9]+)*")
_DIGITS: Final = 18
"""Digits that a whole number may have: what is longer is no size, and Python refuses 4300."""

DTYPES: Final = tuple(
    name for name, value in vars(torch).items()
    if isinstance(value, torch.dtype) and str(value) == f"torch.{name}"
)  # fmt: skip

device_option: Final = click.option(
    "--device", "device_name", default="auto", show_default=True, metavar="NAME",
    help="Device, as NAME or NAME:INDEX.",
)  # fmt: skip


def split(text: str, form: str) -> tuple[str, str]:
    """The two sides of ``NAME=VALUE``.

    Raises:
        click.BadParameter: there is no name or no value.
    """
    name, equals, value = text.partition("=")
    if not (name.strip() and equals and value.strip()):
        raise click.BadParameter(f"{text!r} is not of the form {form}")
    return name.strip(), value.strip()


def value(text: str) -> Any:
    """A fact's value: number, ``true``, ``false``, ``none``, range ``1..8`` (ends open), text."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INTEGER.fullmatch(text):
        return whole(text)
    if match := _RANGE.fullmatch(text):
        low, high = (whole(end) if end else None for end in match.groups())
        return interval(low, high)
    try:
        return float(text)
    except ValueError:
        return text


def whole(text: str) -> int:
    """A whole number of a length that can be a size.

    Raises:
        click.BadParameter: it is longer.
    """
    if len(text) > _DIGITS:
        raise click.BadParameter(f"{text[:_DIGITS]}... has {len(text)} digits, at most {_DIGITS}")
    return int(text)


def interval(low: int | None, high: int | None) -> Interval:
    """A range from its ends, both included; None is open.

    Raises:
        click.BadParameter: it has no end, or no number is in it.
    """
    if (low is None and high is None) or (low is not None and high is not None and low > high):
        raise click.BadParameter(f"{Interval(low, high)} is an empty range")
    return Interval(low, high)


def fact(text: str) -> tuple[str, Any]:
    """One fact; ``contiguous`` takes true or names separated by commas."""
    path, given = split(text, "PATH=VALUE")
    if path.rpartition(".")[2] == "contiguous" and given.lower() == "false":
        raise click.BadParameter(
            "facts are positive, there is no contiguous=false: leave it out for a site whose "
            "tensors may be strided, or ask about one call, with --strides ARG=N,N"
        )
    if path == "contiguous" and given.lower() != "true":
        return path, given.split(",")
    return path, value(given)


def shape(text: str) -> tuple[str, tuple[int, ...]]:
    """The shape of one argument."""
    name, given = split(text, "ARG=AxB")
    if not _SHAPE.fullmatch(given):
        raise click.BadParameter(f"{given!r} is no shape such as 7x576")
    return name, tuple(whole(n) for n in given.split("x"))


def strides(text: str) -> tuple[str, tuple[int, ...]]:
    """The strides of one argument, in elements."""
    name, given = split(text, "ARG=N,N")
    if not _STRIDES.fullmatch(given):
        raise click.BadParameter(f"{given!r} are no strides such as 128,2")
    return name, tuple(whole(n) for n in given.split(","))


def size(text: str) -> tuple[str, int]:
    """The value of one dim."""
    name, given = split(text, "DIM=N")
    if not (given.isascii() and given.isdecimal()):
        raise click.BadParameter(f"{given!r} is no size: a whole number, 0 or more")
    return name, whole(given)


def dtype(text: str) -> tuple[str, torch.dtype]:
    """A dtype of the activations (empty name), or of a dtype variable: ``W=float32``."""
    name, _, given = text.rpartition("=")
    if given not in DTYPES:
        near = near_misses(given, DTYPES)
        hint = f"; did you mean {' or '.join(near)}?" if near else "; write float32 or bfloat16"
        raise click.BadParameter(f"torch has no dtype {given!r}{hint}")
    found: torch.dtype = getattr(torch, given)
    return name, found


def each(parse: Callable[[str], tuple[str, Any]]) -> Callable[..., dict[str, Any]]:
    """A callback of an option that may be given several times: all of them, by name."""

    def callback(
        ctx: click.Context, parameter: click.Parameter, given: Sequence[str]
    ) -> dict[str, Any]:
        del ctx, parameter
        pairs = [parse(text) for text in given]
        found = dict(pairs)
        if len(found) < len(pairs):
            raise click.BadParameter("one name is given twice")
        return found

    return callback


def finite(ctx: click.Context, parameter: click.Parameter, given: float | None) -> float | None:
    """A callback of an option: refuses what no number is compared with, and no end.

    Raises:
        click.BadParameter: it is not finite.
    """
    del ctx, parameter
    if given is not None and not math.isfinite(given):
        raise click.BadParameter(f"{given} is not a finite number")
    return given


def known(kind: str, names: Iterable[str], allowed: Iterable[str]) -> None:
    """Refuses names that do not exist.

    Raises:
        click.UsageError: with near misses.
    """
    allowed = list(allowed)
    for name in names:
        if name not in allowed:
            near = near_misses(name, allowed) or allowed
            raise click.UsageError(f"no {kind} {name!r}; use one of {', '.join(near)}")


def shown(given: object) -> str:
    """A value as it is typed."""
    if isinstance(given, bool) or given is None:
        return str(given).lower()
    return str(given).removeprefix("torch.")
