"""The step of a plan as the captured work sees it: each call of a site is looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from trivet.binding.plan import Plan
from trivet.binding.step import Step
from trivet.capture.session import Session
from trivet.contracts.implementation import Claim


class CapturedStep:
    """A step whose sites are watched while they are recorded.

    A site whose implementation does not declare ``graph_safe`` runs between two graphs; under
    ``TRIVET_CHECK=1`` all of them do.

    Args:
        plan: the plan.
        step: one of its steps.
        session: the capture.
        counts: is told the calls by (site, provider).
    """

    def __init__(
        self, plan: Plan, step: Step, session: Session, counts: Counter[tuple[str, str]]
    ) -> None:
        self.use = step.use
        self._step, self._session = step, session
        self._claims = {n: _claims(plan, n, who) for n, who in step.providers().items()}
        for name, who in step.providers().items():
            setattr(self, name, self._watched(plan, name, who, counts))

    def schedule(self, site: str, *arguments: Any, out: list[Tensor] | None = None) -> list[Tensor]:
        """What the provider of a site precomputes; at each replay it is written again, eagerly."""
        if not any(claim.prepare_step for claim in self._claims.get(site, ())):
            return self._step.schedule(site, *arguments, out=out)
        first: list[list[Tensor]] = [] if out is None else [out]

        def prepare_step(*arguments: Any) -> list[Tensor]:
            made = self._step.schedule(site, *arguments, out=first[0] if first else None)
            first[:] = first or [made]
            return made

        made: list[Tensor] = self._session.outside(prepare_step, arguments, {})
        return made

    def _watched(
        self, plan: Plan, name: str, who: str, counts: Counter[tuple[str, str]]
    ) -> Callable[..., Any]:
        session, choice = self._session, plan.sites[name].choice
        function, operator = getattr(self._step, name), choice.operator
        names, text = operator.signature.names(), f"{operator.name} ({who}), site {name!r},"
        checked = plan.settings.check  # what looks at numbers after each call
        safe = all(claim.graph_safe for claim in self._claims[name]) and not checked

        def watched(*args: Any, **kwargs: Any) -> Any:
            counts[name, who] += 1
            if not session.recording:
                return function(*args, **kwargs)
            if not safe:
                return session.outside(function, args, kwargs)
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            for argument, value in given.items():
                session.watch.found(value, f"{argument!r} of site {name!r}")
            call = partial(function, *args, **kwargs)
            return session.called(text, operator, choice.form, call, given)

        return watched


def _claims(plan: Plan, site: str, who: str) -> list[Claim]:
    """The claims of the providers that may run a site in a step."""
    arms = plan.sites[site].choice.arms
    return [a.implementation.claim for a in arms if a.provider in who.split("|")]
