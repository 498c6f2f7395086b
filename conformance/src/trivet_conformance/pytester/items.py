"""The checks of the kit as pytest items: the same ids, statuses as pytest's own words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import trivet_conformance
from trivet.errors import TrivetError
from trivet_conformance.calls.calling import one_thread
from trivet_conformance.families import FAMILIES, Case
from trivet_conformance.judging.truth import Bench
from trivet_conformance.result import BAD, Finding, Result, Status
from trivet_conformance.subject.subject import Subject, Target, installed

PLACE: Final = Path(trivet_conformance.__file__).parent
GOOD: Final = (Status.PASS, Status.REFUSED_OK)
EVERYTHING: Final = "load"


class Refused(Exception):
    """A check that makes a run fail; its text is what pytest prints."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the kit."""
    group = parser.getgroup("trivet", "trivet conformance (with --pyargs trivet_conformance)")
    group.addoption("--trivet-plugin", metavar="NAME", help="plugin under test")
    group.addoption(
        "--trivet-op", metavar="NAME", action="append", default=[], help="only this operator"
    )
    group.addoption(
        "--trivet-family", choices=list(FAMILIES), action="append", default=[], help="only this one"
    )
    group.addoption("--trivet-seed", type=int, default=0, help="decides every random number")
    group.addoption("--trivet-quick", action="store_true", help="small grids, never a claim")


@pytest.hookimpl(tryfirst=True)
def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """The package of the kit holds checks, not test files."""
    if path != PLACE:
        return None
    found: pytest.Collector = Checks.from_parent(parent, path=path, nodeid=PLACE.name)
    return found


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A run in which nothing was judged is no success, as with the kit's own command."""
    checks = [item for item in session.items if isinstance(item, Check)]
    if exitstatus == pytest.ExitCode.OK and checks and not any(c.judged for c in checks):
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


class Checks(pytest.Directory):
    """Every check of one plugin."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        """Makes the cases of every family for every implementation; runs none."""
        option = self.config.option
        if not option.trivet_plugin:
            msg = "the kit needs the plugin under test: --trivet-plugin=NAME"
            raise self.CollectError(msg)
        try:
            subject = installed(option.trivet_plugin)
            subject = subject.only(option.trivet_op) if option.trivet_op else subject
        except (TrivetError, ValueError) as error:
            raise self.CollectError(str(error)) from error
        bench = Bench(option.trivet_seed, quick=option.trivet_quick)
        families = option.trivet_family or list(FAMILIES)
        for family, op, provider, case in every_case(subject, families, bench):
            made = Result(
                family, op, provider, case.name, case.dtype, Finding(Status.NOT_RUN), bench.seed,
                subject.plugin, subject.execution,
            )  # fmt: skip
            yield Check.from_parent(self, name=made.id, case=case, head=made, bench=bench)


def every_case(
    subject: Subject, families: Iterable[str], bench: Bench
) -> Iterator[tuple[str, str, str, Case]]:
    """Family, operator, provider and case of everything that a run would try, in its order."""
    for claim, why in subject.refused:
        yield EVERYTHING, claim, subject.plugin, _said("claim", Finding(Status.FAIL, why))
    for provider, op, why in subject.unmet:
        yield EVERYTHING, op, provider, _said("device", Finding(Status.NOT_RUN, why))
    for target in sorted(subject.targets, key=_first_of(subject)):
        for family in families:
            yield from ((family, target.op.name, target.provider, c) for c in _of(family, target,
                        bench))  # fmt: skip
        bench.forget()


def _first_of(subject: Subject) -> Any:
    """Orders targets by the first appearance of their operator."""
    order = list(dict.fromkeys(t.op.name for t in subject.targets))
    return lambda target: order.index(target.op.name)


def _of(family: str, target: Target, bench: Bench) -> Iterator[Case]:
    cases = FAMILIES[family](target, bench)
    while True:
        try:
            with one_thread():
                case = next(cases, None)
        except Exception as error:  # noqa: BLE001 - foreign code runs while cases are made
            text = f"no further cases: {type(error).__name__}: {error}"
            yield _said("cases", Finding(Status.ERROR, text))
            return
        if case is None:
            return
        yield case


def _said(name: str, finding: Finding) -> Case:
    return Case(name, "", lambda: finding)


class Check(pytest.Item):
    """One check."""

    def __init__(self, *, case: Case, head: Result, bench: Bench, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.case = case
        self.head = head
        self.bench = bench
        self.judged = False

    def runtest(self) -> None:
        """Runs the check: passes, is skipped with its reason, or fails."""
        with one_thread():
            found = self.case.run()
        self.user_properties.append(("status", found.status.value))
        self.user_properties.append(("margin", found.margin))
        if found.status in BAD:
            raise Refused(f"{found.status.value}: {found.reason}\n  {self.head.repro}")
        self.judged = found.status in GOOD
        if not self.judged:  # the status and its reason; alone they are no success: see below
            pytest.skip(f"{found.status.value}: {found.reason}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The reason and the command that repeats the check; no trace of the kit's own code."""
        if isinstance(excinfo.value, Refused):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Where a check is: its id says everything."""
        return self.path, None, self.name


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Forgets what is right for an operator when its last check is over."""
    if isinstance(item, Check) and (
        not isinstance(nextitem, Check) or nextitem.head.op != item.head.op
    ):
        item.bench.forget()
