"""Code of the Triton kernels for AMD's architectures, compiled ahead of time: facts, no times.

``python benchmarks/rocm_ahead.py [--json FILE] [--arch NAME]`` compiles every variant by the
installed Triton and writes rows; none of it runs. ``--rows FILE`` prints what is in such a file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trivet.contracts import Execution
from trivet.kernels.triton.ahead import Built, compiled
from trivet.kernels.triton.kernel_set import triton_version
from trivet_rocm import STATUS
from trivet_rocm.kernel_set import kernel_set

RESULTS = Path(__file__).parent / "results"


def row_of(built: Built, dtype: str) -> dict[str, Any]:
    """One row; facts are null where a variant did not compile."""
    facts = built.facts
    counts: Mapping[str, int] = facts.counts if facts else {}
    spills = None if facts is None else counts["vgpr_spills"] + counts["sgpr_spills"]
    return {
        "kernel": built.variant,
        "arch": built.arch,
        "dtype": dtype,
        "compiled": facts is not None,
        "vgpr": counts.get("vgpr"),
        "agpr": counts.get("agpr"),
        "sgpr": counts.get("sgpr"),
        "spills": spills,
        "scratch_bytes": facts.stack if facts else None,
        "lds_bytes": facts.shared if facts else None,
        "occupancy": facts.occupancy if facts else None,
        "instructions": dict(facts.instructions) if facts else None,
        "widest_load": max(facts.loads, default=0) if facts else None,
        "gates": built.verdict,
        "breaches": list(built.breaches),
    }


def made(archs: Sequence[str], processes: int) -> list[dict[str, Any]]:
    """Every variant on each architecture, in order of names."""
    kernels = kernel_set()
    dtypes = {
        (arch, name): next(t for _, t in variant.types if t.startswith("*")).lstrip("*")
        for arch in archs
        for (_, name), variant in kernels.variants(arch).items()
    }
    rows = []
    for built in compiled(kernels, archs, processes=processes):
        rows.append(row_of(built, dtypes[built.arch, built.variant]))
        print(f"\r{len(rows)} of {len(dtypes)}", end="", file=sys.stderr)
    print(file=sys.stderr)
    return sorted(rows, key=lambda r: (archs.index(r["arch"]), r["kernel"]))


def summary(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line an architecture: how many compile, spill, and keep to their gates."""
    lines = []
    by_arch: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_arch.setdefault(row["arch"], []).append(row)
    for arch, found in by_arch.items():
        good = [r for r in found if r["compiled"]]
        spilled = [r for r in good if r["spills"] or r["scratch_bytes"]]
        beyond = [r for r in found if r["gates"] == "breach"]
        vgpr = max((r["vgpr"] for r in good), default=0)
        lines.append(
            f"{arch}: {len(good)} of {len(found)} compile, {len(spilled)} spill, at most {vgpr} "
            f"VGPR, {len(beyond)} beyond their gates"
        )
    return lines


def write(out: Path, version: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """The file, a row a line."""
    about = {"triton": version, "execution": Execution.COMPILE_ONLY.value, "status": STATUS}
    head = json.dumps({**about, "rows": []}, indent=1)
    lines = ",\n  ".join(map(json.dumps, rows))
    out.write_text(head.replace('"rows": []', f'"rows": [\n  {lines}\n ]') + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the rows; 1 where a variant is beyond its gates or does not compile."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", metavar="FILE", help="by default in benchmarks/results")
    parser.add_argument("--arch", action="append", default=[])
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--rows", metavar="FILE", help="print a file, compile nothing")
    given = parser.parse_args(arguments)
    if given.rows:
        print("\n".join(summary(json.loads(Path(given.rows).read_text())["rows"])))
        return 0
    version = triton_version()
    rows = made(given.arch or list(kernel_set().targets), given.processes)
    write(Path(given.json or RESULTS / f"rocm-aot-triton{version}.json"), version, rows)
    print("\n".join(summary(rows)))
    return 1 if any(r["breaches"] for r in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
