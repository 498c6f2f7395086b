"""Facts: what a call site promises, in one normal form.

Facts use the paths of domains. Short forms: ``"dtype"`` is the activations' dtype variable,
``"contiguous": True`` and ``"rank"`` speak of the first tensor, a list names several. A range
is a ``range`` or an ``Interval``. What is absent is unknown; there are no negative facts.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch

from trivet.contracts.implementation import check_path
from trivet.contracts.operator import ACTIVATION, Operator
from trivet.contracts.signature import REQUIRED
from trivet.contracts.terms import PRESENT, UNKNOWN, Interval, Layout, Term
from trivet.contracts.terms.value import Absent, Present
from trivet.errors import UnknownName


@dataclass(frozen=True, eq=False)
class Facts:
    """Normal facts of one operator: path -> value. It is a ``View`` for terms."""

    operator: Operator
    values: Mapping[str, Any]

    @cached_property
    def key(self) -> tuple[tuple[str, str], ...]:
        """A hashable identity, independent of the order in which facts were written."""
        return tuple(sorted((k, f"{type(v).__name__}:{v}") for k, v in self.values.items()))

    def to_json(self) -> dict[str, Any]:
        """Facts as plain values with sorted keys."""
        return {k: plain(self.values[k]) for k in sorted(self.values)}

    def value(self, path: str) -> Any:
        """The value of a path, or UNKNOWN."""
        if path in self.values:
            return self.values[path]
        if path.endswith(".row_width"):
            return self._row_width(path.partition(".")[0])
        return UNKNOWN

    def layout(self, arg: str) -> Layout | None:
        """Facts never give a whole layout."""
        del arg
        return None

    def inner(self, arg: str) -> int:
        """Trailing dims of a declared shape."""
        return len(self.operator.shapes[arg].inner)

    def with_values(self, extra: Mapping[str, Any]) -> Facts:
        """These facts and some more."""
        return Facts(self.operator, MappingProxyType({**self.values, **extra}))

    def _row_width(self, arg: str) -> Any:
        width = 1
        for dim in self.operator.shapes[arg].inner:
            value = self.values.get(dim.name, UNKNOWN)
            if not isinstance(value, int):
                return UNKNOWN
            width *= dim.size({**self.values, dim.name: value})
        return width


def normalise(op: Operator, given: Mapping[str, Any], *, site: bool = False) -> Facts:
    """Brings facts into normal form.

    Args:
        op: the operator.
        given: facts as an engine writes them.
        site: whether scalars that are not named are promised to stay at their defaults.

    Raises:
        UnknownName: a fact names nothing, or has a value that cannot be; near misses are listed.
    """
    values: dict[str, Any] = {}
    for arg, declared in op.dtypes.items():
        fixed = getattr(torch, declared, None)
        if isinstance(fixed, torch.dtype):
            values[f"{arg}.dtype"] = fixed
        if (rank := op.shapes[arg].rank) is not None:
            values[f"{arg}.rank"] = rank
    if site:
        for name in op.scalars:
            if (default := op.parameters[name].default) is not REQUIRED:
                values[name] = default
    for path, value in given.items():
        values.update(_expand(op, path, value))
    return Facts(op, MappingProxyType(values))


def _expand(op: Operator, path: str, value: Any) -> dict[str, Any]:
    """One written fact as normal ones."""
    if path == "dtype":
        wanted = _dtype(op, path, value)
        return {f"{a}.dtype": wanted for a, d in op.dtypes.items() if d == ACTIVATION}
    if path == "rank":
        return {f"{op.tensors[0]}.rank": value}
    if path == "contiguous":
        names = [op.tensors[0]] if value is True else list(value or ())
        for name in names:
            _known(op, f"{name}.contiguous")
        return {f"{name}.contiguous": True for name in names}
    _known(op, path)
    return {path: _value(op, path, value)}


def _value(op: Operator, path: str, value: Any) -> Any:
    head, _, attribute = path.partition(".")
    if attribute == "dtype":
        return _dtype(op, path, value)
    if attribute == "contiguous" and value is not True:
        raise _refusal(op, path, value, "facts are positive: leave it out instead")
    if isinstance(value, range):
        if value.step != 1 or not value:
            raise _refusal(op, path, value, "a range has step 1 and is not empty")
        return Interval(value.start, value.stop - 1)
    parameter = op.parameters.get(head)
    if attribute or parameter is None:
        if not (isinstance(value, (int, Interval)) and not isinstance(value, bool)):
            raise _refusal(op, path, value, "a dim is an integer or a range")
        return value
    if parameter.scalar:
        allowed = op.choices.get(path)
        if allowed and value not in allowed:
            raise _refusal(op, path, value, f"allowed: {', '.join(map(repr, allowed))}")
        return value
    return None if value is None or value == [] else PRESENT


def _dtype(op: Operator, path: str, value: Any) -> torch.dtype:
    found = getattr(torch, value, None) if isinstance(value, str) else value
    if not isinstance(found, torch.dtype):
        raise _refusal(op, path, value, "a dtype is a torch.dtype or its name")
    return found


def _known(op: Operator, path: str) -> None:
    try:
        check_path(op, path, "")
    except Exception as error:
        names = [*op.where, *op.parameters, *(f"{t}.dtype" for t in op.tensors), "dtype"]
        near = difflib.get_close_matches(path, names, n=3) or names
        msg = f"fact {path!r} is no dim, argument or attribute of {op.name}"
        raise UnknownName(msg, fix=f"use one of {', '.join(near)}") from error


def _refusal(op: Operator, path: str, value: Any, why: str) -> UnknownName:
    return UnknownName(f"fact {path!r} of {op.name} cannot be {value!r}", fix=why)


def plain(value: Any) -> Any:
    """A fact's value for JSON: dtypes by name, ranges as ``[low, high]``."""
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, Interval):
        return [value.low, value.high]
    json.dumps(value)
    return value


