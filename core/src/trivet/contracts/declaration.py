"""The declaration of an operator: everything about it, once, in one place.

From a declaration core derives the callable, its forms, allocation, fake rule, guards,
explanation, documentation, test cases and error budget. Adding an operator is one ``def``.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from trivet.contracts.cases import Budget, Cases
from trivet.contracts.dims import Dim, Shape
from trivet.contracts.signature import REQUIRED, Parameter, Signature
from trivet.errors import DeclarationError

ACTIVATION = "T"
"""The dtype variable that the fact ``"dtype"`` means; every undeclared tensor has it."""

_NAME = re.compile(r"([a-z][a-z0-9_]*\.)?[a-z][a-z0-9_]*")

_RESERVED = frozenset(
    {"out", "dtype", "rank", "contiguous", "iter", "len", "next", "tuple", "zip"},
)
"""Words of facts and of generated functions."""

_LOCALS = re.compile(r"f\d+|grad|grad_enabled|prod|has_rows|.*_(shape|stride|dtype)")
"""A guard keeps the dim ``tokens`` in the local ``_tokens``: these locals are taken."""


class Output(NamedTuple):
    """One result: its dims, and the argument (or dtype name) whose dtype it has."""

    shape: Shape
    like: str


@dataclass(frozen=True)
class Where:
    """Where the value of a dim is read: an argument, an index into its shape, and the entry."""

    arg: str
    index: int
    dim: Dim


@dataclass(frozen=True, eq=False)
class Operator:
    """A declared operator; made by the ``operator`` decorator, never by hand.

    ``reference`` is plain PyTorch: the meaning, the fallback and what a compiler sees.
    """

    name: str
    version: int
    reference: Callable[..., Any]
    signature: Signature
    shapes: Mapping[str, Shape]
    dtypes: Mapping[str, str]
    outputs: tuple[Output, ...]
    inplace: Mapping[str, int]
    writes: tuple[str, ...]
    choices: Mapping[str, tuple[str, ...]]
    traceable: bool
    moved: tuple[Output, ...]
    cases: Cases
    budget: Budget
    oracle: Callable[..., Any]
    prepare: Callable[..., list[torch.Tensor]] | None
    source: str
    doc: str
    properties: frozenset[str]
    where: Mapping[str, Where] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<operator {self.name}@{self.version}>"

    @property
    def inplace_only(self) -> bool:
        """Whether it has no functional form (it writes arguments and returns nothing)."""
        return bool(self.writes)

    @cached_property
    def parameters(self) -> Mapping[str, Parameter]:
        """Parameters by name."""
        return MappingProxyType({p.name: p for p in self.signature.parameters})

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        """Names of the tensor parameters, optional ones included, lists excluded."""
        return tuple(p.name for p in self.signature.parameters if p.tensor)

    @cached_property
    def scalars(self) -> tuple[str, ...]:
        """Names of the parameters that are no tensors."""
        return tuple(p.name for p in self.signature.parameters if p.scalar)

    @cached_property
    def integers(self) -> frozenset[str]:
        """Names of the integer parameters."""
        return frozenset(p.name for p in self.signature.parameters if p.kind == "int")

    def is_size(self, path: object) -> bool:
        """Whether a path is a dim or an integer parameter."""
        return path in self.integers or (path in self.where and path not in self.parameters)

    @cached_property
    def stars(self) -> Mapping[str, str]:
        """Dims that stand for any number of leading dims: name -> the argument that has it."""
        return MappingProxyType({n: w.arg for n, w in self.where.items() if w.dim.star})

    @cached_property
    def schema(self) -> str:
        """The torch schema, inferred from the reference at first use."""
        text: str = torch.library.infer_schema(self.reference, mutates_args=self.writes)
        return text

    @cached_property
    def _solved(self) -> tuple[tuple[str, Shape], ...]:
        """Shapes in the order in which dims are solved: a rounded one says the least."""
        rounded = [any(d.form == "ceil" for d in s.dims) for s in self.shapes.values()]
        order = sorted(zip(rounded, self.shapes.items(), strict=True), key=lambda row: row[0])
        return tuple(row for _, row in order)

    def inner(self, arg: str) -> int:
        """How many dims of an argument, or of ``out``, follow the star."""
        return len((self.outputs[0].shape if arg == "out" else self.shapes[arg]).inner)

    def takes(self, dtype: torch.dtype) -> bool:
        """Whether activations may have a dtype: a floating one; what copies (``exact``), any."""
        return dtype.is_floating_point or self.budget.kind == "exact"

    def written(self, form: str) -> tuple[str, ...]:
        """The arguments that a form writes."""
        if form == "inplace":
            return self.writes or tuple(self.inplace)
        return ("out",) if form == "out" else self.writes

    def dims(self, arguments: Mapping[str, Any]) -> dict[str, int]:
        """The values of all dims of a call.

        Raises:
            DeclarationError: two arguments give one dim different values; the text names both.
        """
        values: dict[str, int] = {n: arguments[n] for n in self.integers if n in arguments}
        found: dict[str, str] = {}
        for arg, shape in self._solved:
            tensor = arguments.get(arg)
            if tensor is not None:
                self._match(arg, shape, tuple(tensor.shape), values, found)
        return {n: values[n] for n in self.where if n in values}

    def _match(
        self,
        arg: str,
        shape: Shape,
        real: tuple[int, ...],
        values: dict[str, int],
        found: dict[str, str],
    ) -> None:
        if len(real) < len(shape.inner) or (not shape.star and len(real) != len(shape.dims)):
            msg = f"{self.name}: {arg} has shape {list(real)}, declared {shape.text!r}"
            raise DeclarationError(msg)
        for position, dim in enumerate(shape.dims):
            size = math.prod(shape.leading(real)) if dim.star else real[shape.index(position)]
            if dim.name not in values and dim.solvable:
                values[dim.name], found[dim.name] = dim.solve(size, values), arg
            if dim.name not in values:
                continue  # only an absent tensor would give it
            if dim.size(values) != size:
                msg = (
                    f"{self.name}: {dim.text!r} of {arg} is {size}, but "
                    f"{found.get(dim.name, 'the argument')} gives {dim.name} = {values[dim.name]}"
                )
                raise DeclarationError(msg)

    def result_meta(
        self, arguments: Mapping[str, Any]
    ) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of each result of a call; results are contiguous."""
        return list(self._metas(self.outputs, arguments))

    def bytes_moved(self, arguments: Mapping[str, Any]) -> int:
        """Bytes that a call must at least read and write, from the declared data."""
        metas = self._metas(self.moved, arguments)
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in metas)

    def _metas(
        self, rows: Iterable[Output], arguments: Mapping[str, Any]
    ) -> Iterator[tuple[tuple[int, ...], torch.dtype]]:
        values = {**arguments, **self.dims(arguments)}
        for declared, name in rows:
            like = arguments.get(name)
            if name in self.parameters and like is None:
                continue
            shape: list[int] = []
            for dim in declared.dims:
                if dim.star:
                    arg = self.stars[dim.name]
                    shape.extend(self.shapes[arg].leading(arguments[arg].shape))
                else:
                    shape.append(dim.size(values))
            yield tuple(shape), like.dtype if like is not None else getattr(torch, name)


