"""A run: every family over every implementation of a plugin, results as they come."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from trivet_conformance import collective, memory
from trivet_conformance.calls.calling import one_thread
from trivet_conformance.families import FAMILIES, Case
from trivet_conformance.judging.truth import Bench
from trivet_conformance.result import Finding, Result, Status
from trivet_conformance.subject.subject import Subject, Target

Step = Callable[[str], object]
T = TypeVar("T")


@dataclass(frozen=True)
class Place:
    """Where a run is: an implementation in a family, and a case of it where one is open.

    Args:
        family: the family.
        op: the operator.
        provider: whose implementation.
        label: the form, as cases call it.
        case: the case; empty while cases are made.
        dtype: dtypes of the case, as text.
    """

    family: str
    op: str
    provider: str
    label: str = ""
    case: str = ""
    dtype: str = ""

    @property
    def start(self) -> str:
        """The start of the ids of its results."""
        return f"{self.family}/{self.op}/{self.provider}/"

    @property
    def group(self) -> str:
        """The implementation in the family, in one word."""
        return f"{self.start}{self.label}"

    @property
    def id(self) -> str:
        """The id of the open case; while cases are made, that of the case that says so."""
        return self.start + (self.case or f"cases:{self.label}")


class Watch:
    """Is told of everything that a run does, and may leave parts out; this one lets all pass."""

    owns_process = False
    """Whether the process is the run's own: then an interrupt is raised by the plugin itself."""

    def group(self, place: Place) -> bool:
        """Before the cases of an implementation in a family are made; False leaves them out."""
        del place
        return True

    def end(self, place: Place) -> None:
        """All cases of an implementation in a family are done."""

    def case(self, place: Place) -> bool:
        """Before a case; False leaves it out."""
        del place
        return True

    def judged(self, place: Place, finding: Finding) -> Finding:
        """After a case; what it returns is the result."""
        del place
        return finding

    def broken(self, finding: Finding) -> None:
        """The making of cases came to an end that is none."""


def run(
    subject: Subject,
    *,
    families: Collection[str] = (),
    seed: int = 0,
    quick: bool = False,
    case: str = "",
    progress: Step = lambda _: None,
    bench: Bench | None = None,
    watch: Watch | None = None,
) -> Iterator[Result]:
    """Runs families over a subject, in this process, and gives each result when it is known.

    Args:
        subject: what is under test.
        families: names of families, those on memory and collectives among them; none means all.
        seed: decides every random number.
        quick: small grids, for a first look; never enough for a certificate.
        case: id of the only check to run.
        progress: called with a text before each family of an implementation.
        bench: truths of an earlier run with the same seed and grids, kept for the next one.
        watch: is told of everything, and may leave parts out.
    """
    keep, bench = bench is not None, bench or Bench(seed, quick=quick)
    watch = watch or Watch()
    for place, check in every_check(
        subject, families, bench, case=case, progress=progress, watch=watch, keep=keep
    ):
        yield result(subject, seed, place, watch.judged(place, safe(check, watch)))


def every_check(
    subject: Subject,
    families: Collection[str],
    bench: Bench,
    *,
    case: str = "",
    progress: Step = lambda _: None,
    watch: Watch | None = None,
    keep: bool = False,
) -> Iterator[tuple[Place, Callable[[], Finding]]]:
    """Everything that a run would try, in its order, none of it tried yet; as for ``run``."""
    watch = watch or Watch()
    for place, finding in claims(subject):
        if (not case or place.id == case) and watch.case(place):
            yield place, partial(_said, finding)
    for target in grouped(subject.targets, bench, keep=keep):
        for family in [f for f in families or FAMILIES if f in FAMILIES]:
            group = place_of(target, family)
            progress(group.group)
            if (case and not case.startswith(group.start)) or not watch.group(group):
                continue
            yield from checks_of(FAMILIES[family](target, bench), group, case, watch)
    for group in memory_places(subject, families):
        progress(group.group)
        if subject.memory is None or (case and not case.startswith(group.start)):
            continue
        if watch.group(group):
            own = memory.cases(group.family, subject.memory, bench)
            yield from checks_of(own, group, case, watch)
    for group in comm_places(subject, families):
        progress(group.group)
        if subject.comm is None or (case and not case.startswith(group.start)):
            continue
        if watch.group(group):
            own = collective.cases(group.family, subject.comm, bench)
            yield from checks_of(own, group, case, watch)


