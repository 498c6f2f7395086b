"""A run: every family over every implementation of a plugin, results as they come."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Iterable, Iterator

from trivet_conformance.calls.calling import one_thread
from trivet_conformance.families import FAMILIES, Case
from trivet_conformance.judging.truth import Bench
from trivet_conformance.result import Finding, Result, Status
from trivet_conformance.subject.subject import Subject, Target

Step = Callable[[str], object]


def run(
    subject: Subject,
    *,
    families: Collection[str] = (),
    seed: int = 0,
    quick: bool = False,
    case: str = "",
    progress: Step = lambda _: None,
    bench: Bench | None = None,
) -> Iterator[Result]:
    """Runs families over a subject and gives each result when it is known.

    Args:
        subject: what is under test.
        families: names of families; none means all.
        seed: decides every random number.
        quick: small grids, for a first look; never enough for a certificate.
        case: id of the only check to run.
        progress: called with a text before each family of an implementation.
        bench: truths of an earlier run with the same seed and grids, kept for the next one.
    """
    chosen = {n: FAMILIES[n] for n in (families or FAMILIES)}
    keep, bench = bench is not None, bench or Bench(seed, quick=quick)

    def result(family: str, op: str, provider: str, name: str, dtype: str, f: Finding) -> Result:
        plugin, word = subject.plugin, subject.execution
        return Result(family, op, provider, name, dtype, f, seed, plugin, word)

    if not case:
        for claim, why in subject.refused:
            yield result("load", claim, subject.plugin, "claim", "", Finding(Status.FAIL, why))
        for provider, op, why in subject.unmet:
            yield result("load", op, provider, "device", "", Finding(Status.NOT_RUN, why))
    for target in grouped(subject.targets, bench, keep=keep):
        for family, cases in chosen.items():
            start = f"{family}/{target.op.name}/{target.provider}/"
            progress(f"{start}{target.form}")
            if case and not case.startswith(start):
                continue
            for one in _safely(cases(target, bench)):
                if not case or start + one.name == case:
                    yield result(
                        family, target.op.name, target.provider, one.name, one.dtype, _run(one)
                    )


def _safely(cases: Iterator[Case]) -> Iterator[Case]:
    """The cases of a family; where making the next one raises, a case that says so ends them."""
    while True:
        try:
            with one_thread():
                case = next(cases, None)
        except Exception as error:  # noqa: BLE001 - foreign code runs while cases are made
            case, cases = _broken_off(error), iter(())
        if case is None:
            return
        yield case


def _broken_off(error: Exception) -> Case:
    finding = Finding(Status.ERROR, f"no further cases: {_told(error)}")
    return Case("cases", "", lambda: finding)


def grouped(targets: Iterable[Target], bench: Bench, *, keep: bool = False) -> Iterator[Target]:
    """Targets by operator, so that what is right is computed once and then forgotten."""
    groups: dict[str, list[Target]] = {}
    for target in targets:
        groups.setdefault(target.op.name, []).append(target)
    for group in groups.values():
        yield from group
        if not keep:
            bench.forget()


def _run(case: Case) -> Finding:
    try:
        with one_thread():
            return case.run()
    except Exception as error:  # noqa: BLE001 - one check must not end a run; it is reported
        return Finding(Status.ERROR, _told(error))


def _told(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({place.name}, line {place.lineno})"


def steps(subject: Subject, families: Collection[str] = ()) -> int:
    """How often ``run`` calls ``progress``."""
    return len(subject.targets) * len(families or FAMILIES)
