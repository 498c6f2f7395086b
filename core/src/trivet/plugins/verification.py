"""From a claim to an implementation: what a vendor marked, checked against its operator."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from trivet.contracts.declaration import Operator
from trivet.contracts.implementation import Claim, implements
from trivet.contracts.names import check_path, missing_form, split_target
from trivet.contracts.signature import REQUIRED, Signature
from trivet.contracts.terms import Term
from trivet.errors import DeclarationError, SignatureDrift
from trivet.settings import near_misses

REFERENCE: Final = "reference"
"""The provider id of core's own references."""

_PROVIDER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


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
        return tuple(self.claim.domain)

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


def reference(operator: Operator) -> Implementation:
    """Core's own reference as an implementation that accepts everything."""
    home = Path(operator.reference.__code__.co_filename).parent
    claim = implements(
        operator.name,
        name=REFERENCE,
        sources=sorted(p.name for p in home.glob("_*.py")),  # what references share
        graph_safe=operator.traceable,
        deterministic="deterministic" in operator.properties,
        batch_invariant="batch_invariant" in operator.properties,
        prepare=operator.prepare,
    )
    form = "inplace" if operator.inplace_only else "functional"
    return Implementation(REFERENCE, operator, form, claim.of(operator.reference))


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


def _check_subject(op: Operator, term: Term, path: str, who: str) -> None:
    """Refuses a term whose path is of a kind that the term cannot speak about."""
    head, _, attribute = path.partition(".")
    parameter = op.parameters.get(head)
    size = attribute == "rank" or op.is_size(path)
    fits = {
        "tensor": not attribute and not op.is_size(head) and head in (*op.tensors, "out"),
        "optional": parameter is not None and parameter.kind in ("Tensor?", "Tensor[]"),
        "size": size,
        "value": size or attribute == "dtype" or head in op.scalars,
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


def drift(function: Callable[..., Any], signature: Signature, *, out: bool) -> str:
    """How a function's parameters differ from the operator's; empty when they do not.

    Names, order and defaults must be equal; annotations are the vendor's own business.
    """
    ordinary, keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    want: list[tuple[str, Any, int]]
    want = [(p.name, p.default, ordinary) for p in signature.parameters]
    if out:
        want.append(("out", REQUIRED, keyword))
    have = [(p.name, p.default, p.kind) for p in inspect.signature(function).parameters.values()]
    for position, (w, h) in enumerate(zip(want, have, strict=False)):
        if w[0] != h[0]:
            return f"parameter {position + 1} is {h[0]!r}, the operator has {w[0]!r}"
        if type(w[1]) is not type(h[1]) or repr(w[1]) != repr(h[1]):
            return f"default of {w[0]!r} is {_shown(h[1])}, the operator has {_shown(w[1])}"
        if w[2] != h[2]:
            wanted = "keyword-only" if w[2] == keyword else "ordinary"
            return f"parameter {w[0]!r} is {h[2].description}, must be {wanted}"
    if missing := want[len(have) :]:
        return f"parameter {missing[0][0]!r} is missing"
    if extra := have[len(want) :]:
        return f"parameter {extra[0][0]!r} is not in the operator"
    return ""


def _shown(default: object) -> str:
    return "none" if default is REQUIRED else repr(default)
