"""Plugins that are hostile, each in one way, and what a run must say of each.

The other files of this folder are the plugins. None is imported here: each becomes a package of
its own, beside harmless implementations, and is run as a user would run it; the results of the
harmless ones must be what they would be without it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trivet_conformance.result import BAD, Result, Status
from trivet_conformance.running.drive import Driver
from trivet_conformance.running.wire import Job
from trivet_conformance.selftest.selftest import Outcome
from trivet_conformance.subject.locating import locate

OPERATORS: Final = ("embedding", "silu_and_mul")
HARMLESS: Final = "/good"
"""How the harmless implementations' providers end."""

_LIMIT: Final = 60.0


@dataclass(frozen=True)
class Hostile:
    """One hostile plugin.

    Args:
        name: of this row.
        file: the plugin's file, without its suffix.
        does: what it does, in a few words.
        family: in which family a run must say so.
        status: with which status.
        told: a part of the reason, or of the notes.
        number: its class of defects; 0 where it has none of its own.
        alive: whether harmless implementations run at all.
        harness: whether only the checks around the calls can see it.
        operators: which operators the run is restricted to; none means no restriction.
        limit: seconds of a case.
        attr: what the plugin's metadata names in its module.
        contract: the contract that its metadata claims.
    """

    name: str
    file: str
    does: str
    family: str
    status: Status
    told: str
    number: int = 0
    alive: bool = True
    harness: bool = False
    operators: tuple[str, ...] = OPERATORS
    limit: float = _LIMIT
    attr: str = ""
    contract: str = ""


HOSTILE: Final = (
    Hostile("raises_at_import", "raises_at_import", "raises when it is imported",
            "load", Status.FAIL, "libhostile", 91, alive=False),
    Hostile("wrong_contract", "plain", "claims a contract that nobody knows",
            "load", Status.FAIL, "contract 99", 92, alive=False, contract="v99:v99"),
    Hostile("wrong_signature", "wrong_signature", "has other parameters than the operator",
            "load", Status.FAIL, "epsilon", 92, operators=()),
    Hostile("missing_attribute", "plain", "its metadata names what its module lacks",
            "load", Status.FAIL, "nowhere", 94, alive=False, attr="nowhere"),
    Hostile("crashes", "crashes", "reads at address zero",
            "value", Status.CRASH, "SIGSEGV", 95),
    Hostile("breaks_the_device", "breaks_the_device", "leaves a device that does nothing more",
            "value", Status.CRASH, "the device failed in it"),
    Hostile("exits", "exits", "calls sys.exit",
            "value", Status.FAIL, "SystemExit", 96),
    Hostile("ends", "ends", "calls os._exit with the status of success",
            "value", Status.CRASH, "ended with status 0", 96),
    Hostile("closes_descriptors", "closes_descriptors", "closes the kit's descriptors",
            "value", Status.CRASH, "closed descriptors", 97),
    Hostile("writes_junk", "writes_junk", "writes to every open descriptor",
            "harness", Status.FAIL, "junk", 97),
    Hostile("prints", "prints", "prints a lot",
            "harness", Status.PASS, "hostile says something"),
    Hostile("patches", "patches", "makes torch's comparisons true",
            "value", Status.FAIL, "torch.equal was replaced", 98),
    Hostile("detects_modules", "detects_modules", "is right only where the kit is loaded",
            "harness", Status.FAIL, "wrong in an ordinary process", 99, harness=True),
    Hostile("detects_environment", "detects_environment",
            "is right only where variables or arguments name a test",
            "value", Status.FAIL, "", 99),
    Hostile("detects_stack", "detects_stack", "is right only where the kit calls it",
            "harness", Status.FAIL, "wrong in an ordinary process", 99, harness=True),
    Hostile("leaks", "leaks", "keeps memory of every call",
            "harness", Status.FAIL, "MiB behind", 100, harness=True),
    Hostile("hangs", "hangs", "does not come back",
            "value", Status.TIMEOUT, "no end within", limit=10.0),
    Hostile("leaves_a_mode", "leaves_a_mode", "leaves a mode of torch on",
            "value", Status.FAIL, "a mode was left on"),
    Hostile("answers_lazily", "answers_lazily", "gives a tensor of its own class",
            "harness", Status.FAIL, "subclass", harness=True),
    Hostile("changes_defaults", "changes_defaults", "changes torch's default dtype and seed",
            "value", Status.FAIL, "torch's default dtype was changed"),
)  # fmt: skip
"""Every hostile plugin."""


