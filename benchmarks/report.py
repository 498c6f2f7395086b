"""How every benchmark shows its figures: a table, a picture, and JSON for machines."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Row:
    """One figure: its stable name, value, unit, and what it is compared with."""

    name: str
    value: float
    unit: str
    against: str = ""


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    return {
        "processor": _processor(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "system": platform.platform(terse=True),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def versions() -> dict[str, str]:
    """Versions of Python, torch and every distribution of this project that is installed."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for dist in importlib.metadata.distributions():
        name = dist.metadata["Name"] or ""
        if name == "trivet" or name.startswith("trivet-"):
            found[name] = dist.version
    return found


def document(title: str, rows: Sequence[Row]) -> dict[str, object]:
    """Figures with machine, versions and date."""
    return {
        "benchmark": title,
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "threads": torch.get_num_threads(),
        "rows": [asdict(row) for row in rows],
    }


def publish(title: str, rows: Sequence[Row], target: Path | None) -> None:
    """Prints a table and, where a file is named, writes the JSON document."""
    table = Table(title=f"{title}: {_processor()}, torch {torch.__version__}")
    table.add_column("figure", overflow="fold")
    table.add_column("value", justify="right")
    table.add_column("unit")
    table.add_column("against", overflow="fold")
    for row in rows:
        table.add_row(row.name, f"{row.value:.3g}", row.unit, row.against)
    Console().print(table)
    if target:
        target.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(document(title, rows), indent=1, sort_keys=True)
        target.write_text(text + "\n", encoding="utf-8")
        print(f"wrote {target}", file=sys.stderr)


def picture(path: Path, title: str, rows: Sequence[Row]) -> None:
    """Draws figures as horizontal bars, one a row, in order."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    fig, axes = plt.subplots(figsize=(9, 0.35 * len(rows) + 1.2))
    names = [row.name for row in rows][::-1]
    values = [row.value for row in rows][::-1]
    bars = axes.barh(names, values, color="#37687a")
    axes.bar_label(bars, labels=[f"{v:.3g}" for v in values], padding=3)
    axes.set_title(title)
    axes.set_xlabel(rows[0].unit if rows else "")
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.12)
    fig.tight_layout()
    fig.savefig(path, dpi=120)
    plt.close(fig)
