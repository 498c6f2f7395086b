"""The steps: a command each, and the document that it leaves."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trivet.contracts import DeviceInfo
from trivet_rocm.discovery.architecture import SAME_CODE

_TAIL: Final = 4000
_CLI: Final = "from trivet.cli import main; main()"
_KIT: Final = "from trivet_conformance.cli.program import main; main()"


@dataclass(frozen=True)
class Step:
    """One process.

    Args:
        name: of the step.
        command: what is run.
        document: the JSON that it leaves; None where it prints it.
    """

    name: str
    command: tuple[str, ...]
    document: Path | None = None


def steps(devices: Sequence[DeviceInfo], work: Path, *, quick: bool) -> list[Step]:
    """All steps in order, the shortest first."""
    python = sys.executable
    arch = devices[0].arch[0] if devices else "gfx942"
    kit = work / "kit"
    bench = work / "benchmarks.json"
    checks = work / "checks.json"
    return [
        Step("doctor", (python, "-c", _CLI, "doctor", "--json")),
        Step(
            "checks",
            (python, "-m", "trivet_rocm.verify.checks", "--out", str(checks)),
            checks,
        ),
        Step(
            "code",
            (
                python, "-c", _CLI, "kernels", "--plugin", "rocm",
                "--arch", SAME_CODE.get(arch, arch), "--json",
            ),
        ),
        Step(
            "benchmarks",
            (python, "-m", "trivet_rocm.verify.benchmarks", "--out", str(bench)),
            bench,
        ),
        Step(
            "kit",
            (
                python, "-c", _KIT, "run", "--plugin", "rocm", "--level", "L2",
                "--dir", str(kit), *(("--resume",) if (kit / "report.jsonl").exists() else ()),
                *(("--quick",) if quick else ()),
            ),
            kit / "summary.json",
        ),
    ]  # fmt: skip


def done(step: Step, seconds: float) -> dict[str, Any]:
    """Runs a step: its word (``passed``, ``failed``, ``cut``), its document, its last words."""
    began = time.monotonic()
    try:
        ran = subprocess.run(  # noqa: S603 - our own commands
            step.command, capture_output=True, text=True, check=False, timeout=seconds
        )
        code, out, error = ran.returncode, ran.stdout, ran.stderr
        word = "passed" if code == 0 else "failed"
    except subprocess.TimeoutExpired as cut:
        code, word = -1, "cut"
        out, error = (_text(part) for part in (cut.stdout, cut.stderr))
    return {
        "name": step.name,
        "word": word,
        "status": code,
        "seconds": round(time.monotonic() - began, 1),
        "document": _document(step, out),
        "out": "" if step.document is None and word == "passed" else out[-_TAIL:],
        "error": error[-_TAIL:],
    }


def _document(step: Step, out: str) -> Any:
    try:
        text = out if step.document is None else step.document.read_text(encoding="utf-8")
        return json.loads(text)
    except (OSError, ValueError):
        return None


def _text(part: str | bytes | None) -> str:
    return part.decode(errors="replace") if isinstance(part, bytes) else part or ""
