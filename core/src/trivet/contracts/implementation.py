"""How a vendor marks a function as an implementation, and how core verifies the mark."""

from __future__ import annotations

import hashlib
import json
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from trivet.contracts.declaration import Operator
from trivet.contracts.device_info import DeviceInfo
from trivet.contracts.signature import drift
from trivet.contracts.terms import Term
from trivet.errors import DeclarationError, SignatureDrift
from trivet.settings import near_misses

F = TypeVar("F", bound=Callable[..., Any])

PROPERTIES = ("graph_safe", "deterministic", "batch_invariant", "stream_ordered")
"""Claims that the kit tests; each is a keyword of ``implements``."""

_ATTRIBUTES = ("dtype", "rank", "contiguous", "rows", "offset_aligned")
_VERSION = re.compile(r"[0-9]{1,9}")
_PROVIDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Requirement:
    """A condition on the device, settled when the plugin is loaded."""

    kind: str
    name: str

    def unmet(self, info: DeviceInfo) -> str:
        """The reason why a device does not meet it; empty when it does."""
        have: Iterable[str] = {
            "device": (info.kind, info.torch_type),
            "arch": info.arch,
            "feature": info.features,
        }[self.kind]
        return "" if self.name in have else f"{self.kind} {self.name!r} is not here"


def device(name: str) -> Requirement:
    """Requires a device kind (``"cpu"``) or the type of its ``torch.device``."""
    return Requirement("device", name)


def arch(name: str) -> Requirement:
    """Requires an architecture that ``DeviceInfo.arch`` lists."""
    return Requirement("arch", name)


def feature(name: str) -> Requirement:
    """Requires a feature that ``DeviceInfo.features`` lists."""
    return Requirement("feature", name)


@dataclass(frozen=True, eq=False)
class Claim:
    """What ``implements`` records on a function; nothing of it is verified yet."""

    target: str
    name: str
    function: Callable[..., Any]
    domain: tuple[Term, ...]
    requires: tuple[Requirement, ...]
    sources: tuple[str, ...]
    properties: frozenset[str]
    accumulates_in: str
    checks: bool
    fuses: tuple[str, ...]
    prepare: Callable[..., Any] | None
    unpack: Callable[..., Any] | None
    opaque: bool
    prepare_step: Callable[..., Any] | None
    workspace_bytes: str


def implements(
    target: str,
    *,
    name: str,
    domain: Sequence[Term] = (),
    requires: Sequence[Requirement] = (),
    sources: Sequence[str] = (),
    graph_safe: bool = False,
    deterministic: bool = False,
    batch_invariant: bool = False,
    stream_ordered: bool = True,
    accumulates_in: str = "float32",
    checks: bool = True,
    fuses: Sequence[str] = (),
    prepare: Callable[..., Any] | None = None,
    unpack: Callable[..., Any] | None = None,
    opaque: bool = False,
    prepare_step: Callable[..., Any] | None = None,
    workspace_bytes: str = "",
) -> Callable[[F], F]:
    """Records that a module-level function implements an operator; returns that very function.

    Args:
        target: operator with form and version: ``"rms_norm@1"``, ``"rms_norm_@1"`` (in place),
            ``"rms_norm_out@1"``.
        name: name of the implementation within its plugin; with the plugin's it makes the
            provider id ``plugin/name``.
        domain: the conjunction of terms under which it is right; alternatives are several
            implementations.
        requires: conditions on the device.
        sources: every source or binary file it is made of, relative to the function's module.
        graph_safe: it may be captured into a device graph.
        deterministic: equal inputs give bitwise equal results, run after run.
        batch_invariant: a row's result does not depend on the other rows.
        stream_ordered: it works on the current stream of its first tensor's device.
        accumulates_in: name of the dtype in which it accumulates.
        checks: it checks dtype, rank and stride itself; False for pointer-level kernels.
        fuses: operators whose composition this one equals.
        prepare: ``prepare(facts, weight, bias) -> list[Tensor]`` packs a weight.
        unpack: ``unpack(packed) -> weight``, bit-exact.
        opaque: torch cannot save, copy or offload its packs.
        prepare_step: ``prepare_step(facts, block_table, query_start, seq_lens, max_query_len,
            max_seq_len, out=None) -> list[Tensor]`` makes this step's schedule.
        workspace_bytes: expression over dims for ``trivet.workspace``.
    """
    claimed = {
        "graph_safe": graph_safe,
        "deterministic": deterministic,
        "batch_invariant": batch_invariant,
        "stream_ordered": stream_ordered,
    }

    words = {"domain": domain, "requires": requires, "sources": sources, "fuses": fuses}
    for word, given in words.items():
        if not isinstance(given, (list, tuple)):
            msg = f"implements({target!r}, name={name!r}): {word} is {given!r}, not a list"
            raise DeclarationError(msg, fix=f"{word}=[...]")
    for word, text in {"target": target, "name": name}.items():
        if not _is_text(text):
            msg = f"implements({target!r}, name={name!r}): {word} is {text!r}, no text"
            raise DeclarationError(msg, fix='implements("rms_norm@1", name="vec")')

    def record(function: F) -> F:
        claim = Claim(
            target=target,
            name=name,
            function=function,
            domain=tuple(domain),
            requires=tuple(requires),
            sources=tuple(sources),
            properties=frozenset(p for p, on in claimed.items() if on),
            accumulates_in=accumulates_in,
            checks=checks,
            fuses=tuple(fuses),
            prepare=prepare,
            unpack=unpack,
            opaque=opaque,
            prepare_step=prepare_step,
            workspace_bytes=workspace_bytes,
        )
        function.__trivet__ = (*claims_of(function), claim)  # type: ignore[attr-defined]
        return function

    return record


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def claims_of(function: object) -> tuple[Claim, ...]:
    """The claims recorded on a function, in order of decoration from the bottom up."""
    found = getattr(function, "__trivet__", ())
    return tuple(c for c in found if isinstance(c, Claim)) if isinstance(found, tuple) else ()


