"""The choice for one call site: candidates in order, each with yes, guarded or no, and why."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from trivet.contracts.declaration import Operator
from trivet.contracts.terms import Term
from trivet.contracts.terms.layout import Contiguous, OffsetAligned, Rows
from trivet.contracts.terms.value import Divisible, Dtype, Equal, Rank
from trivet.errors import NoImplementation
from trivet.plugins.offer import Offer
from trivet.plugins.verification import REFERENCE, Implementation, reference
from trivet.selection.authority import Policy
from trivet.selection.facts import Facts, decide
from trivet.selection.forms import NEAREST

LOG: Final = logging.getLogger("trivet.bind")


@dataclass(frozen=True, eq=False)
class Arm:
    """An implementation that may run, the function of the wanted form, and what is undecided."""

    implementation: Implementation
    function: Callable[..., Any]
    terms: tuple[Term, ...]
    copies: int

    @property
    def provider(self) -> str:
        """Whose it is: ``plugin/name`` or ``reference``."""
        return self.implementation.provider


@dataclass(frozen=True)
class Row:
    """One line of a trace: a provider, the verdict, and the reason."""

    provider: str
    verdict: str
    reason: str = ""
    note: str = ""
    elsewhere: bool = False
    """Whether this device cannot run it at all, whatever the facts."""
    fix: str = ""
    """What to do about it, of an implementation that was refused when its plugin was loaded."""
    form: str = ""
    """The form that it supplies, of an implementation that cannot run here."""
    preferred: bool = False
    """Whether an order list names it."""

    def __str__(self) -> str:
        reason = f": {self.reason}" if self.reason else ""
        note = f" ({self.note})" if self.note else ""
        fix = f"; fix: {self.fix}" if self.fix else ""
        return f"{self.provider} {self.verdict}{reason}{note}{fix}"


class Trace(tuple[Row, ...]):
    """Rows in order; printed, one a line."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self))


REFUSED = "refused"
"""The note of a row whose implementation was refused when its plugin was loaded."""


def elsewhere(offer: Offer) -> tuple[tuple[str, Row], ...]:
    """Operator and row of everything that plugins brought and this device cannot run."""
    unmet = [
        (u.implementation.operator.name,
         Row(u.implementation.provider, "no", u.reason, "not for this device", elsewhere=True,
             form=u.implementation.form))
        for u in offer.unmet
    ]  # fmt: skip
    refused = [
        (r.operator,
         Row(r.provider, "no", r.reason, REFUSED, elsewhere=True, fix=r.error.fix, form=r.form))
        for r in offer.refusals
        if r.operator
    ]  # fmt: skip
    return (*unmet, *refused)


def nearest_rows(rows: Iterable[Row], form: str) -> list[Row]:
    """For each provider its row whose form is nearest to the wanted one."""
    nearest: dict[str, Row] = {}
    for row in rows:
        known = nearest.get(row.provider)
        if known is None or _distance(row.form, form) < _distance(known.form, form):
            nearest[row.provider] = row
    return list(nearest.values())


@dataclass(frozen=True, eq=False)
class Choice:
    """What was chosen for one operator, form and set of facts, and the whole trace."""

    operator: Operator
    form: str
    facts: Facts
    arms: tuple[Arm, ...]
    rows: tuple[Row, ...]
    overruled: str = ""
    """The order list of environment or file that a lock overrides; empty without."""

    @property
    def settled(self) -> bool:
        """Whether one arm remains that needs no guard."""
        return len(self.arms) == 1 and not self.arms[0].terms


def choose(
    op: Operator,
    form: str,
    facts: Facts,
    candidates: Sequence[Implementation],
    policy: Policy,
    *,
    elsewhere: Sequence[Row] = (),
) -> Choice:
    """Goes through the candidates in order of authority.

    Args:
        op: the operator.
        form: the wanted form.
        facts: what the site promises.
        candidates: implementations that this device can run, in default order.
        policy: everything besides facts that decides.
        elsewhere: rows of implementations that this device cannot run, for the trace.

    Raises:
        ConfigError: the settings force the reference and are strict.
        NoImplementation: nothing may run; the trace says why for each.
    """
    own = _by_provider(candidates, form)
    vendors = bool(candidates) or any(row.note == REFUSED for row in elsewhere)
    lost = {row.provider: row for row in elsewhere}
    ranked, said = policy.rank(op.name, [*own, REFERENCE, *(p for p in lost if p not in own)])
    strict = vendors and policy.strict and policy.refuses_reference(op.name, said)
    arms: list[Arm] = []
    rows: list[Row] = []
    for provider in ranked:
        note = f"preferred by {said[provider]}" if provider in said else ""
        named = provider in said
        if provider != REFERENCE and provider not in own:
            row = lost[provider]
            notes = ", but ".join(filter(None, (note, row.note)))
            rows.append(replace(row, note=notes, preferred=named))
            continue
        implementation = own.get(provider) or reference(op)
        found: Arm | str = "only where an order list names it"
        if named or not implementation.claim.on_request:
            refusal = _refused(implementation, policy, strict=strict and provider == REFERENCE)
            found = refusal or _arm(implementation, form, facts)
        if isinstance(found, str):
            rows.append(Row(provider, "no", found, note, preferred=named))
            continue
        if taken := shadow(found, arms):
            rows.append(Row(provider, "shadowed", taken, note, preferred=named))
            continue
        arms.append(found)
        rows.append(replace(_accepted(found, note), preferred=named))
    if not arms:
        msg = f"no implementation of {op.name} may run here"
        raise NoImplementation(msg, trace=rows, operator=op.name, fix=_advice(policy, rows))
    overruled = policy.overruled(op.name, [r.provider for r in rows if r.verdict != "no"])
    if overruled:
        LOG.warning("%s: the lock overrides %s", op.name, overruled)
    return Choice(op, form, facts, tuple(arms), tuple(rows), overruled)


