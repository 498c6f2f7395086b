"""Finds plugins from the metadata of installed distributions, before any of their code runs.

One pass over the distributions on ``sys.path``; of each only ``entry_points.txt`` is read, and
more only of those that name a group of ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, distributions
from importlib.metadata import distribution as first_distribution
from typing import Final

from trivet.contracts.hooks import CONTRACT_POINTS, ENTRY_POINTS, EXTENDS_POINTS

RESERVED: Final = ("auto", "reference")
"""Names that mean something to ``trivet.device`` and that no plugin may take."""

PROJECT: Final = "The trivet authors"
"""Author in the metadata of this project's own distributions; another's device goes first."""

_MARK: Final = "trivet."
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
_RANGE: Final = re.compile(r"v(\d+):v(\d+)")


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

    @property
    def home(self) -> str:
        """Distribution and version in one word, for messages."""
        return f"{self.dist} {self.version}"

    @property
    def entry_point(self) -> EntryPoint:
        """The entry point, ready to load."""
        return EntryPoint(self.name, self.module, ENTRY_POINTS)

    def flaw(self) -> str:
        """Why this metadata cannot be used at all; empty when it can."""
        if self.rivals:
            return f"the name {self.name!r} is claimed by {self.home} and {', '.join(self.rivals)}"
        if not _NAME.fullmatch(self.name):
            return f"the name {self.name!r} is not lower_snake_case"
        if self.name in RESERVED:
            return f"the name {self.name!r} is reserved"
        return ""

    def misfit(self, contract: int) -> str:
        """Why it does not fit this core's contract; empty when it does."""
        if not self.contract:
            stray = f" (it states one for {', '.join(self.strays)})" if self.strays else ""
            return f"it states no contract range{stray}; this trivet has contract {contract}"
        match = _RANGE.fullmatch(self.contract)
        if not match:
            return f"its contract range {self.contract!r} is not of the form vN:vM"
        lowest, highest = int(match[1]), int(match[2])
        if lowest <= contract <= highest:
            return ""
        return f"built for contract {lowest} to {highest}, this trivet has contract {contract}"


def normalised(name: str) -> str:
    """The name of a distribution as package tools compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def candidates() -> tuple[Candidate, ...]:
    """Every plugin of every installed distribution, in order of name, then distribution."""
    found = [candidate for dist in _ours() for candidate in _of(dist)]
    return tuple(sorted(found, key=lambda c: (c.name, c.dist)))


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


def _ours() -> Iterator[Distribution]:
    """The distributions that name a group of ours, without those hidden by an earlier folder."""
    seen: set[str] = set()
    for dist in distributions():
        text = dist.read_text("entry_points.txt")
        if not text or _MARK not in text:
            continue
        name = normalised(dist.metadata["Name"] or "")
        if not name or name in seen:
            continue
        seen.add(name)
        try:
            first = first_distribution(name)
        except PackageNotFoundError:  # a finder that lists what it does not find by name
            first = dist
        if first.read_text("entry_points.txt") == text:
            yield dist


def _of(dist: Distribution) -> list[Candidate]:
    points: dict[str, list[EntryPoint]] = {}
    for point in dist.entry_points:
        points.setdefault(point.group, []).append(point)
    contracts = {p.name: p.value for p in points.get(CONTRACT_POINTS, ())}
    extends = {p.name: p.value for p in points.get(EXTENDS_POINTS, ())}
    plugins = points.get(ENTRY_POINTS, ())
    strays = tuple(sorted(set(contracts) - {p.name for p in plugins}))
    return [
        Candidate(
            name=point.name,
            module=point.value,
            dist=dist.metadata["Name"],
            version=dist.version,
            contract=contracts.get(point.name, "").replace(" ", ""),
            extends=extends.get(point.name, ""),
            strays=strays,
            own=dist.metadata["Author"] == PROJECT,
        )
        for point in plugins
    ]