def judge_hostile(names: Collection[str] = (), seed: int = 0) -> Iterator[Outcome]:
    """Runs hostile plugins in child processes, and says whether each was told as it must be.

    An outcome is ok where its family told of the plugin, with the status and the words of its
    row, the run came to its end, and every result of its harmless implementations is a pass.

    Args:
        names: rows of ``HOSTILE``; none means all.
        seed: of the runs.
    """
    for row in HOSTILE:
        if not names or row.name in names:
            with tempfile.TemporaryDirectory() as folder:
                yield _judged(row, Path(folder), seed)


def hostile_figures(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The figures of hostile plugins in a self-test."""
    return {
        "hostile": len(outcomes),
        "hostile_reported": sum(o.ok for o in outcomes),
        "hostile_plugins": [o.to_json() for o in outcomes],
    }


def _judged(row: Hostile, folder: Path, seed: int) -> Outcome:
    plugin = f"hostile_{row.file}"
    package = folder / "plugin" / plugin
    package.mkdir(parents=True)
    here = Path(__file__).parent
    shutil.copyfile(here / f"{row.file}.py", package / "__init__.py")
    shutil.copyfile(here / "harmless.py", package / "harmless.py")
    if row.contract:
        text = _METADATA.format(name=plugin, contract=row.contract)
        (package.parent / "pyproject.toml").write_text(text, encoding="utf-8")
    found = locate(f"{package}:{row.attr}" if row.attr else str(package), folder / "metadata")
    job = Job(
        found.name, paths=found.paths, families=("value",), ops=row.operators, seed=seed,
        quick=True, harness=row.harness,
    )  # fmt: skip
    driver = Driver(job, limit=row.limit)
    results = list(driver.run())
    killed = {r.family: f"{r.id}: {r.finding.reason}" for r in results if r.status in BAD}
    told = [r for r in results if _tells(row, r)]
    problem = _problem(row, results, driver)
    if problem or not told:
        killed.pop(row.family, None)
        seen = "; ".join(f"{r.id}: {r.status}: {r.finding.reason}" for r in results[-3:])
        killed["nothing"] = problem or f"nothing tells that it {row.does}; the last lines: {seen}"
    elif row.status not in BAD:
        killed[row.family] = f"{told[0].id}: {told[0].status}, and told"
    return Outcome(
        name=row.name, operator=OPERATORS[0], killer=row.family, tried=("load", "value", "harness"),
        killed=tuple(killed), reasons=killed, number=row.number,
    )  # fmt: skip


def _tells(row: Hostile, result: Result) -> bool:
    said = "\n".join([result.finding.reason, *result.finding.notes])
    return (result.family, result.status) == (row.family, row.status) and row.told in said


def _problem(row: Hostile, results: Sequence[Result], driver: Driver) -> str:
    """What became of the run and of the harmless implementations that must not."""
    if not driver.finished:
        return f"the run did not end: {driver.refused or 'processes died'}"
    harmless = [r for r in results if r.provider.endswith(HARMLESS)]
    if row.alive and {r.op for r in harmless if r.family == "value"} < set(OPERATORS):
        return "harmless implementations were not judged"
    for result in harmless:
        if result.status is not Status.PASS:
            return f"harm: {result.id}: {result.status}: {result.finding.reason}"
    return ""


_METADATA: Final = """\
[project.entry-points."trivet.plugins"]
{name} = "{name}"

[project.entry-points."trivet.contract"]
{name} = "{contract}"
"""
