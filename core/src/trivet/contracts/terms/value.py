"""Terms on values: dtypes, ranks, sizes, scalars, presence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from trivet.contracts.terms.term import (
    UNKNOWN,
    Decision,
    Interval,
    Reader,
    Term,
    View,
    alternatives,
    inside,
    is_open,
    positive,
    shown,
)
from trivet.errors import DeclarationError


@dataclass(frozen=True)
class Dtype(Term):
    """The dtype of a tensor is one of these names."""

    names: tuple[str, ...]
    kind = "dtype"
    attribute = ".dtype"
    price = 0

    def __post_init__(self) -> None:
        for name in self.names or ("",):
            if not isinstance(getattr(torch, str(name), None), torch.dtype):
                msg = f"dtype term on {self.path!r}: torch has no dtype {name!r}"
                raise DeclarationError(msg)

    def decide(self, view: View) -> Decision:
        have = view.value(f"{self.path}.dtype")
        if have is UNKNOWN:
            return None
        ok = have in [getattr(torch, n) for n in self.names]
        return ok or f"{self.path} is {shown(have)}, not {' or '.join(self.names)}"

    def source(self, reader: Reader) -> str:
        tests = [
            f"{reader.tensor(self.path, 'dtype')} is {reader.literal(getattr(torch, name))}"
            for name in self.names
        ]
        return tests[0] if len(tests) == 1 else f"({' or '.join(tests)})"


@dataclass(frozen=True)
class Rank(Term):
    """The number of dims of a tensor is one of these."""

    ranks: tuple[int, ...]
    kind = "rank"
    attribute = ".rank"
    price = 2

    def __post_init__(self) -> None:
        if not self.ranks or any(type(r) is not int or r < 0 for r in self.ranks):
            msg = f"rank term on {self.path!r}: {self.ranks!r} are no ranks"
            raise DeclarationError(msg)

    def decide(self, view: View) -> Decision:
        have = view.value(f"{self.path}.rank")
        if have is UNKNOWN:
            return None
        if isinstance(have, Interval) and any(inside(r, have) for r in self.ranks):
            return None
        return have in self.ranks or f"{self.path} has rank {have}, not {alternatives(self.ranks)}"

    def source(self, reader: Reader) -> str:
        text = reader.tensor(self.path, "rank")
        if len(self.ranks) == 1:
            return f"{text} == {self.ranks[0]}"
        return f"{text} in {self.ranks!r}"


@dataclass(frozen=True)
class Equal(Term):
    """A path equals another path (text) or a constant."""

    other: Any
    kind = "equal"
    about = "value"
    price = 4

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path, self.other) if isinstance(self.other, str) else (self.path,)

    def decide(self, view: View) -> Decision:
        a = view.value(self.path)
        b = view.value(self.other) if isinstance(self.other, str) else self.other
        if is_open(a) or is_open(b):
            return None
        return bool(a == b) or f"{self.path} is {shown(a)}, {self.other} is {shown(b)}"

    def source(self, reader: Reader) -> str:
        left = reader.path(self.path)
        other = self.other
        right = reader.path(other) if isinstance(other, str) else reader.literal(other)
        return f"{left} {'is' if self.path.endswith('.dtype') else '=='} {right}"


@dataclass(frozen=True)
class OneOf(Term):
    """A scalar or dim is one of these values."""

    values: tuple[Any, ...]
    kind = "one_of"
    about = "value"
    price = 3

    def __post_init__(self) -> None:
        plain = (bool, int, float, str, torch.dtype)
        if not self.values or any(not isinstance(v, plain) for v in self.values):
            msg = f"one_of term on {self.path!r}: {self.values!r} are no plain values"
            raise DeclarationError(msg)

    def decide(self, view: View) -> Decision:
        have = view.value(self.path)
        if isinstance(have, Interval):
            if any(inside(v, have) for v in self.values):
                return None
            return f"{self.path} in {have} is never {alternatives(self.values)}"
        if have is UNKNOWN:
            return None
        return (
            have in self.values or f"{self.path} is {shown(have)}, not {alternatives(self.values)}"
        )

    def source(self, reader: Reader) -> str:
        if len(self.values) == 1:
            return f"{reader.path(self.path)} == {reader.literal(self.values[0])}"
        return f"{reader.path(self.path)} in ({', '.join(map(reader.literal, self.values))})"


@dataclass(frozen=True)
class Between(Term):
    """A dim or integer lies between two bounds, both included; None is open."""

    low: int | None
    high: int | None
    kind = "between"
    about = "size"
    price = 8

    def __post_init__(self) -> None:
        bounds = [b for b in (self.low, self.high) if b is not None]
        if not bounds or any(type(b) is not int for b in bounds) or bounds != sorted(bounds):
            msg = f"between term on {self.path!r}: {self.low}..{self.high} is no range of integers"
            raise DeclarationError(msg)

    def decide(self, view: View) -> Decision:
        have = view.value(self.path)
        if have is UNKNOWN:
            return None
        low, high = (have.low, have.high) if isinstance(have, Interval) else (have, have)
        above = self.low is None or (low is not None and low >= self.low)
        below = self.high is None or (high is not None and high <= self.high)
        if above and below:
            return True
        out_low = self.low is not None and high is not None and high < self.low
        out_high = self.high is not None and low is not None and low > self.high
        if out_low or out_high or not isinstance(have, Interval):
            return f"{self.path} is {have}, outside {Interval(self.low, self.high)}"
        return None

    def source(self, reader: Reader) -> str:
        text = reader.path(self.path)
        if self.low is None:
            return f"{text} <= {self.high}"
        return f"{self.low} <= {text}" + ("" if self.high is None else f" <= {self.high}")


@dataclass(frozen=True)
class Divisible(Term):
    """A dim or integer is a multiple."""

    by: int
    kind = "divisible"
    about = "size"
    price = 7

    def __post_init__(self) -> None:
        positive(self.kind, self.path, self.by)

    def decide(self, view: View) -> Decision:
        have = view.value(self.path)
        if is_open(have):
            return None
        return have % self.by == 0 or f"{self.path} = {have} is not a multiple of {self.by}"

    def source(self, reader: Reader) -> str:
        return f"not {reader.path(self.path)} % {self.by}"


@dataclass(frozen=True)
class Presence(Term):
    """An optional tensor or a list of tensors is given, or is not."""

    wanted: ClassVar[bool]
    about = "optional"
    price = 1

    def decide(self, view: View) -> Decision:
        have = view.value(self.path)
        if have is UNKNOWN:
            return None
        here = have is not None and have != []
        return here == self.wanted or f"{self.path} is {'given' if here else 'absent'}"

    def source(self, reader: Reader) -> str:
        return reader.given(self.path, wanted=self.wanted)


@dataclass(frozen=True)
class Absent(Presence):
    """An optional tensor is not given."""

    kind = "absent"
    wanted = False


@dataclass(frozen=True)
class Present(Presence):
    """An optional tensor is given, or a list of tensors is not empty."""

    kind = "present"
    wanted = True