def _by_provider(candidates: Sequence[Implementation], form: str) -> dict[str, Implementation]:
    """For each provider, in order, the implementation whose form is nearest to the wanted one."""
    nearest: dict[str, Implementation] = {}
    for implementation in candidates:
        known = nearest.get(implementation.provider)
        if known is None or _distance(implementation.form, form) < _distance(known.form, form):
            nearest[implementation.provider] = implementation
    return nearest


def _distance(form: str, wanted: str) -> int:
    """How far a form is from the wanted one; a form that is not known is the furthest."""
    order = NEAREST[wanted]
    return order.index(form) if form in order else len(order)


def _refused(implementation: Implementation, policy: Policy, *, strict: bool) -> str:
    """Why a candidate is out before its domain is looked at."""
    forbidden = policy.settings.forbidden(implementation.operator.name)
    if implementation.provider in forbidden:
        return f"forbidden by {forbidden[implementation.provider]}"
    if strict:
        return "strict mode refuses the reference where a provider exists"
    has = implementation.claim.properties
    if missing := sorted(policy.required - has):
        return f"does not declare {', '.join(missing)}"
    if policy.mode == "captured" and "graph_safe" not in has:
        return "does not declare graph_safe, which capture needs"
    return ""


def _arm(implementation: Implementation, form: str, facts: Facts) -> Arm | str:
    """The candidate as an arm, or the reason against it."""
    op, undecided = implementation.operator, []
    for term in implementation.domain:
        on_call: Term | str | None = term
        if form != "out" and any(p.partition(".")[0] == "out" for p in term.paths):
            on_call = _on_fresh(op, term, facts)
        decision = decide(op, on_call, facts) if isinstance(on_call, Term) else on_call
        if isinstance(decision, str):
            return decision
        if decision is None and isinstance(on_call, Term):
            undecided.append(on_call)
    if implementation.form == "inplace" != form:
        for on_clone in _on_clones(op, implementation.domain):
            decision = decide(op, on_clone, facts)
            if isinstance(decision, str):
                return f"core would pass a contiguous copy: {decision}"
            if decision is None and on_clone not in undecided:
                undecided.append(on_clone)
    if implementation.form == form:
        return Arm(implementation, implementation.function, tuple(undecided), 0)
    from trivet.selection.derive import derive  # only where no vendor has the form

    made = derive(op, implementation.form, form, implementation.function)
    if isinstance(made, str):
        return made
    return Arm(implementation, made.function, tuple(undecided), made.copies)


def _on_clones(op: Operator, domain: Sequence[Term]) -> list[Term]:
    """What rows of a contiguous copy need besides: a last dim that is a multiple itself."""
    return [
        Divisible(op.shapes[term.path].dims[-1].name, term.multiple)
        for term in domain
        if isinstance(term, Rows) and term.multiple > 1 and term.path in op.inplace
    ]


def _on_fresh(op: Operator, term: Term, facts: Facts) -> Term | str | None:
    """A term on ``out`` where core allocates it: None where it holds, a term on an argument, or no.

    What core allocates is contiguous, aligned, and has the declared dims and dtype.
    """
    output = op.outputs[0]
    like = output.like
    if isinstance(term, (Contiguous, OffsetAligned)):
        return None
    if isinstance(term, Rows):
        width = facts.width(output.shape)
        if isinstance(width, int) and width % term.multiple == 0:
            return None
    elif isinstance(term, Equal) and like in op.tensors:
        own = {"out.dtype": f"{like}.dtype"}
        same = Equal(own.get(term.path, term.path), own.get(term.other, term.other))
        return None if same.path == same.other else same
    elif isinstance(term, Dtype) and like in op.tensors:
        return Dtype(like, term.names)
    elif isinstance(term, Rank) and like in op.tensors:
        shape = op.shapes[like]
        if shape.star and output.shape.star and len(shape.inner) == len(output.shape.inner):
            return Rank(like, term.ranks)
    return f"{term} is not certain of a result that core allocates"


def shadow(arm: Arm, earlier: Sequence[Arm]) -> str:
    """Which earlier provider accepts all that an arm would; empty when none does."""
    found = (a.provider for a in earlier if set(a.terms) <= set(arm.terms))
    return next((f"{provider} accepts all that it would" for provider in found), "")


def _accepted(arm: Arm, note: str) -> Row:
    notes = [note] if note else []
    if arm.function is not arm.implementation.function:
        copies = f", {arm.copies} copies a call" if arm.copies else ""
        notes.append(f"derived from the {arm.implementation.form} form{copies}")
    if arm.terms:
        return Row(arm.provider, "guarded", " and ".join(map(str, arm.terms)), "; ".join(notes))
    return Row(arm.provider, "yes", "", "; ".join(notes))


def _advice(policy: Policy, rows: Sequence[Row]) -> str:
    able = any(row.provider != REFERENCE and not row.elsewhere for row in rows)
    if not able and (broken := [row for row in rows if row.fix]):
        return "; ".join(f"mend {row.provider}: {row.fix}" for row in broken)
    if policy.strict:
        return "leave strict mode, or call it inside the domain of a provider"
    if policy.required:
        return f"require less than {', '.join(sorted(policy.required))}"
    return "look at the order lists and the forbidden providers"
