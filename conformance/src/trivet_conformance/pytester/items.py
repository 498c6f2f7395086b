"""The checks of the kit as pytest items: the same ids, statuses as pytest's own words."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import pytest

import trivet_conformance
from trivet.errors import TrivetError
from trivet_conformance.collective import COMM
from trivet_conformance.families import FAMILIES
from trivet_conformance.judging.truth import Bench
from trivet_conformance.memory import MEMORY
from trivet_conformance.result import BAD, Finding, Result, Status
from trivet_conformance.running.run import Watch, every_check, result, safe
from trivet_conformance.subject.locating import subject_of

PLACE: Final = Path(trivet_conformance.__file__).parent
GOOD: Final = (Status.PASS, Status.REFUSED_OK)


class Refused(Exception):
    """A check that makes a run fail; its text is what pytest prints."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the kit."""
    group = parser.getgroup("trivet", "trivet conformance (with --pyargs trivet_conformance)")
    group.addoption("--trivet-plugin", metavar="NAME|PATH", help="plugin under test")
    group.addoption(
        "--trivet-op", metavar="NAME", action="append", default=[], help="only this operator"
    )
    group.addoption(
        "--trivet-family",
        choices=[*FAMILIES, *MEMORY, *COMM],
        action="append",
        default=[],
        help="only this one",
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
            subject = subject_of(option.trivet_plugin)
            subject = subject.only(option.trivet_op) if option.trivet_op else subject
        except (TrivetError, ValueError) as error:
            raise self.CollectError(str(error)) from error
        bench = Bench(option.trivet_seed, quick=option.trivet_quick)
        families = option.trivet_family
        for place, check in every_check(subject, families, bench):
            head = result(subject, bench.seed, place, Finding(Status.NOT_RUN))
            yield Check.from_parent(self, name=place.id, check=check, head=head, bench=bench)


class Check(pytest.Item):
    """One check."""

    def __init__(
        self, *, check: Callable[[], Finding], head: Result, bench: Bench, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.check = check
        self.head = head
        self.bench = bench
        self.judged = False

    def runtest(self) -> None:
        """Runs the check: passes, is skipped with its reason, or fails."""
        found = safe(self.check, Watch())
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
