"""What an owner of a Mac runs once, so that others need not believe the emulator alone.

One JSON: the machine, what the conformance kit found on its GPU at level L2, how fast operators
are beside torch's, and the versions of everything.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import torch

from trivet_metal import __version__, benchmarks
from trivet_metal.discovery import record, this_machine
from trivet_metal.status import STATUS

LEVEL: Final = "L2"
CALLS: Final = 50
BAD: Final = ("fail", "error", "crash", "timeout", "hang")
_KIT: Final = "from trivet_conformance.cli.program import main; main()"


def document(*, quick: bool = False) -> dict[str, Any]:
    """Everything that is found on this machine's GPU; it takes some minutes."""
    device = this_machine().device
    assert device is not None  # noqa: S101 - the command looked
    dtypes = tuple(getattr(torch, name) for name in ("float32", "float16", "bfloat16"))
    dtypes = tuple(t for t in dtypes if str(t).removeprefix("torch.") in device.dtypes)
    sizes, calls = (benchmarks.TINY, 1) if quick else (benchmarks.SIZES, CALLS)
    return {
        **_about(),
        "device": device.to_json(),
        "kit": kit(("--plugin", "metal", "--execution", "hardware"), quick=quick),
        "benchmarks": benchmarks.measured(device.torch, sizes, dtypes, calls),
    }


def _about() -> dict[str, Any]:
    return {
        "kind": "trivet-metal verification",
        "status_before": STATUS,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "trivet_metal": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "machine": record.gather(),
    }


def kit(words: tuple[str, ...], *, quick: bool) -> dict[str, Any]:
    """The kit's summary and every line that is no pass, from a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        how = ("--quick",) if quick else ("--level", LEVEL)
        command = [sys.executable, "-c", _KIT, "run", *words, *how, "--dir", folder, "--json"]
        done = subprocess.run(  # noqa: S603 - our own interpreter and words
            command, capture_output=True, text=True, check=False
        )
        lines = Path(folder, "report.jsonl")
        rows = lines.read_text(encoding="utf-8").splitlines() if lines.exists() else []
    results = [row for row in map(json.loads, rows) if row.get("kind") == "result"]
    counts: dict[str, int] = {}
    for row in results:
        counts[row["status"]] = counts.get(row["status"], 0) + 1
    return {
        "exit_status": done.returncode,
        "counts": counts,
        "bad": [row for row in results if row["status"] in BAD],
        "said": "" if rows else (done.stderr or done.stdout)[-2000:],
    }
