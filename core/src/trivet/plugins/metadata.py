"""Finds plugins from the metadata of installed distributions, before any of their code runs.

One pass over the distributions on ``sys.path``; of each only ``entry_points.txt`` is read, and
more only of those that name a group of ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import distribution as first_distribution
from importlib.metadata import distributions
from typing import Final

from trivet.contracts.hooks import CONTRACT_POINTS, ENTRY_POINTS, EXTENDS_POINTS
from trivet.plugins.describe import shown
from trivet.plugins.dist_files import Head, parse_points, read_head, read_points

RESERVED: Final = ("auto", "reference")
"""Names that mean something to ``trivet.device`` and that no plugin may take."""

PROJECT: Final = "The trivet authors"
"""Author in the metadata of this project's own distributions; another's device goes first."""

_MARK: Final = "trivet."
_GROUPS: Final = (ENTRY_POINTS, CONTRACT_POINTS, EXTENDS_POINTS)
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
_RANGE: Final = re.compile(r"v([0-9]{1,9}):v([0-9]{1,9})")
_LONG: Final = 60


@dataclass(frozen=True)
class Candidate:
    """An installed plugin as its metadata describes it.

    Args:
        name: name of the entry point; also the device kind that it brings.
        module: value of the entry point.
        dist: distribution that brings it.
        version: version of that distribution.
        contract: text of its contract range; empty when it states none.
        extends: device kind of another plugin that it only adds to; empty when it has its own.
        rivals: other distributions that bring a plugin of the same name.
        strays: names of contract entries of this distribution that fit none of its plugins.
        own: whether this project itself publishes the distribution.
        damage: why its metadata cannot be trusted; empty when it can.
    """

    name: str
    module: str
    dist: str
    version: str
    contract: str = ""
    extends: str = ""
    rivals: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()
    own: bool = False
    damage: str = ""

    @property
    def home(self) -> str:
        """Distribution and version in one word, for messages."""
        return f"{self.dist} {self.version}"

    def flaw(self) -> str:
        """Why this metadata cannot be used at all; empty when it can."""
        if self.damage:
            return self.damage
        if self.rivals:
            return f"the name {self.name!r} is claimed by {self.home} and {', '.join(self.rivals)}"
        if not _NAME.fullmatch(self.name):
            return f"the name {self.name!r} is not lower_snake_case"
        if self.name in RESERVED:
            return f"the name {self.name!r} is reserved"
        return ""

    def misfit(self, contract: int) -> tuple[str, str]:
        """Why it does not fit this core's contract, and what to do; empty when it does."""
        state = (
            f"put this into the pyproject.toml of {self.dist} and install it again:\n"
            f'    [project.entry-points."{CONTRACT_POINTS}"]\n'
            f'    {self.name} = "v{contract}:v{contract}"'
        )
        if not self.contract:
            stray = f" (it states one for {', '.join(self.strays)})" if self.strays else ""
            why = f"it states no contract range{stray}; this trivet has contract {contract}"
            return why, state
        match = _RANGE.fullmatch(self.contract)
        if not match:
            short = self.contract if len(self.contract) <= _LONG else f"{self.contract[:_LONG]}..."
            return f"its contract range {shown(short)} is not of the form vN:vM", state
        lowest, highest = int(match[1]), int(match[2])
        if lowest <= contract <= highest:
            return "", ""
        why = f"built for contract {lowest} to {highest}, this trivet has contract {contract}"
        return why, f"install {self.dist} for contract {contract}, or the trivet it wants"


def normalised(name: str) -> str:
    """The name of a distribution as package tools compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def candidates() -> tuple[Candidate, ...]:
    """Every plugin of every installed distribution, in order of name, then distribution."""
    return tuple(sorted(_installed(), key=lambda c: (c.name, c.dist)))


def with_rivals(found: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """The same plugins, those of one name knowing each other.

    The order of ``sys.path`` must not decide between vendors, so neither of them is used.
    """
    homes: dict[str, list[str]] = {}
    for candidate in (found := tuple(found)):
        homes.setdefault(candidate.name, []).append(candidate.home)
    marked = []
    for candidate in found:
        others = list(homes[candidate.name])
        others.remove(candidate.home)
        marked.append(replace(candidate, rivals=tuple(others)))
    return tuple(marked)


def _installed() -> Iterator[Candidate]:
    """The plugins of all distributions that no distribution in an earlier folder hides."""
    seen: set[str] = set()
    for dist in distributions():
        text, damage = read_points(dist)
        if _MARK not in text:
            continue
        head = read_head(dist)
        name = normalised(head.name)
        if name in seen:
            continue
        seen.add(name)
        if _first_text(name, text) == text:
            yield from _of(head, text, damage)


def _first_text(name: str, otherwise: str) -> str:
    """The entry points of the distribution that comes first under a name."""
    try:
        first = first_distribution(name)
    except Exception:  # noqa: BLE001 - not found by name, or others of that name are damaged
        return otherwise
    return read_points(first)[0]


def _of(head: Head, text: str, damage: str) -> Iterator[Candidate]:
    """The plugins of one distribution; one line for it when it is too damaged to name any."""
    points, wrong = parse_points(text, _GROUPS)
    damage = damage or wrong or head.damage
    contracts = dict(points.get(CONTRACT_POINTS, ()))
    extends = dict(points.get(EXTENDS_POINTS, ()))
    plugins = points.get(ENTRY_POINTS, [])
    if points and damage and not plugins:
        plugins = [(head.name, "")]
    for name, module in plugins:
        yield Candidate(
            name=name,
            module=module,
            dist=head.name,
            version=head.version,
            contract=contracts.get(name, "").replace(" ", ""),
            extends=extends.get(name, ""),
            strays=tuple(sorted(set(contracts) - {n for n, _ in plugins})),
            own=head.author == PROJECT,
            damage=damage,
        )
