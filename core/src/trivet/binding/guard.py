"""Guards: the cheapest Python that picks an implementation from the arguments.

Rules, from measured prices of attributes: what facts prove is dropped; conditions that
consecutive arms share are tested once; each attribute is read once, dtype and rank before sizes;
sizes come from one ``x.shape``, never from ``size()``, ``stride(i)`` or ``len(x)``; arms are
closure cells; parameters and defaults are the operator's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from trivet.contracts.declaration import Operator
from trivet.contracts.terms import Term
from trivet.contracts.terms.value import Absent, Present, Rank
from trivet.selection.facts import Facts, owners
from trivet.selection.forms import function_name
from trivet.selection.texts import compile_function, literal

_GRAD = {
    "Tensor": "{0}.requires_grad",
    "Tensor?": "({0} is not None and {0}.requires_grad)",
    "Tensor[]": "any([_t.requires_grad for _t in {0}])",
}
"""Text that is true where an argument of a kind requires grad."""
_ATTRIBUTE = {"shape": ".shape", "stride": ".stride()", "dtype": ".dtype"}


@dataclass
class _Scope:
    """Locals that are set for sure at a place in the text, and ranks tested on the way."""

    locals: set[str] = field(default_factory=set)
    ranks: dict[str, int] = field(default_factory=dict)

    def copy(self) -> _Scope:
        return _Scope(set(self.locals), dict(self.ranks))


class _Names:
    """A ``Reader`` that reads each attribute once, by statement or by walrus."""

    def __init__(self, facts: Facts, uses: Counter[str]) -> None:
        self.op = facts.operator
        self.facts = facts
        self.uses = uses
        self.scope = _Scope()
        self.statements: list[str] | None = None
        self.conditional = False

    def literal(self, value: object) -> str:
        return literal(value)

    def inner(self, arg: str) -> int:
        return self.op.inner(arg)

    def tensor(self, arg: str, attribute: str) -> str:
        if attribute == "contiguous":
            return f"{arg}.is_contiguous()"
        if attribute == "rank":
            return f"len({self.tensor(arg, 'shape')})"
        return self._local(f"_{arg}_{attribute}", arg + _ATTRIBUTE[attribute])

    def given(self, arg: str, *, wanted: bool) -> str:
        if self.op.parameters[arg].tensor:
            return f"{arg} is {'not ' if wanted else ''}None"
        return arg if wanted else f"not {arg}"

    def path(self, path: str) -> str:
        known = self.facts.value(path)
        if isinstance(known, (int, float, str, torch.dtype)):
            return literal(known)
        arg, _, attribute = path.partition(".")
        if attribute:
            return self.tensor(arg, attribute)
        if path in self.op.parameters:
            return path
        place = self.op.where[path]
        text = self._star(path, place.arg) if place.dim.star else None
        if text is None:
            text = place.dim.value_text(f"{self.tensor(place.arg, 'shape')}[{place.index}]")
        return self._local(f"_{path}", text) if self.uses[path] > 1 else text

    def _star(self, path: str, arg: str) -> str:
        inner = self.inner(arg)
        rank = self.scope.ranks.get(arg) or self.facts.value(f"{arg}.rank")
        if f"_{path}" in self.scope.locals:
            return f"_{path}"
        if isinstance(rank, int):
            factors = [f"{self.tensor(arg, 'shape')}[{i}]" for i in range(rank - inner)]
            return " * ".join(factors) or "1"
        width = self.facts.value(f"{arg}.row_width")
        if isinstance(width, int) and width > 0:
            return f"{arg}.numel() // {width}" if width > 1 else f"{arg}.numel()"
        shape = self.tensor(arg, "shape")
        return f"_prod({shape}[:{-inner}])" if inner else f"_prod({shape})"

    def _local(self, name: str, text: str) -> str:
        if name in self.scope.locals or text == name:
            return name
        if self.conditional:  # the text may be skipped at run time
            return text
        self.scope.locals.add(name)
        if self.statements is None:
            return f"({name} := {text})"
        self.statements.append(f"{name} = {text}")
        return name

    def test(self, term: Term) -> str:
        """The test of one term, vacuous where an optional tensor may be absent."""
        needed = set() if isinstance(term, (Absent, Present)) else owners(self.op, term)
        known = self.facts.values
        maybe = sorted(a for a in needed if self.op.parameters[a].optional and a not in known)
        self.conditional = bool(maybe)
        text = term.source(self)
        self.conditional = False
        if isinstance(term, Rank) and len(term.ranks) == 1 and not maybe:
            self.scope.ranks[term.path] = term.ranks[0]
        none = [f"{arg} is None" for arg in maybe]
        return f"({' or '.join([*none, text])})" if maybe else text


Arm = tuple[str, tuple[Term, ...]]
"""The name of a closure cell and the terms under which it is called."""


def guard_text(
    op: Operator, form: str, facts: Facts, arms: Sequence[tuple[Term, ...]], *, grad: bool
) -> str:
    """The text of a guard over arms in order; the last arm has no terms.

    Args:
        op: the operator.
        form: the form that the guard has.
        facts: what is proved, so that sizes can be read cheaply.
        arms: residual terms of each arm.
        grad: whether inputs that require grad must be turned away (to cell ``_grad``).
    """
    distinct = {term for terms in arms for term in terms}
    uses = Counter(path for term in distinct for path in term.paths)
    names = _Names(facts, uses)
    passed = ", ".join([*op.signature.names(), *(["out=out"] if form == "out" else [])])
    lines: list[str] = []
    if grad:
        given = [p for p in op.signature.parameters if not p.scalar]
        needs = " or ".join(_GRAD[p.kind].format(p.name) for p in given)
        lines.append(f"if ({needs}) and _grad_enabled():")
        lines.append(f"    return _grad({passed})")
    cells = [(f"_f{i}", tuple(terms)) for i, terms in enumerate(arms)]
    _emit(names, cells, 0, lines, passed)
    name = function_name(op, form)
    head = f"def {name}({op.signature.text(out=form == 'out')}):\n"
    return head + "".join(f"    {line}\n" for line in lines)


def _emit(names: _Names, arms: Sequence[Arm], depth: int, lines: list[str], passed: str) -> None:
    pad = "    " * depth
    while arms:
        cell, terms = arms[0]
        if not terms:
            lines.append(f"{pad}return {cell}({passed})")
            return
        run, common = _run(arms)
        before = names.scope.copy()
        tests, sure = [], before
        for position, term in enumerate(sorted(common, key=lambda t: (t.price, str(t)))):
            names.statements = [] if position == 0 else None
            tests.append(names.test(term))
            if names.statements is not None:
                lines.extend(pad + s for s in names.statements)
                sure = _Scope(set(names.scope.locals), dict(before.ranks))
                names.statements = None
        lines.append(f"{pad}if {' and '.join(tests)}:")
        rest = [(c, tuple(t for t in ts if t not in common)) for c, ts in run]
        _emit(names, rest, depth + 1, lines, passed)
        names.scope = sure
        arms = arms[len(run) :]


def _run(arms: Sequence[Arm]) -> tuple[Sequence[Arm], set[Term]]:
    """The longest run of arms that share what the first two share, and those terms."""
    first = set(arms[0][1])
    if len(arms) == 1 or not (common := first & set(arms[1][1])):
        return arms[:1], first
    count = 2
    while count < len(arms) and common <= set(arms[count][1]):
        count += 1
    return arms[:count], common


def make_guard(
    op: Operator,
    form: str,
    facts: Facts,
    arms: Sequence[tuple[Callable[..., Any], tuple[Term, ...]]],
    *,
    grad: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Compiles a guard over (function, residual terms) arms; the last has no terms."""
    text = guard_text(op, form, facts, [terms for _, terms in arms], grad=grad is not None)
    cells: dict[str, Any] = {f"_f{i}": f for i, (f, _) in enumerate(arms)}
    if grad is not None:
        cells["_grad"] = grad
    name = function_name(op, form)
    return compile_function(name, f"guard {op.name} {form}", text, cells)
