"""Checks of one call against declaration and promises: the one home of this logic.

``Watch`` looks at the arguments before a call and judges the call afterwards. It is used under
``TRIVET_CHECK=1``, where large arguments are sampled, and by the conformance kit, which compares
every element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from trivet.contracts.declaration import ACTIVATION, Operator
from trivet.contracts.signature import REQUIRED, Parameter
from trivet.contracts.terms import UNKNOWN, Interval, Term, has_rows
from trivet.contracts.terms.layout import Contiguous, OffsetAligned, Rows
from trivet.contracts.terms.term import shown
from trivet.errors import (
    ContractBroken,
    DeclarationError,
    DomainError,
    GradUnsupported,
    PromiseBroken,
)
from trivet.selection.choose import Arm
from trivet.selection.facts import Call, Facts, decide

SAMPLED_ROWS: Final = 64
SMALL_ELEMENTS: Final = 1 << 16

_random = torch.Generator()
"""Our own, so that checking changes no random number of the program."""


_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "Tensor": (Tensor,),
    "Tensor?": (Tensor, type(None)),
    "int": (int, torch.SymInt),
    "float": (float, int, torch.SymFloat),
    "bool": (bool,),
    "str": (str,),
    "dtype": (torch.dtype,),
}


_LAYOUTS: Final[Mapping[str, Callable[[str, Any], Term]]] = {
    "contiguous": lambda arg, _: Contiguous(arg),
    "rows": Rows,
    "offset_aligned": OffsetAligned,
}


class Watch:
    """One call under watch.

    Args:
        op: the operator.
        form: the form that is called.
        who: the provider, for the messages.
        arguments: the call's arguments by name (with ``out`` for the out form).
        sample: whether large arguments are compared by head, tail and random rows only.
    """

    def __init__(
        self, op: Operator, form: str, who: str, arguments: Mapping[str, Any], *, sample: bool
    ) -> None:
        self.op = op
        self.form = form
        self.who = who
        self.arguments = arguments
        written = set(op.written(form))
        self.read = {n: t for n, t in _tensors(arguments) if n.partition("[")[0] not in written}
        self.rows = {n: _rows(t, sample=sample) for n, t in self.read.items()}
        self.before = {n: _sample(t, self.rows[n]) for n, t in self.read.items()}

    def judge(self, result: object) -> Iterator[ContractBroken]:
        """Every way in which the call broke the contract."""
        yield from self._mutations()
        results = _results(result)
        if self.form != "functional" or self.op.inplace_only:
            if result is not None:
                yield self._broken("meta", f"returned {type(result).__name__}, not None")
            return
        yield from self._meta(result, results)
        yield from self._aliases(results)

    def _mutations(self) -> Iterator[ContractBroken]:
        for name, tensor in self.read.items():
            if not _same(_sample(tensor, self.rows[name]), self.before[name]):
                yield self._broken("mutation", f"changed its input {name!r}")

    def _meta(self, result: object, results: Sequence[Any]) -> Iterator[ContractBroken]:
        packing = {"one": Tensor, "tuple": tuple, "list": list}[self.op.signature.packing]
        if not isinstance(result, packing):
            name = type(result).__name__
            yield self._broken("meta", f"returned a {name}, not a {packing.__name__}")
            return
        expected = self.op.result_meta(self.arguments)
        if len(results) != len(expected):
            yield self._broken("meta", f"returned {len(results)} results, not {len(expected)}")
            return
        device = next(t.device for _, t in _tensors(self.arguments))
        for i, (got, (shape, dtype)) in enumerate(zip(results, expected, strict=True)):
            if type(got) is not Tensor:
                yield self._broken("meta", f"result {i} is a {type(got).__name__}, no plain Tensor")
            elif tuple(got.shape) != shape or got.dtype != dtype:
                have = f"{shown(got.dtype)}{list(got.shape)}"
                yield self._broken("meta", f"result {i} is {have}, not {shown(dtype)}{list(shape)}")
            elif not got.is_contiguous():
                yield self._broken("meta", f"result {i} has strides {got.stride()}: not contiguous")
            elif got.device != device:
                yield self._broken("meta", f"result {i} is on {got.device}, not {device}")

    def _aliases(self, results: Sequence[Any]) -> Iterator[ContractBroken]:
        inputs = [(n, t) for n, t in _tensors(self.arguments) if _plain(t)]
        for i, got in enumerate(results):
            if not isinstance(got, Tensor) or not _plain(got) or not got.numel():
                continue
            others = [(f"result {j}", r) for j, r in enumerate(results[:i]) if _plain(r)]
            for name, other in [*inputs, *others]:
                if other.numel() and _storage(other) == _storage(got):
                    yield self._broken("alias", f"result {i} shares memory with {name}")

    def _broken(self, kind: str, problem: str) -> ContractBroken:
        fix = f"tell who makes {self.who.partition('/')[0]!r}"
        return ContractBroken(f"{self.op.name} ({self.who}): {problem}", kind=kind, fix=fix)


def check_inputs(op: Operator, form: str, arguments: Mapping[str, Any], who: str = "") -> None:
    """Refuses arguments that no implementation may be given.

    Args:
        op: the operator.
        form: the form that is called.
        arguments: every argument by name (with ``out`` for the out form).
        who: the provider that would be called, for the messages.

    Raises:
        DomainError: an argument is of another type, dims contradict, a fixed dtype is wrong,
            activations are not floating, or a written argument overlaps another, has a stride-0
            dim, or does not collapse.
    """
    for problem in _wrong(op, form, arguments):
        msg = f"{op.name}{f' ({who})' if who else ''}: {problem}"
        raise DomainError(msg, operator=op.name)


def _wrong(op: Operator, form: str, arguments: Mapping[str, Any]) -> Iterator[str]:
    for p in op.signature.parameters:
        if not _fits(p, arguments.get(p.name, REQUIRED)):
            given = arguments.get(p.name, REQUIRED)
            have = "missing" if given is REQUIRED else f"a {type(given).__name__}"
            yield f"argument {p.name!r} is {have}, declared {p.kind}"
    try:
        op.dims(arguments)
    except DeclarationError as error:
        yield error.what.removeprefix(f"{op.name}: ")
    for arg, declared in op.dtypes.items():
        fixed, given = getattr(torch, declared, None), arguments.get(arg)
        if given is not None and isinstance(fixed, torch.dtype) and given.dtype != fixed:
            yield f"{arg} is {shown(given.dtype)}, declared {declared}"
        if given is not None and declared == ACTIVATION and not op.takes(given.dtype):
            yield f"{arg} is {shown(given.dtype)}, declared floating"
    kinds: dict[str, tuple[str, torch.dtype]] = {}
    for arg, declared in op.dtypes.items():
        if (given := arguments.get(arg)) is not None and not hasattr(torch, declared):
            first, dtype = kinds.setdefault(declared, (arg, given.dtype))
            if dtype != given.dtype:
                have = f"{arg} is {shown(given.dtype)}, {first} is {shown(dtype)}"
                yield f"{have}; both are {declared}"
    for choice, allowed in op.choices.items():
        if arguments[choice] not in allowed:
            yield f"{choice}={arguments[choice]!r}, declared {', '.join(allowed)}"
    if form == "out":
        yield from _wrong_out(op, arguments)
    for name, tensor in _tensors(arguments):
        if name.partition("[")[0] in op.written(form):
            yield from _wrong_written(op, name, tensor, arguments)


def _fits(parameter: Parameter, value: object) -> bool:
    if parameter.kind == "Tensor[]":
        return isinstance(value, (list, tuple)) and all(isinstance(t, Tensor) for t in value)
    if parameter.kind != "bool" and isinstance(value, bool):
        return False
    return isinstance(value, _TYPES[parameter.kind])


def _wrong_out(op: Operator, arguments: Mapping[str, Any]) -> Iterator[str]:
    """How ``out`` differs from the results that the call has."""
    out, expected = _results(arguments.get("out")), op.result_meta(arguments)
    if len(out) != len(expected):
        yield f"out holds {len(out)} tensors, the call has {len(expected)} results"
    for i, (got, (shape, dtype)) in enumerate(zip(out, expected, strict=False)):
        name = "out" if op.signature.packing == "one" else f"out[{i}]"
        if not isinstance(got, Tensor):
            yield f"{name!r} is a {type(got).__name__}, not a tensor"
        elif tuple(got.shape) != shape or got.dtype != dtype:
            have = f"{shown(got.dtype)}{list(got.shape)}"
            yield f"{name!r} is {have}, the result is {shown(dtype)}{list(shape)}"


def _wrong_written(
    op: Operator, name: str, tensor: Tensor, arguments: Mapping[str, Any]
) -> Iterator[str]:
    if any(s == 0 and n > 1 for s, n in zip(tensor.stride(), tensor.shape, strict=True)):
        yield f"written argument {name!r} has a dim of stride 0"
    position = int(name[4:-1]) if name.startswith("out[") else 0
    shape = op.shapes[name] if name in op.shapes else op.outputs[position].shape
    rows = has_rows(tuple(tensor.shape), tensor.stride(), len(shape.inner), 1)
    if shape.star and not rows:
        yield f"the leading dims of written argument {name!r} do not collapse"
    for other, t in _tensors(arguments):
        if other != name and _overlap(tensor, t):
            yield f"written argument {name!r} overlaps {other!r}"


def check_promises(
    facts: Facts, decided: Mapping[Term, bool], who: str, arguments: Mapping[str, Any]
) -> None:
    """Compares a call with the facts and step terms under which it was bound.

    Raises:
        PromiseBroken: the first fact that is not true of this call.
    """
    op = facts.operator
    call = Call(op, arguments)
    for path, promised in facts.values.items():
        if (problem := _unkept(call, path, promised)) is not None:
            msg = f"{op.name} ({who}): promised {path} = {promised}, got {problem}"
            raise PromiseBroken(
                msg, operator=op.name, fix="bind that call site with facts that hold for it"
            )
    for term, expected in decided.items():
        found = decide(op, term, call)
        if (found is True) != expected:
            msg = f"{op.name} ({who}): this step promised {term} to be {expected}, it is {found}"
            raise PromiseBroken(
                msg, operator=op.name, fix="pass the sizes of this call to plan.at(...)"
            )


def _unkept(call: Call, path: str, promised: Any) -> object | None:
    """What a call has instead of what was promised; None when the promise is kept."""
    head, _, attribute = path.partition(".")
    if attribute and call.arguments.get(head) is None:
        return None
    if attribute in _LAYOUTS:
        told = _LAYOUTS[attribute](head, promised).decide(call)
        return told.rpartition(": ")[2] if isinstance(told, str) else None
    got = call.value(path)
    if got is UNKNOWN:  # a dim that only an absent tensor has
        return None
    if isinstance(promised, Interval):
        low, high = promised.low, promised.high
        ok = (low is None or got >= low) and (high is None or got <= high)
    else:
        ok = got is promised or got == promised
    return None if ok else (got if got is not None else "nothing")


def checked(
    arm: Arm, form: str, facts: Facts, decided: Mapping[Term, bool], site: str
) -> Callable[..., Any]:
    """An arm's function with every check around it (``TRIVET_CHECK=1``)."""
    op, function = arm.implementation.operator, arm.function
    # a bind outside a plan has the operator's name for a site
    who = arm.provider if site.startswith(op.name) else f"{arm.provider}, site {site!r}"
    names = op.signature.names()
    defaults = {p.name: p.default for p in op.signature.parameters}

    def watched(*args: Any, **kwargs: Any) -> Any:
        arguments = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
        check_inputs(op, form, arguments, who)
        check_promises(facts, decided, who, arguments)
        needs = [n for n, t in _tensors(arguments) if t.requires_grad]
        if needs and torch.is_grad_enabled() and not arm.implementation.is_reference:
            msg = f"{op.name} ({who}) is forward only, and {needs[0]!r} requires grad"
            raise GradUnsupported(msg, fix="call it under torch.no_grad()")
        watch = Watch(op, form, who, arguments, sample=True)
        result = function(*args, **kwargs)
        for problem in watch.judge(result):
            raise problem
        return result

    watched.__name__ = function.__name__
    return watched


