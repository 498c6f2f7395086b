"""Facts: what a call site promises, in one normal form.

Facts use the paths of domains. Short forms: ``"dtype"`` is the activations' dtype variable,
``"contiguous": True`` and ``"rank"`` speak of the first tensor, a list names several. A range
is a ``range`` or an ``Interval``. What is absent is unknown; there are no negative facts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch

from trivet.contracts.declaration import ACTIVATION, Operator
from trivet.contracts.dims import Shape
from trivet.contracts.names import check_path, need_names
from trivet.contracts.signature import REQUIRED
from trivet.contracts.terms import PRESENT, UNKNOWN, Interval, Layout, Term
from trivet.contracts.terms.term import shown
from trivet.contracts.terms.value import Absent, Present
from trivet.errors import DeclarationError, UnknownName
from trivet.settings import likely


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
            shape = self.operator.shapes[path.partition(".")[0]]
            return self.width(shape) if shape.star else 0  # without a star no row follows another
        return UNKNOWN

    def layout(self, arg: str) -> Layout | None:
        """Facts never give a whole layout."""
        del arg
        return None

    def inner(self, arg: str) -> int:
        """Trailing dims of a declared shape."""
        return self.operator.inner(arg)

    def width(self, shape: Shape) -> Any:
        """The product of the dims after the star, or UNKNOWN."""
        needed = [n for dim in shape.inner for n in (dim.name, dim.n) if isinstance(n, str)]
        if not all(isinstance(self.values.get(name), int) for name in needed):
            return UNKNOWN
        return math.prod(dim.size(self.values) for dim in shape.inner)


def normalise(
    op: Operator,
    given: Mapping[str, Any],
    *,
    site: bool = False,
    varying: Collection[str] = (),
) -> Facts:
    """Brings facts into normal form.

    Args:
        op: the operator.
        given: facts as an engine writes them.
        site: whether scalars that are not named are promised to stay at their defaults.
        varying: scalars that a site gives as step variables, which stay unknown.

    Raises:
        UnknownName: a fact names nothing, or has a value that cannot be; near misses are listed.
    """
    what = f"facts of {op.name} are a mapping from paths to values"
    need_names(given, what, 'write {"hidden": 576, ...}')
    values: dict[str, Any] = {}
    for arg, declared in op.dtypes.items():
        fixed = getattr(torch, declared, None)
        if isinstance(fixed, torch.dtype):
            values[f"{arg}.dtype"] = fixed
        if (rank := op.shapes[arg].rank) is not None:
            values[f"{arg}.rank"] = rank
    if site:
        for name in op.scalars:
            if name not in varying and (default := op.parameters[name].default) is not REQUIRED:
                values[name] = default
    declared_only = {path: v for path, v in values.items() if "." in path}
    for path, value in given.items():
        values.update(_expand(op, path, value))
    for path, fixed in declared_only.items():
        if values[path] != fixed:
            raise _refusal(op, path, values[path], f"it is declared {plain(fixed)}")
    return Facts(op, MappingProxyType(values))


def _expand(op: Operator, path: str, value: Any) -> dict[str, Any]:
    """One written fact as normal ones."""
    if path == "dtype":
        activations = [f"{a}.dtype" for a, d in op.dtypes.items() if d == ACTIVATION]
        return dict.fromkeys(activations, _dtype(op, path, value, ACTIVATION))
    if path == "rank":
        first = f"{op.tensors[0]}.rank"
        return {first: _value(op, first, value)}
    if path == "contiguous":
        names = [op.tensors[0]] if value is True else value
        if not isinstance(names, (list, tuple)) or not all(isinstance(n, str) for n in names):
            raise _refusal(op, path, value, "True, or a list of arguments; facts are positive")
        for name in names:
            _known(op, f"{name}.contiguous")
        return {f"{name}.contiguous": True for name in names}
    _known(op, path)
    return {path: _value(op, path, value)}


def _value(op: Operator, path: str, value: Any) -> Any:
    head, _, attribute = path.partition(".")
    if attribute == "dtype":
        return _dtype(op, path, value, op.dtypes.get(head, ""))
    if attribute == "contiguous":
        if value is not True:
            raise _refusal(op, path, value, "facts are positive: leave it out instead")
        return value
    if attribute in {"rows", "offset_aligned"}:
        if type(value) is not int or value < 1:
            raise _refusal(op, path, value, "a multiple is a positive integer")
        return value
    parameter = op.parameters.get(head)
    if attribute or parameter is None:
        return _size(op, path, value)
    if parameter.kind == "int":
        return _integer(op, path, value)
    if parameter.scalar:
        allowed = op.choices.get(path)
        if allowed and value not in allowed:
            raise _refusal(op, path, value, f"allowed: {', '.join(map(repr, allowed))}")
        return _scalar(op, path, value)
    if value is None and parameter.tensor and not parameter.optional:
        raise _refusal(op, path, value, "that argument is not optional")
    return None if value is None or (isinstance(value, list) and not value) else PRESENT


def _size(op: Operator, path: str, value: Any) -> int | Interval:
    found = _integer(op, path, value)
    low = found.low if isinstance(found, Interval) else found
    if low is not None and low < 0:
        raise _refusal(op, path, value, "a size is not negative")
    return found


def _integer(op: Operator, path: str, value: Any) -> int | Interval:
    if isinstance(value, range):
        if value.step != 1 or not value:
            raise _refusal(op, path, value, "a range has step 1 and is not empty")
        return Interval(value.start, value.stop - 1)
    if type(value) is int or isinstance(value, Interval):
        return value
    raise _refusal(op, path, value, "it is an integer or a range")


def _scalar(op: Operator, path: str, value: Any) -> Any:
    kind = op.parameters[path].kind
    if kind == "dtype":
        return _dtype(op, path, value)
    if kind == "float" and type(value) is int:
        return float(value)
    if type(value).__name__ != kind:
        raise _refusal(op, path, value, f"it is a {kind}")
    return value


def _dtype(op: Operator, path: str, value: Any, variable: str = "") -> torch.dtype:
    found = getattr(torch, value, None) if isinstance(value, str) else value
    if not isinstance(found, torch.dtype):
        raise _refusal(op, path, value, "a dtype is a torch.dtype or its name")
    if variable == ACTIVATION and not op.takes(found):
        raise _refusal(op, path, value, "activations have a floating dtype")
    return found


def _known(op: Operator, path: str) -> None:
    try:
        check_path(op, path, "", out=not op.inplace_only)
    except DeclarationError as error:
        names = [*op.where, *op.parameters, *(f"{t}.dtype" for t in op.tensors), "dtype"]
        msg = f"fact {path!r} is no dim, argument or attribute of {op.name}"
        raise UnknownName(msg, fix=f"use one of {likely(path, names)}") from error


def _refusal(op: Operator, path: str, value: Any, why: str) -> UnknownName:
    return UnknownName(f"fact {path!r} of {op.name} cannot be {value!r}", fix=why)


def plain(value: Any) -> Any:
    """A fact's value for JSON: dtypes by name, ranges as ``[low, high]``."""
    if isinstance(value, torch.dtype):
        return shown(value)
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
            absent = given is None or (isinstance(given, (list, tuple)) and not given)
            return None if absent else PRESENT
        return self._dim(path)

    def _dim(self, path: str) -> Any:
        place = self.operator.where[path]
        tensor = self.arguments.get(place.arg)
        if tensor is None:
            return UNKNOWN
        shape = tensor.shape
        if place.dim.star:
            return math.prod(self.operator.shapes[place.arg].leading(shape))
        return place.dim.solve(shape[place.index], self.arguments)

    def layout(self, arg: str) -> Layout | None:
        """The layout of a tensor of this call."""
        t = self.arguments.get(arg)
        if t is None:
            return None
        return Layout(tuple(t.shape), tuple(t.stride()), t.storage_offset(), t.dtype.itemsize)

    def inner(self, arg: str) -> int:
        """Trailing dims of a declared shape."""
        return self.operator.inner(arg)


def decide(op: Operator, term: Term, view: Facts | Call) -> bool | str | None:
    """Decides a term; what concerns an absent optional tensor holds vacuously.

    A term that cannot be decided (a size that exists only at run time, a vendor's own term that
    raises) is a no with that reason.
    """
    maybe = False
    if not isinstance(term, (Absent, Present)):
        given = [view.value(a) for a in sorted(owners(op, term)) if op.parameters[a].optional]
        if any(value is None for value in given):
            return True
        maybe = any(value is UNKNOWN for value in given)
    try:
        decision = term.decide(view)
        if isinstance(decision, str) or decision is None:
            return None if maybe else decision
        return bool(decision)
    except Exception as error:  # noqa: BLE001  # torch's for unbacked sizes, or a vendor's term
        why = next(iter(str(error).splitlines()), type(error).__name__)
        return f"{term} cannot be decided here: {why}"


def owners(op: Operator, term: Term) -> set[str]:
    """The tensor arguments that a term looks at."""
    heads = {path.partition(".")[0] for path in term.paths}
    dims = heads & (op.where.keys() - op.parameters.keys())
    return heads.intersection(op.tensors) | {op.where[dim].arg for dim in dims}
