"""Step tables: for every outcome of a plan's step terms, the function of each site.

Size buckets are a fact of a step, not of a call. Every distinct outcome is bound when the plan is
made; ``at`` only evaluates the terms and looks the table up.
"""

from __future__ import annotations

import itertools
import keyword
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, cast

from trivet.binding.narrow import narrow
from trivet.contracts.terms import Reader, Term, View
from trivet.contracts.terms.value import Between, Divisible, Equal, OneOf
from trivet.errors import DeclarationError, DomainError, UnknownName
from trivet.selection.choose import Choice
from trivet.selection.texts import compile_function, literal

MAX_TABLES: Final = 4096
_SIZE_TERMS = (Between, Divisible, OneOf, Equal)


@dataclass(frozen=True)
class Site:
    """One call site of a plan: its static choice, and which step variable each dim is."""

    name: str
    target: str
    choice: Choice
    variables: Mapping[str, str]

    def step_terms(self) -> dict[str, list[Term]]:
        """Undecided terms that a step can decide, by step variable."""
        found: dict[str, list[Term]] = {}
        for arm in self.choice.arms:
            for term in arm.terms:
                variable = self.variable(term)
                if variable and term not in found.setdefault(variable, []):
                    found[variable].append(term)
        return found

    def variable(self, term: Term) -> str:
        """The step variable that decides a term; empty when only a call can."""
        sized = isinstance(term, _SIZE_TERMS) and len(term.paths) == 1
        if not sized or not self.choice.operator.is_size(term.path):
            return ""
        return self.variables.get(term.path, term.path)


def _reader(name: str) -> Reader:
    """Spells every path as one step variable; a term on a size asks for nothing else."""
    return cast("Reader", SimpleNamespace(path=lambda _: name, literal=literal))


def _view(value: int) -> View:
    """Every path has one value."""
    return cast("View", SimpleNamespace(value=lambda _: value))


def _outcomes(terms: Sequence[Term]) -> list[tuple[bool, ...]]:
    """Every combination of truths that some non-negative value gives, in order of value."""
    period = math.lcm(1, *(t.by for t in terms if isinstance(t, Divisible)))
    if period > MAX_TABLES:
        msg = f"a plan cannot tell steps apart by {' and '.join(map(str, terms))}"
        raise DeclarationError(msg, fix="state that size as a fact of the site")
    edges = {0, 1}
    for term in terms:
        numbers = [a for a in term.args if isinstance(a, int) and not isinstance(term, Divisible)]
        edges |= {n + d for n in numbers for d in (-1, 0, 1) if n + d >= 0}
    seen: dict[tuple[bool, ...], None] = {}
    for value in sorted({edge + k for edge in edges for k in range(period)}):
        seen.setdefault(tuple(t.decide(_view(value)) is True for t in terms))
    return list(seen)


class _Known(dict[Any, Any]):
    """The tables by outcome; every outcome of non-negative integers is there."""

    def __missing__(self, key: object) -> Any:
        msg = "a step variable is no size"
        raise DomainError(msg, fix="pass non-negative integers to plan.at(...)")


@dataclass(frozen=True)
class Tables:
    """Step variables with their terms, and how ``at`` finds a table."""

    terms: Mapping[str, tuple[Term, ...]]
    accepted: frozenset[str]
    keys: tuple[tuple[tuple[bool, ...] | None, ...], ...]

    @classmethod
    def over(cls, sites: Sequence[Site]) -> Tables:
        """Collects the step terms of all sites and enumerates their outcomes.

        Raises:
            DeclarationError: there are more outcomes than a plan may have.
        """
        found: dict[str, list[Term]] = {}
        accepted: set[str] = set()
        for site in sites:
            op = site.choice.operator
            accepted |= {site.variables.get(n, n) for n in (*op.where, *op.integers)}
            for variable, terms in site.step_terms().items():
                known = found.setdefault(variable, [])
                known += [t for t in terms if t not in known]
        outcomes = [[None, *_outcomes(terms)] for terms in found.values()]
        count = math.prod(map(len, outcomes))
        if count > MAX_TABLES:
            msg = f"the domains of this plan distinguish {count} kinds of step over {sorted(found)}"
            raise DeclarationError(msg, fix="state more sizes as facts")
        keys = tuple(itertools.product(*outcomes))
        return cls({v: tuple(t) for v, t in found.items()}, frozenset(accepted), keys)

    def decided(self, site: Site, key: tuple[tuple[bool, ...] | None, ...]) -> dict[Term, bool]:
        """What a table decides for a site."""
        decided: dict[Term, bool] = {}
        for (variable, terms), truths in zip(self.terms.items(), key, strict=True):
            pairs = zip(terms, truths, strict=True) if truths is not None else ()
            decided |= {t: truth for t, truth in pairs if site.variable(t) == variable}
        return decided

    def narrowed(self, site: Site) -> Iterator[tuple[Any, Choice, dict[Term, bool]]]:
        """The site's choice under every table; one object where the site sees no difference."""
        own = [any(site.variable(t) == v for t in terms) for v, terms in self.terms.items()]
        known: dict[Any, tuple[Choice, dict[Term, bool]]] = {}
        for key in self.keys:
            seen = tuple(itertools.compress(key, own))
            if seen not in known:
                decided = self.decided(site, key)
                known[seen] = narrow(site.choice, decided), decided
            yield key, *known[seen]

    def lookup(self, tables: Mapping[Any, Any]) -> Callable[..., Any]:
        """The generated ``at``: evaluates the terms and returns the table."""
        parts, names = [], list(self.terms)
        for name, terms in self.terms.items():
            tests = ", ".join(t.source(_reader(name)) for t in terms)
            parts.append(f"None if {name} is None else ({tests},)")
        arguments = "*, " * bool(names) + "".join(f"{n}=None, " for n in names)
        body = (
            f"def at({arguments}**_others):\n"
            f"    if _others:\n        _check(_others)\n"
            f"    return _tables[({''.join(p + ', ' for p in parts)})]\n"
        )
        found = _Known(tables)
        return compile_function("at", "at", body, {"_tables": found, "_check": self._check})

    def _check(self, given: Mapping[str, object]) -> None:
        for name in given:
            if name not in self.accepted:
                msg = f"no step variable {name!r}"
                raise UnknownName(msg, fix=f"this plan has {', '.join(sorted(self.accepted))}")


def refuse_reserved(names: Iterable[str], reserved: set[str]) -> None:
    """Refuses site names that are the plan's own words.

    Raises:
        UnknownName: a name is reserved or no identifier.
    """
    for name in names:
        if name in reserved or not is_word(name):
            msg = f"a site may not be called {name!r}"
            raise UnknownName(msg, fix=f"reserved: {', '.join(sorted(filter(is_word, reserved)))}")


def is_word(name: object) -> bool:
    """Whether a name can be an attribute or a keyword argument."""
    return (
        isinstance(name, str)
        and name.isidentifier()
        and not keyword.iskeyword(name)
        and not name.startswith("_")
    )