@dataclass(frozen=True, eq=False)
class Implementation:
    """A verified claim: ``provider`` supplies ``form`` of ``operator``."""

    provider: str
    operator: Operator
    form: str
    claim: Claim

    @property
    def function(self) -> Callable[..., Any]:
        """The vendor's own function."""
        return self.claim.function

    @property
    def domain(self) -> tuple[Term, ...]:
        """The terms under which it may be chosen."""
        return self.claim.domain

    @property
    def is_reference(self) -> bool:
        """Whether this is core's reference."""
        return self.provider == REFERENCE

    @cached_property
    def digest(self) -> str:
        """Sixteen hex digits over the contract and every file it is made of."""
        terms = [t.to_json() for t in self.domain]
        head = [self.operator.name, self.operator.version, self.form, self.claim.name, terms]
        total = hashlib.sha256(json.dumps(head, default=str).encode())
        for path in _files(self.claim):
            total.update(path.read_bytes())
        return total.hexdigest()[:16]

    def __repr__(self) -> str:
        return f"<{self.provider} for {self.operator.name} {self.form}>"


REFERENCE = "reference"


def reference(operator: Operator) -> Implementation:
    """Core's own reference as an implementation that accepts everything."""
    properties = {*operator.properties, "stream_ordered"}
    properties |= {"graph_safe"} if operator.traceable else set()
    home = Path(operator.reference.__code__.co_filename).parent
    claim = Claim(
        target=operator.name,
        name=REFERENCE,
        function=operator.reference,
        domain=(),
        requires=(),
        sources=tuple(sorted(p.name for p in home.glob("_*.py"))),  # what references share
        properties=frozenset(properties),
        accumulates_in="float32",
        checks=True,
        fuses=(),
        prepare=operator.prepare,
        unpack=None,
        opaque=False,
        prepare_step=None,
        workspace_bytes="",
    )
    form = "inplace" if operator.inplace_only else "functional"
    return Implementation(REFERENCE, operator, form, claim)


def split_target(target: str, known: Mapping[str, Operator]) -> tuple[str, str, int | None]:
    """Splits ``"rms_norm_out@1"`` into operator name, form and version (None when not given)."""
    full, at, version = target.partition("@")
    number = int(version) if _VERSION.fullmatch(version) else (-1 if at else None)
    if full in known:
        return full, "inplace" if known[full].inplace_only else "functional", number
    for suffix, form in (("_out", "out"), ("_", "inplace")):
        base = full.removesuffix(suffix)
        if base != full and base in known:
            return base, form, number
    return full, "", number