def operator(  # one keyword a fact
    *,
    version: int = 1,
    shapes: Mapping[str, str],
    returns: Sequence[tuple[str, str]] = (),
    dtypes: Mapping[str, str] | None = None,
    inplace: Mapping[str, int] | None = None,
    writes: Sequence[str] = (),
    choices: Mapping[str, Sequence[str]] | None = None,
    traceable: bool = True,
    moved: Sequence[tuple[str, str]] | None = None,
    cases: Cases,
    budget: Budget | None = None,
    oracle: Callable[..., Any],
    prepare: Callable[..., list[torch.Tensor]] | None = None,
    properties: Iterable[str] = ("deterministic",),
    name: str = "",
) -> Callable[[Callable[..., Any]], Operator]:
    """Declares the decorated function as the reference of an operator of its name.

    Args:
        version: raised on any change of meaning, names, order or defaults.
        shapes: shape text of each tensor argument; its names are the vocabulary of facts.
        returns: for each result, its dims and whose dtype it has (argument or dtype name).
        dtypes: dtype variable or dtype name of a tensor; undeclared means the activations',
            which is floating point unless the budget is ``exact``.
        inplace: for the in-place form, which argument is overwritten by which result.
        writes: arguments that are always written; such an operator returns nothing.
        choices: allowed values of each ``str`` argument.
        traceable: whether the reference runs on fake tensors (no data-dependent Python).
        moved: (dims, dtype source) of memory traffic; by default each tensor once.
        cases: sizes, scalars and input generator for tests.
        budget: how far a result may be from the fp64 oracle.
        oracle: a second, independent formula with the same signature.
        prepare: for operators on packs, how the reference packs a weight.
        properties: what the reference itself guarantees.
        name: namespaced name of a plugin's operator (``"acme.foo"``).

    Raises:
        DeclarationError: the declaration contradicts itself; the text says where.
    """

    def declare(function: Callable[..., Any]) -> Operator:
        signature = Signature.of(function)
        parsed = {a: Shape.parse(t) for a, t in shapes.items()}
        outputs = tuple(Output(Shape.parse(t), like) for t, like in returns)
        tensors = [p.name for p in signature.parameters if p.tensor]
        default_moved = [(s.text, a) for a, s in parsed.items()] + list(returns)
        declared = Operator(
            name=name or function.__name__,
            version=version,
            reference=function,
            signature=signature,
            shapes=MappingProxyType(parsed),
            dtypes=MappingProxyType({t: (dtypes or {}).get(t, ACTIVATION) for t in tensors}),
            outputs=outputs,
            inplace=MappingProxyType(dict(inplace or {})),
            writes=tuple(writes),
            choices=MappingProxyType({k: tuple(v) for k, v in (choices or {}).items()}),
            traceable=traceable,
            moved=tuple(Output(Shape.parse(t), like) for t, like in moved or default_moved),
            cases=cases,
            budget=budget or Budget(),
            oracle=oracle,
            prepare=prepare,
            source=f"{function.__module__}:{function.__code__.co_firstlineno}",
            doc=(function.__doc__ or "").strip(),
            properties=frozenset(properties),
            where=MappingProxyType(_where(signature, parsed)),
        )
        _check(declared)
        return declared

    return declare