def checks_of(
    cases: Iterator[Case], group: Place, case: str, watch: Watch
) -> Iterator[tuple[Place, Callable[[], Finding]]]:
    """The cases of a group that are to be run, each with its place."""
    for one in _safely(cases, group, watch):
        place = replace(group, case=one.name, dtype=one.dtype)
        if (not case or place.id == case) and watch.case(place):
            yield place, one.run
    watch.end(group)


def memory_places(subject: Subject, families: Collection[str]) -> list[Place]:
    """The families on memory that a run has, each with the provider that it judges."""
    if subject.memory is None:
        return []
    return [
        Place(name, memory.OPERATOR, memory.provider(name, subject.memory))
        for name in memory.MEMORY
        if not families or name in families
    ]


def comm_places(subject: Subject, families: Collection[str]) -> list[Place]:
    """The families on collectives that a run has, each with the provider that it judges."""
    if subject.comm is None:
        return []
    return [
        Place(name, collective.OPERATOR, subject.comm.owner)
        for name in collective.COMM
        if not families or name in families
    ]


def _said(finding: Finding) -> Finding:
    return finding


def place_of(target: Target, family: str, case: str = "", dtype: str = "") -> Place:
    """A case of an implementation; without one, the family of it."""
    return Place(family, target.op.name, target.provider, target.label, case, dtype)


def result(subject: Subject, seed: int, place: Place, finding: Finding) -> Result:
    """The line of a report for a finding."""
    return Result(
        place.family,
        place.op,
        place.provider,
        place.id.removeprefix(place.start),
        place.dtype,
        finding,
        seed,
        subject.plugin,
        subject.execution,
    )


def claims(subject: Subject) -> Iterator[tuple[Place, Finding]]:
    """What core refused of a plugin, and what this device cannot run."""
    for claim, why in subject.refused:
        place = Place("load", claim, subject.plugin, case="claim")
        yield place, Finding(Status.FAIL, why)
    for provider, op, why in subject.unmet:
        yield Place("load", op, provider, case="device"), Finding(Status.NOT_RUN, why)


def _safely(cases: Iterator[Case], group: Place, watch: Watch) -> Iterator[Case]:
    """The cases of a family; where making the next one raises, a case that says so ends them."""
    while True:
        broken: list[Finding] = []

        def following(cases: Iterator[Case] = cases) -> Case | None:
            return next(cases, None)

        case = _guarded(following, watch, broken)
        if broken:
            finding = broken[0]
            watch.broken(finding)
            name = group.id.removeprefix(group.start)
            reason = f"no further cases: {finding.reason}"
            end = Finding(finding.status, reason, finding.margin)
            case, cases = Case(name, "", lambda end=end: end), iter(())  # type: ignore[misc]
        if case is None:
            return
        yield case


def grouped(targets: Iterable[Target], bench: Bench, *, keep: bool = False) -> Iterator[Target]:
    """Targets by operator, so that what is right is computed once and then forgotten."""
    groups: dict[str, list[Target]] = {}
    for target in targets:
        groups.setdefault(target.op.name, []).append(target)
    for group in groups.values():
        yield from group
        if not keep:
            bench.forget()


def safe(check: Callable[[], Finding], watch: Watch) -> Finding:
    """What a check found; what it raises becomes its finding."""
    raised: list[Finding] = []
    found = _guarded(check, watch, raised)
    if raised:
        return raised[0]
    assert found is not None  # noqa: S101 - a check returns a finding or raises
    return found


def _guarded(act: Callable[[], T], watch: Watch, raised: list[Finding]) -> T | None:
    """Runs foreign code on one thread; a finding for what it raises is put into a list."""
    try:
        with one_thread():
            return act()
    except Exception as error:  # noqa: BLE001 - one check must not end a run; it is reported
        raised.append(Finding(Status.ERROR, told(error)))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | GeneratorExit) and not watch.owns_process:
            raise
        # The kit raises no such thing: it comes from the plugin, and would end a user's process.
        raised.append(Finding(Status.FAIL, f"raised {told(error)}", 1.0))
    return None


def told(error: BaseException) -> str:
    """An exception in one line, with the place where it was raised."""
    where = traceback.extract_tb(error.__traceback__)
    place = f" ({where[-1].name}, line {where[-1].lineno})" if where else ""
    return f"{type(error).__name__}: {error}{place}"


def steps(subject: Subject, families: Collection[str] = ()) -> int:
    """How often ``run`` calls ``progress``."""
    chosen = [f for f in families or FAMILIES if f in FAMILIES]
    legs = [*memory_places(subject, families), *comm_places(subject, families)]
    return len(subject.targets) * len(chosen) + len(legs)
