"""Domain terms: what an implementation accepts, as data.

A domain is a conjunction of terms on paths: dims (``"hidden"``), scalars (``"window"``), tensor
attributes (``"x.dtype"``, ``"x.rank"``). Each kind of term says three things in one place: how
facts decide it, how a guard tests it, and how it reads. Layout terms ignore dims of size <= 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final, Protocol

from trivet.errors import DeclarationError

Decision = bool | str | None
"""True: holds. Text: does not, because. None: the facts do not say."""


class Unknown:
    """The type of ``UNKNOWN``."""

    def __repr__(self) -> str:
        return "unknown"


UNKNOWN: Final = Unknown()
PRESENT: Final = "present"


@dataclass(frozen=True)
class Interval:
    """A range of integers, both ends included; None is open."""

    low: int | None
    high: int | None

    def __str__(self) -> str:
        return f"{'' if self.low is None else self.low}..{'' if self.high is None else self.high}"


@dataclass(frozen=True)
class Layout:
    """Sizes, strides and storage offset of a tensor, with its size of element in bytes."""

    sizes: Sequence[int]
    strides: Sequence[int]
    offset: int
    itemsize: int


class View(Protocol):
    """What is known: the facts of a site, or everything of a call."""

    def value(self, path: str) -> Any:
        """The value of a path (a value, an Interval, None for absent), or UNKNOWN."""

    def layout(self, arg: str) -> Layout | None:
        """The layout of a tensor, or None when unknown."""

    def inner(self, arg: str) -> int:
        """How many trailing dims a declared shape has after its star."""


class Reader(Protocol):
    """How a generated guard spells what a term needs; each attribute is read once."""

    def path(self, path: str) -> str:
        """Text of a dim, scalar, dtype or rank."""

    def tensor(self, arg: str, attribute: str) -> str:
        """Text of ``shape``, ``stride``, ``dtype``, ``rank`` or ``contiguous`` of a tensor."""

    def literal(self, value: object) -> str:
        """Text of a constant."""

    def given(self, arg: str, *, wanted: bool) -> str:
        """Text of the test whether an optional tensor or a list is given, or is not."""

    def inner(self, arg: str) -> int:
        """How many trailing dims a declared shape has after its star."""


@dataclass(frozen=True)
class Term:
    """One condition on one path."""

    path: str
    kind: ClassVar[str]
    attribute: ClassVar[str] = ""
    """What of a tensor it looks at: ``.dtype``, ``.rank``, or the path alone."""
    about: ClassVar[str] = ""
    """What its path may be: ``value``, ``size``, ``tensor`` or ``optional``; empty is anything."""
    price: ClassVar[int] = 5
    """Order in a guard: cheap and telling terms first; rank before anything on dims."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths that it looks at."""
        return (self.path + self.attribute,)

    @property
    def args(self) -> tuple[Any, ...]:
        """The constants of the term."""
        rest = tuple(getattr(self, f.name) for f in fields(self)[1:])
        return rest[0] if rest and isinstance(rest[0], tuple) else rest

    def decide(self, view: View) -> Decision:
        """Whether it holds, as far as the view knows."""
        raise NotImplementedError

    def source(self, reader: Reader) -> str:
        """Python text of the test, for a guard."""
        raise NotImplementedError

    def to_json(self) -> list[Any]:
        """The term as plain values: kind, path, constants."""
        return [self.kind, self.path, *self.args]

    def __str__(self) -> str:
        return f"{self.kind}({', '.join([self.path, *map(str, self.args)])})"


def shown(value: object) -> str:
    """A value as a reason spells it."""
    return str(value).removeprefix("torch.")


def alternatives(values: Sequence[object]) -> str:
    """Allowed values as a reason spells them."""
    return " or ".join(map(shown, values))


def positive(kind: str, path: str, number: object) -> None:
    """Refuses a multiple that is no positive integer.

    Raises:
        DeclarationError: names the term.
    """
    if type(number) is not int or number < 1:
        msg = f"{kind} term on {path!r}: {number!r} is no positive integer"
        raise DeclarationError(msg)


def is_open(value: object) -> bool:
    """Whether a value is not settled to one."""
    return value is UNKNOWN or isinstance(value, Interval)


def inside(value: object, interval: Interval) -> bool:
    """Whether a value lies in an interval."""
    return isinstance(value, int) and bool(
        (interval.low is None or value >= interval.low)
        and (interval.high is None or value <= interval.high)
    )