def _tensors(arguments: Mapping[str, Any]) -> list[tuple[str, Tensor]]:
    found = []
    for name, value in arguments.items():
        if isinstance(value, Tensor):
            found.append((name, value))
        elif isinstance(value, (list, tuple)):
            found += [(f"{name}[{i}]", t) for i, t in enumerate(value) if isinstance(t, Tensor)]
    return found


def _results(result: object) -> list[Any]:
    return list(result) if isinstance(result, (list, tuple)) else [result]


def _plain(t: object) -> bool:
    return isinstance(t, Tensor) and t.layout is torch.strided


def _storage(t: Tensor) -> int:
    return t.untyped_storage().data_ptr()


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors share an element; views side by side (a packed qkv) share none."""
    if not (_plain(a) and _plain(b) and a.numel() and b.numel()) or _storage(a) != _storage(b):
        return False
    (first_a, last_a), (first_b, last_b) = _extent(a), _extent(b)
    size = a.dtype.itemsize
    if last_a * size <= first_b * b.dtype.itemsize or last_b * b.dtype.itemsize <= first_a * size:
        return False
    if size != b.dtype.itemsize:
        return True
    start = min(first_a, first_b)
    base = torch.zeros(max(last_a, last_b) - start, dtype=torch.bool, device="cpu")
    torch.as_strided(base, a.shape, a.stride(), first_a - start).fill_(True)
    return bool(torch.as_strided(base, b.shape, b.stride(), first_b - start).any())


def _extent(t: Tensor) -> tuple[int, int]:
    """The first element of a tensor in its storage, and the one after its last."""
    first = t.storage_offset()
    steps = zip(t.shape, t.stride(), strict=True)
    return int(first), int(first + sum((size - 1) * stride for size, stride in steps) + 1)


def _rows(t: Tensor, *, sample: bool) -> Tensor | None:
    """Which rows of a large tensor are compared; None means everything."""
    if not sample or t.dim() == 0 or t.numel() <= SMALL_ELEMENTS:
        return None
    drawn = torch.randint(0, t.shape[0], (SAMPLED_ROWS,), generator=_random, device="cpu")
    ends = torch.tensor([0, t.shape[0] - 1], device="cpu")
    rows: Tensor = torch.unique(torch.cat((ends, drawn)))
    return rows.to(t.device)


def _sample(t: Tensor, rows: Tensor | None) -> Tensor | None:
    if not _plain(t):
        return None
    seen = t.detach() if rows is None else t.detach().index_select(0, rows)
    return seen.clone()


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    """Bitwise equality, so that NaN equals itself and -0 differs from 0."""
    if a is None or b is None:
        return True
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    a, b = (t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
    return torch.equal(a, b)
