"""Facts that prove a domain: the weakest promises under which an implementation is proved.

Used to show that such a bind is the vendor's own function, and by the conformance kit.
"""

from __future__ import annotations

import math
from typing import Any

from trivet.contracts.terms import Term
from trivet.contracts.terms.value import (
    Absent,
    Between,
    Divisible,
    Dtype,
    Equal,
    OneOf,
    Present,
    Rank,
)
from trivet.plugins.verification import Implementation
from trivet.selection.forms import SUFFIX


def target_of(implementation: Implementation) -> str:
    """The name under which a bind asks for the supplied form."""
    suffix = "" if implementation.operator.inplace_only else SUFFIX[implementation.form]
    return implementation.operator.name + suffix


def proving_facts(implementation: Implementation) -> dict[str, Any]:
    """Facts that prove every term of a domain, in the form that the implementation supplies.

    They are never empty: a bind without facts promises nothing, not even to be forward only.
    """
    facts: dict[str, Any] = {}
    terms = list(implementation.domain)
    for term in sorted(terms, key=lambda t: isinstance(t, Equal)):
        facts.update(_of(term, facts))
    for path in {t.path for t in terms if isinstance(t, (Between, Divisible))}:
        facts[path] = _size(path, terms)
    return facts or {"dtype": "float32"}


def _of(term: Term, facts: dict[str, Any]) -> dict[str, Any]:
    """The facts that prove one term."""
    match term:
        case Dtype():
            return {f"{term.path}.dtype": term.names[0]}
        case Rank():
            return {f"{term.path}.rank": term.ranks[0]}
        case OneOf():
            return {term.path: term.values[0]}
        case Absent():
            return {term.path: None}
        case Present():
            return {term.path: "present"}
        case Equal() if isinstance(term.other, str):
            default = "float32" if term.path.endswith(".dtype") else 8
            value = facts.get(term.path, facts.get(term.other, default))
            return {term.path: value, term.other: value}
        case Equal():
            return {term.path: term.other}
        case Between() | Divisible():
            return {}
        case _:
            value = term.args[0] if term.args else True
            return {f"{term.path}.{term.kind}": value}


def _size(path: str, terms: list[Term]) -> int:
    """The smallest value >= 1 where possible that all bounds and multiples of a path allow."""
    step = math.lcm(1, *(t.by for t in terms if isinstance(t, Divisible) and t.path == path))
    bounds = [t for t in terms if isinstance(t, Between) and t.path == path]
    low = max((t.low for t in bounds if t.low is not None), default=1)
    return -(-max(low, 1) // step) * step if low else step