@dataclass(frozen=True)
class Call:
    """Everything of one call as a ``View``; works the same on real and fake tensors."""

    operator: Operator
    arguments: Mapping[str, Any]

    def value(self, path: str) -> Any:
        """The value of a path in this call."""
        head, _, attribute = path.partition(".")
        given = self.arguments.get(head)
        if attribute == "dtype":
            return given.dtype if given is not None else UNKNOWN
        if attribute == "rank":
            return given.dim() if given is not None else UNKNOWN
        if attribute:
            return UNKNOWN
        parameter = self.operator.parameters.get(head)
        if parameter is not None and parameter.scalar:
            return given
        if parameter is not None:
            return given if given is None or given == [] else PRESENT
        return self._dim(path)

    def _dim(self, path: str) -> Any:
        place = self.operator.where[path]
        tensor = self.arguments.get(place.arg)
        if tensor is None:
            return UNKNOWN
        if place.dim.star:
            value = 1
            for size in self.operator.shapes[place.arg].leading(tensor.shape):
                value = value * size
            return value
        return place.dim.solve(tensor.shape[place.index], self.arguments)

    def layout(self, arg: str) -> Layout | None:
        """The layout of a tensor of this call."""
        t = self.arguments.get(arg)
        if t is None:
            return None
        return Layout(tuple(t.shape), tuple(t.stride()), t.storage_offset(), t.dtype.itemsize)

    def inner(self, arg: str) -> int:
        """Trailing dims of a declared shape."""
        if arg == "out":
            return len(self.operator.outputs[0].shape.inner)
        return len(self.operator.shapes[arg].inner)


def decide(op: Operator, term: Term, view: Facts | Call) -> bool | str | None:
    """Decides a term; what concerns an absent optional tensor holds vacuously.

    A term that cannot be decided (a size that exists only at run time) is a no with that reason.
    """
    if not isinstance(term, (Absent, Present)):
        for arg in owners(op, term):
            if op.parameters[arg].optional and view.value(arg) is None:
                return True
    try:
        decision = term.decide(view)
        return decision if isinstance(decision, str) or decision is None else bool(decision)
    except _undecidable() as error:
        return f"{term} cannot be decided here: {str(error).splitlines()[0]}"


def owners(op: Operator, term: Term) -> set[str]:
    """The tensor arguments that a term looks at."""
    found = set()
    for path in term.paths:
        head = path.partition(".")[0]
        if head in op.parameters:
            if op.parameters[head].tensor:
                found.add(head)
        elif head in op.where:
            found.add(op.where[head].arg)
    return found


def _undecidable() -> tuple[type[Exception], ...]:
    """Torch's error for unbacked sizes, only where symbolic shapes are in use already."""
    import sys

    module = sys.modules.get("torch.fx.experimental.symbolic_shapes")
    return (module.GuardOnDataDependentSymNode,) if module else ()
