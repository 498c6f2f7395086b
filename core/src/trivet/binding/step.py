"""One kind of step of a plan: the function of every site, and what belongs to its providers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from torch import Tensor

from trivet.binding.prepared import Handle, replace_handles
from trivet.binding.step_tables import Site
from trivet.contracts.terms import Term
from trivet.errors import NoImplementation, OrderError, UnknownName
from trivet.plugins.verification import reference
from trivet.selection.choose import Choice
from trivet.selection.derive import derive

MAX_TREES: Final = 8
"""How many trees a step remembers; engines have one or two, and none may pile up."""


class Step:
    """The functions of one kind of step; sites are attributes.

    Made by ``plan.at``; holding one costs nothing per call.
    """

    def __init__(
        self, choices: Mapping[str, Choice], functions: Mapping[str, Callable[..., Any]]
    ) -> None:
        self._choices = choices
        self._used: dict[int, tuple[Any, Any]] = {}
        self.__dict__.update(functions)
        self._made = True

    def __setattr__(self, name: str, value: object) -> None:
        if "_made" in self.__dict__:
            msg = f"a step is shared and never changes: {name!r} cannot be set"
            raise TypeError(msg)
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        return f"<step: {', '.join(f'{n}={p}' for n, p in self.providers().items())}>"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        msg = f"no site {name!r}; this plan has {', '.join(self.__dict__.get('_choices', ()))}"
        raise AttributeError(msg)

    def use(self, tree: Any) -> Any:
        """The tree with every handle replaced by the pack of this step's provider.

        Computed once for each tree object; the tree must not change afterwards.

        Raises:
            OrderError: a site is still guarded in this step: pass its sizes to ``plan.at``.
        """
        known = self._used.get(id(tree))
        if known is None or known[0] is not tree:
            if len(self._used) >= MAX_TREES:
                self._used.clear()
            known = self._used[id(tree)] = (tree, replace_handles(tree, self._pack))
        return known[1]

    def schedule(self, site: str, *arguments: Any, out: list[Tensor] | None = None) -> list[Tensor]:
        """What the provider of a site precomputes once a step, for all layers; maybe nothing.

        Args:
            site: name of the site.
            arguments: ``block_table, query_start, seq_lens, max_query_len, max_seq_len``.
            out: an earlier schedule whose memory is written again (for capture).

        Raises:
            OrderError: the site is still guarded in this step.
        """
        choice = self._settled(site)
        arm = choice.arms[0]
        make = arm.implementation.claim.prepare_step
        if make is None:
            return []
        made: list[Tensor] = make(dict(choice.facts.values), *arguments, out=out)
        return made

    def providers(self) -> dict[str, str]:
        """The provider of each site; several joined by ``|`` where a call still decides."""
        return {n: "|".join(a.provider for a in c.arms) for n, c in self._choices.items()}

    def _pack(self, handle: Handle) -> list[Tensor]:
        provider = self._settled(handle.site).arms[0].provider
        if provider not in handle.packs:
            msg = f"site {handle.site!r} runs {provider} in this step, which has no pack"
            raise OrderError(msg, fix="prepare the weight with the plan that runs it")
        return handle.packs[provider]

    def _settled(self, site: str) -> Choice:
        if site not in self._choices:
            raise no_site(site, self._choices)
        choice = self._choices[site]
        if not choice.arms:
            msg = f"nothing may run site {site!r} in this step"
            raise NoImplementation(msg, trace=choice.rows, fix="leave strict mode, or this size")
        if not choice.settled:
            undecided = choice.arms[0].terms
            msg = f"site {site!r} is still guarded on {' and '.join(map(str, undecided))}"
            raise OrderError(msg, fix=_settling(undecided))
        return choice


def _settling(undecided: Iterable[Term]) -> str:
    """What settles terms: sizes of the step, and facts of the site."""
    facts = [p for t in undecided for p in t.paths if "." in p or t.about == "tensor"]
    named = ", ".join(dict.fromkeys(p if "." in p else f"{p}.contiguous" for p in facts))
    known = f"state as facts of the site: {named}" if named else "state them as facts"
    return f"{known}; sizes may be passed to plan.at(...)"


def no_site(site: object, known: Iterable[str]) -> UnknownName:
    """The error for a name that is no site of a plan."""
    return UnknownName(f"no site {site!r}", fix=f"this plan has {', '.join(known)}")


class SemanticStep:
    """References of all sites, with the interface of a step."""

    def __init__(self, sites: Mapping[str, Site]) -> None:
        self._sites = sites
        for name, site in sites.items():
            setattr(self, name, _reference_function(site.choice))

    def use(self, tree: Any) -> Any:
        """The tree with every handle replaced by the plain weight."""
        return replace_handles(tree, lambda h: [h.weight()])

    def schedule(self, site: str, *arguments: Any, out: list[Tensor] | None = None) -> list[Tensor]:
        """References need no schedule."""
        del site, arguments, out
        return []


def _reference_function(choice: Choice) -> Callable[..., Any]:
    own = reference(choice.operator)
    made = derive(choice.operator, own.form, choice.form, own.function)
    if isinstance(made, str):
        raise NoImplementation(made)
    return made.function