def verify(claim: Claim, plugin: str, known: Mapping[str, Operator]) -> Implementation:
    """Checks a claim against the operators; each refusal says where its function is.

    Raises:
        DeclarationError: unknown operator, form or domain name; not a module-level function;
            a source file that does not exist.
        SignatureDrift: parameter names, order, defaults or the version differ.
    """
    who = f"{plugin}/{claim.name} for {claim.target!r}{where_defined(claim.function)}"
    base, form, version = split_target(claim.target, known)
    op = known.get(base)
    if op is None:
        msg = f"{who}: no operator {base!r} in this trivet"
        raise DeclarationError(msg, fix=f"{_meant(base, known)}install a trivet that has it")
    if version != op.version:
        given = claim.target.partition("@")[2] or "missing"
        msg = f"{who}: version {given}, operator has @{op.version}"
        raise SignatureDrift(msg, fix=f"port it to {op.name}@{op.version}")
    if problem := missing_form(op, form):
        msg = f"{who}: {problem}"
        raise DeclarationError(msg)
    if not _PROVIDER_NAME.fullmatch(claim.name):
        msg = f"{who}: {claim.name!r} is no name for an order list"
        raise DeclarationError(msg, fix="letters, digits, '_', '-' and '.'")
    function = claim.function
    if not isinstance(function, types.FunctionType) or not function.__qualname__.isidentifier():
        msg = f"{who}: {function!r} is not a module-level def"
        raise DeclarationError(msg, fix="move it to module level; no lambda, partial or method")
    if problem := drift(function, op.signature, out=form == "out"):
        msg = f"{who}: {problem}"
        raise SignatureDrift(
            msg, fix=f"def {function.__name__}({op.signature.text(out=form == 'out')})"
        )
    for term in claim.domain:
        for path in term.paths:
            check_path(op, path, f"{who}: {term}", out=form == "out")
            _check_subject(op, term, path, who)
    for file in _files(claim):
        if not file.is_file():
            msg = f"{who}: source {file} does not exist"
            raise DeclarationError(msg)
    return Implementation(f"{plugin}/{claim.name}", op, form, claim)


def check_path(op: Operator, path: str, who: str, *, out: bool = False) -> None:
    """Refuses a path that names no dim, argument or attribute of the operator.

    Raises:
        DeclarationError: with the names that would be right.
    """
    head, dot, attribute = path.partition(".")
    tensors = (*op.tensors, "out") if out and op.signature.packing == "one" else op.tensors
    lists = [p.name for p in op.signature.parameters if p.kind == "Tensor[]"]
    if dot:
        if head in tensors and attribute in _ATTRIBUTES:
            return
    elif head in op.where or head in op.parameters or head in tensors or head in lists:
        return
    msg = f"{who}: {path!r} is no dim, argument or attribute of {op.name}"
    names = [*op.where, *op.parameters, *(f"{t}.{a}" for t in tensors[:1] for a in _ATTRIBUTES)]
    raise DeclarationError(msg, fix=f"use one of {', '.join(names)}")


def missing_form(op: Operator, form: str) -> str:
    """Why an operator has no such form; empty when it has."""
    if form == "inplace" and not op.written("inplace"):
        return f"{op.name} has no in-place form"
    if form != "inplace" and op.inplace_only:
        return f"{op.name} has no {form} form, it writes its arguments"
    return ""


def _check_subject(op: Operator, term: Term, path: str, who: str) -> None:
    """Refuses a term whose path is of a kind that the term cannot speak about."""
    head, _, attribute = path.partition(".")
    parameter = op.parameters.get(head)
    dim = parameter is None and head in op.where
    scalar = parameter is not None and parameter.scalar
    integer = parameter is not None and parameter.kind == "int"
    size = attribute == "rank" or (not attribute and (dim or integer))
    fits = {
        "tensor": not attribute and not dim and not scalar and head in (*op.tensors, "out"),
        "optional": parameter is not None and (parameter.optional or parameter.kind == "Tensor[]"),
        "size": size,
        "value": size or attribute == "dtype" or scalar,
        "": True,
    }
    if not fits[term.about]:
        wanted = {"tensor": "a tensor", "optional": "an optional tensor or a list of tensors"}
        msg = f"{who}: {term}: {path!r} is not {wanted.get(term.about, 'a dim or a scalar')}"
        raise DeclarationError(msg)


def _files(claim: Claim) -> list[Path]:
    code = Path(claim.function.__code__.co_filename)
    own = [code] if code.is_file() else []
    return own + [code.parent / s for s in claim.sources]


def where_defined(function: object) -> str:
    """File and line of a function in parentheses, also of one inside another object; or nothing."""
    inner = getattr(function, "func", getattr(function, "__func__", function))
    code = getattr(inner, "__code__", None)
    if not isinstance(code, types.CodeType):
        return ""
    return f" ({code.co_filename}:{code.co_firstlineno})"


def _meant(base: str, known: Mapping[str, Operator]) -> str:
    """Targets that look like one of an unknown operator, as the beginning of a sentence."""
    suffix = next((s for s in ("_out", "_") if base.endswith(s)), "")
    near = [f"'{n}{suffix}@{known[n].version}'" for n in near_misses(base[: -len(suffix) or None],
            known)]  # fmt: skip
    return f"did you mean {' or '.join(near)}? or " if near else "correct the name, or "


__all__ = [
    "PROPERTIES",
    "REFERENCE",
    "Claim",
    "Implementation",
    "Requirement",
    "arch",
    "check_path",
    "claims_of",
    "device",
    "feature",
    "implements",
    "missing_form",
    "reference",
    "split_target",
    "verify",
    "where_defined",
]