def _where(signature: Signature, shapes: Mapping[str, Shape]) -> dict[str, Where]:
    """The first place of each dim, plain entries and present arguments before others."""
    optional = {p.name for p in signature.parameters if p.optional}
    ranked: list[tuple[int, str, Where]] = []
    for arg, shape in shapes.items():
        for position, dim in enumerate(shape.dims):
            if dim.form == "ceil":
                continue
            rank = 2 * (arg in optional) + (dim.form not in ("plain", "star"))
            ranked.append((rank, dim.name, Where(arg, shape.index(position), dim)))
    found: dict[str, Where] = {}
    for _, dim_name, place in sorted(ranked, key=lambda r: r[0]):
        found.setdefault(dim_name, place)
    return found


def _check(op: Operator) -> None:
    """Refuses a declaration that contradicts itself."""
    for problem in itertools.chain(_names(op), _dims(op), _effects(op)):
        msg = f"operator {op.name!r} ({op.source}): {problem}"
        raise DeclarationError(msg)


def _names(op: Operator) -> Iterator[str]:
    if not _NAME.fullmatch(op.name) or op.name.endswith(("_", "_out")):
        yield "a name is lower_snake_case and ends neither in '_' nor in '_out'"
    for name in op.parameters:
        if name.startswith("_") or name in _RESERVED:
            yield f"a parameter may not be called {name!r}"
    if not op.tensors:
        yield "it has no tensor argument"
    if unknown := (set(op.shapes) | set(op.dtypes)) - set(op.tensors):
        yield f"{sorted(unknown)} are no tensor arguments"
    if missing := set(op.tensors) - set(op.shapes):
        yield f"tensor arguments {sorted(missing)} have no shape"
    if not op.doc:
        yield "the reference has no docstring"
    strings = {p.name for p in op.signature.parameters if p.kind == "str"}
    if strings != set(op.choices):
        yield f"str arguments {sorted(strings)} and choices {sorted(op.choices)} differ"
    for name, allowed in op.choices.items():
        default = op.parameters[name].default
        if default is not REQUIRED and default not in allowed:
            yield f"default {default!r} of {name!r} is no declared choice"


def _dims(op: Operator) -> Iterator[str]:
    if clash := set(op.where) & (set(op.parameters) - op.integers):
        yield f"{sorted(clash)} name both a dim and an argument that is no int"
    for name in op.where:
        dtype = str(getattr(torch, name, "")) == f"torch.{name}"
        if name in _RESERVED or _LOCALS.fullmatch(name) or dtype:
            yield f"a dim may not be called {name!r}"
    for arg, shape in op.shapes.items():
        for dim in shape.dims:
            if not op.is_size(dim.name):
                yield f"dim {dim.text!r} of {arg!r} cannot be solved from any size"
    every = [(f"result {i}", *output) for i, output in enumerate(op.outputs)]
    every += [("moved", *moved) for moved in op.moved]
    for what, shape, like in every:
        known = op.parameters.get(like)
        if not isinstance(getattr(torch, like, None), torch.dtype) and not (known and known.tensor):
            yield f"{what} is like {like!r}: no tensor argument and no dtype"
        for dim in shape.dims:
            if not op.is_size(dim.name):
                yield f"{what} has dim {dim.text!r}, which no argument gives"
    for dim in (d for s in (*op.shapes.values(), *(e[1] for e in every)) for d in s.dims):
        if isinstance(dim.n, str) and dim.n not in op.integers:
            yield f"dim {dim.text!r}: {dim.n!r} is no int argument"


def _effects(op: Operator) -> Iterator[str]:
    returns_nothing = op.signature.packing == "none"
    if bool(op.writes) != returns_nothing or bool(op.outputs) == returns_nothing:
        yield "it either returns results (returns=) or writes arguments (writes=)"
    if op.signature.packing == "one" and len(op.outputs) != 1:
        yield f"it returns one tensor, {len(op.outputs)} results are declared"
    if unknown := set(op.writes) - set(op.tensors):
        yield f"writes {sorted(unknown)} are no tensor arguments"
    for arg, position in op.inplace.items():
        if arg not in op.tensors or not 0 <= position < len(op.outputs):
            yield f"inplace {arg!r} -> {position} names no argument or no result"
        elif (op.shapes[arg], arg) != op.outputs[position]:
            yield f"inplace {arg!r} -> {position}: the result has another shape or dtype"
    if op.inplace and sorted(op.inplace.values()) != list(range(len(op.outputs))):
        yield "inplace covers each result exactly once"
