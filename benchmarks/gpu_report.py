"""The document of the GPU benchmark: rows, resuming, merging, and the summary."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import report

BAR = 0.97
"""A cell below this and outside its peer's own band is listed."""

DISTRIBUTIONS = (
    "triton", "vllm", "liger-kernel", "flag-gems", "flashinfer-python", "quack-kernels",
    "nvidia-cutlass-dsl", "transformers",
)  # fmt: skip
SIZES = ("tokens", "hidden", "batch", "context", "group", "sequences", "length", "vocab")

Rows = list[dict[str, Any]]


def versions() -> dict[str, str]:
    """Of everything that takes part."""
    found = report.versions()
    for name in DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def row(cell: Any, mode: str, times: Mapping[str, float], copy: float, ours: str) -> dict[str, Any]:
    """One row: our time, each peer's with its band, and the best of them."""
    peers = {
        name: [us, times.get(f"{name} again", us) / us]
        for name, us in times.items()
        if name != ours and not name.endswith(" again")
    }
    us = times[ours]
    made: dict[str, Any] = {"op": cell.op, **cell.sizes, "dtype": cell.dtype, "mode": mode}
    made |= {"us": us, "own_band": times.get(f"{ours} again", us) / us, "provider": cell.provider}
    made["fraction_of_copy"] = cell.nbytes / us * 1e6 / copy
    if cell.flops:
        made["tflops"] = cell.flops / us / 1e6
    made["peers"] = peers
    if peers:
        best = min(peers, key=lambda name: min(peers[name][0], peers[name][0] * peers[name][1]))
        least = min(peers[best][0], peers[best][0] * peers[best][1])
        made |= {"best_peer": best, "best_peer_us": least, "peer_band": peers[best][1]}
        mine = min(us, us * made["own_band"])
        made["ratio_vs_best_peer"] = least / mine
    return made


def identity(one: Mapping[str, Any]) -> tuple[Any, ...]:
    """What tells a row from others."""
    return (one["op"], one["dtype"], one["mode"], *(one.get(n) for n in SIZES))


def merged(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Documents of parts as one; of equal rows the last counts."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    missing: dict[str, str] = {}
    for document in documents:
        rows |= {identity(one): one for one in document["rows"]}
        missing |= document["missing"]
    whole = dict(documents[-1])
    whole["rows"], whole["missing"] = list(rows.values()), missing
    whole["copy_gb_s"] = [g for d in documents for g in d["copy_gb_s"]]
    whole["summary"] = summary(whole["rows"])
    return whole


def outside(one: Mapping[str, Any]) -> bool:
    """Whether a row is slower than its best peer by more than the peer's two timings differ."""
    ratio = one.get("ratio_vs_best_peer", math.inf)
    band = one.get("peer_band", 1.0)
    return bool(ratio < BAR and ratio < min(band, 1 / band))


def name_of(one: Mapping[str, Any]) -> str:
    """A row in words."""
    sizes = "x".join(str(one[n]) for n in SIZES if n in one)
    return f"{one['op']} {sizes} {one['dtype']} {one['mode']}"


def summary(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Geometric means over the best peer of each cell and over each peer, and the slow cells."""
    kinds: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for one in rows:
        kinds[f"{one['op']} {one['mode']}"].append(one)
        kinds[f"all {one['mode']}"].append(one)
    found: dict[str, Any] = {}
    for kind, group in sorted(kinds.items()):
        best = [one["ratio_vs_best_peer"] for one in group if "ratio_vs_best_peer" in one]
        single: dict[str, list[float]] = defaultdict(list)
        for one in group:
            for peer, (us, _) in one["peers"].items():
                single[peer].append(us / one["us"])
        means = {p: statistics.geometric_mean(r) for p, r in single.items()}
        everywhere = {p: m for p, m in means.items() if len(single[p]) == len(group)}
        whole: dict[str, Any] = {"cells": len(group), "over_each_peer": means}
        if best:
            whole["over_best_in_each_cell"] = statistics.geometric_mean(best)
            whole["worst"] = min(best)
        if everywhere:
            strongest = min(everywhere, key=lambda p: everywhere[p])
            whole["over_best_single_peer"] = [strongest, everywhere[strongest]]
        whole["least_fraction_of_copy"] = min(one["fraction_of_copy"] for one in group)
        found[kind] = whole
    slow = [f"{name_of(one)}: {one['ratio_vs_best_peer']:.3f} of {one['best_peer']}"
            for group in kinds.values() for one in group if outside(one)]  # fmt: skip
    found["below"] = sorted(set(slow))
    return found


def load(path: Path) -> dict[str, Any]:
    """A document from its file, or an empty one."""
    if path.exists():
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return document
    return {"benchmark": "gpu_kernels", "rows": [], "missing": {}, "copy_gb_s": [], "wrong": []}


def save(path: Path, document: dict[str, Any], device: Mapping[str, object]) -> None:
    """Writes the document whole, beside the old one first: a killed run leaves one that reads."""
    document |= {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "device": dict(device),
        "versions": versions(),
        "machine": report.machine(),
        "summary": summary(document["rows"]),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    part.replace(path)


def figures(document: Mapping[str, Any]) -> list[report.Row]:
    """The summary as rows of a table and of a picture."""
    found = []
    for kind, whole in document["summary"].items():
        if kind == "below":
            continue
        head = f"gpu_kernels.{kind.replace(' ', '.')}"
        if "over_best_in_each_cell" in whole:
            text = f"best peer in each of {whole['cells']} cells"
            found.append(report.Row(f"{head}.vs_best", whole["over_best_in_each_cell"], "x", text))
        if "over_best_single_peer" in whole:
            peer, mean = whole["over_best_single_peer"]
            found.append(
                report.Row(f"{head}.vs_single", mean, "x", f"{peer}, the best single peer")
            )
    return found
