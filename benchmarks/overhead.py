# ruff: noqa: ARG001  # stand-ins for kernels ignore their arguments
"""What trivet adds: to a call, to an import, to a start.

Times are medians of interleaved rounds in thread CPU time, so that a busy machine changes the
unit but hardly the ratio. Read ratios first.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
from report import Row, picture, publish

import trivet
from trivet.binding.binder import Binder
from trivet.catalogue import operators
from trivet.contracts import (
    DeviceInfo,
    between,
    contiguous,
    divisible,
    dtype,
    implements,
    rank,
)
from trivet.contracts.implementation import claims_of
from trivet.plugins.verification import verify
from trivet_conformance.calls.proving import proving_facts, target_of

COMMON = [
    dtype("x", "bfloat16", "float32"),
    rank("x", 2),
    contiguous("x"),
    divisible("hidden", 8),
]


@implements("rms_norm@1", name="few", domain=[*COMMON, between("tokens", 1, 16)])
def few(  # noqa: D103
    x: Any,
    weight: Any,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Any:
    return x


@implements("rms_norm@1", name="some", domain=[*COMMON, between("tokens", 17, 256)])
def some(  # noqa: D103
    x: Any,
    weight: Any,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Any:
    return x


@implements("rms_norm@1", name="many", domain=[*COMMON, between("tokens", 257, None)])
def many(  # noqa: D103
    x: Any,
    weight: Any,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Any:
    return x


def hand_written(reference: Callable[..., Any]) -> Callable[..., Any]:
    """The guard that a careful person writes for the same terms."""
    bf16, fp32, f0, f1, f2 = torch.bfloat16, torch.float32, few, some, many

    def rms_norm(
        x: Any,
        weight: Any,
        eps: float = 1e-6,
        weight_offset: float = 0.0,
        weight_in_float32: bool = False,
        variance_size: int = 0,
    ) -> Any:
        d = x.dtype
        if d is bf16 or d is fp32:
            s = x.shape
            if len(s) == 2 and x.is_contiguous() and s[1] % 8 == 0:
                t = s[0]
                if 1 <= t <= 16:
                    return f0(x, weight, eps, weight_offset, weight_in_float32, variance_size)
                if 17 <= t <= 256:
                    return f1(x, weight, eps, weight_offset, weight_in_float32, variance_size)
                if t >= 257:
                    return f2(x, weight, eps, weight_offset, weight_in_float32, variance_size)
        return reference(x, weight, eps, weight_offset, weight_in_float32, variance_size)

    return rms_norm


def interleaved(calls: dict[str, Callable[[], Any]], rounds: int, loops: int) -> dict[str, float]:
    """Median nanoseconds of thread CPU time per call of each, over interleaved rounds."""
    seen: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.thread_time_ns()
            for _ in range(loops):
                call()
            seen[name].append((time.thread_time_ns() - start) / loops)
    return {name: statistics.median(times) for name, times in seen.items()}


def guarded(rounds: int, loops: int) -> list[Row]:
    """A guard over two dtypes, rank, contiguity, divisibility and three token buckets."""
    known = operators()
    implementations = tuple(verify(claims_of(f)[0], "bench", known) for f in (few, some, many))
    binder = Binder(DeviceInfo("bench"), known, implementations)
    facts = {"weight.dtype": "float32"}
    guard = binder.bind("rms_norm", facts, binder.policy())
    hand = hand_written(known["rms_norm"].reference)
    w, rows, added, versus = torch.ones(64), [], [], []
    for arm, tokens, direct in (("first", 4, few), ("last", 512, many)):
        x = torch.ones(tokens, 64)
        ns = interleaved(
            {
                "direct": lambda x=x, f=direct: f(x, w),  # type: ignore[misc]
                "guard": lambda x=x: guard(x, w),  # type: ignore[misc]
                "hand": lambda x=x: hand(x, w),  # type: ignore[misc]
            },
            rounds,
            loops,
        )
        added.append((ns["guard"] - ns["direct"]) / 1000)
        versus.append(ns["guard"] / ns["hand"])
        beside = f"direct {ns['direct']:.0f}"
        rows.append(Row(f"overhead.guarded.{arm}.ns", ns["guard"], "ns", beside))
        rows.append(Row(f"overhead.hand.{arm}.ns", ns["hand"], "ns", beside))
    return [
        Row("overhead.guarded_added_us", max(added), "us", "direct call, worse arm; bar 0.5"),
        Row("overhead.guarded_vs_hand", max(versus), "ratio", "hand-written guard; bar 1.2"),
        *rows,
    ]


def bound(rounds: int, loops: int) -> list[Row]:
    """Whether a proved bind is the vendor's own function, for every implementation installed."""
    dev = trivet.device("auto")
    same, names = 0, []
    for implementation in dev.offer.implementations:
        facts = proving_facts(implementation)
        op = implementation.operator.name
        made = dev.bind(target_of(implementation), facts, prefer={op: implementation.provider})
        same += made is implementation.function
        names.append(implementation.provider)
    total = len(names)
    rows = [
        Row(
            "overhead.bound_is_vendor",
            same / total if total else float("nan"),
            "fraction",
            f"{total} implementations of {dev.info.kind}",
        )
    ]
    x, w = torch.ones(4, 64), torch.ones(64)
    made = dev.bind("silu_and_mul", {"dtype": "float32", "contiguous": True})
    ns = interleaved({"bound": lambda: made(x), "direct": lambda: made(x)}, rounds, loops // 8)
    rows.append(Row("overhead.bound_vs_direct", ns["bound"] / ns["direct"], "ratio", "same object"))
    ops = dev.ops
    plain = dev.operators["rms_norm"].reference
    ns = interleaved(
        {"ops": lambda: ops.rms_norm(x, w), "reference": lambda: plain(x, w)}, rounds, loops // 8
    )
    rows.append(Row("overhead.unpromised_call_us", ns["ops"] / 1000, "us", "dev.ops.rms_norm 4x64"))
    return rows


CHILD = """
import json, sys, time
import torch
start = time.process_time_ns()
import trivet
core = time.process_time_ns() - start
start = time.process_time_ns()
from trivet.plugins import discover
layer = time.process_time_ns() - start
start = time.process_time_ns()
discover()
found = time.process_time_ns() - start
start = time.process_time_ns()
trivet.device("reference")
device = time.process_time_ns() - start
import importlib.metadata
count = len(list(importlib.metadata.distributions()))
print(json.dumps([core / 1e6, layer / 1e6, found / 1e6, device / 1e6, count]))
"""


def starts(rounds: int) -> list[Row]:
    """CPU time of importing core after torch, and of discovery from metadata."""
    core: list[float] = []
    layer: list[float] = []
    found: list[float] = []
    started: list[float] = []
    count = 0
    with tempfile.TemporaryDirectory() as folder:
        for i in range(70):
            info = Path(folder) / f"filler_{i}-1.0.dist-info"
            info.mkdir()
            meta = f"Metadata-Version: 2.1\nName: filler-{i}\nVersion: 1.0\n"
            (info / "METADATA").write_text(meta)
            entry = f"[console_scripts]\nfiller{i} = filler{i}:main\n"
            (info / "entry_points.txt").write_text(entry)
        child = f"import sys\nsys.path.append({folder!r})\n" + textwrap.dedent(CHILD)
        for _ in range(rounds):
            out = subprocess.run(
                [sys.executable, "-c", child], check=True, capture_output=True, text=True
            ).stdout
            *times, count = json.loads(out.splitlines()[-1])
            for seen, value in zip((core, layer, found, started), times, strict=True):
                seen.append(value)
    return [
        Row("overhead.import_core_ms", statistics.median(core), "ms", "CPU time; bar 30"),
        Row(
            "overhead.discovery_ms",
            statistics.median(found),
            "ms",
            f"CPU time, {count} distributions installed; bar 30",
        ),
        Row("overhead.import_plugins_ms", statistics.median(layer), "ms", "CPU time; bar 30"),
        Row("overhead.first_device_ms", statistics.median(started), "ms", "CPU time, no plugin"),
    ]


def plans(rounds: int) -> list[Row]:
    """CPU time of a plan of 30 sites, warm, and of one look-up of a step."""
    dev = trivet.device("auto")
    sites = {
        f"norm{i}": ("rms_norm", {"dtype": "float32", "weight.dtype": "float32", "hidden": 64 + i})
        for i in range(30)
    }
    dev.plan(sites)
    times = []
    for _ in range(rounds):
        start = time.process_time_ns()
        plan = dev.plan(sites)
        times.append((time.process_time_ns() - start) / 1e6)
    ns = interleaved({"at": lambda: plan.at(tokens=7)}, rounds, 2000)
    return [
        Row("overhead.plan_30_sites_ms", statistics.median(times), "ms", "CPU time, warm; bar 20"),
        Row("overhead.step_lookup_us", ns["at"] / 1000, "us", "once a step"),
    ]


@click.command()
@click.option("--json", "target", type=click.Path(path_type=Path), help="Write figures here.")
@click.option("--quick", is_flag=True, help="Fewer rounds.")
def main(target: Path | None, quick: bool) -> None:
    """Measures what trivet adds to calls, imports and starts."""
    torch.set_num_threads(1)
    rounds, loops = (5, 20_000) if quick else (15, 100_000)
    rows = [*bound(rounds, loops), *guarded(rounds, loops), *plans(rounds)]
    rows += starts(3 if quick else 7)
    publish("overhead", rows, target)
    if target:
        calls = [r for r in rows if r.unit == "ns"]
        picture(target.with_suffix(".png"), "Nanoseconds a call, CPU time", calls)


if __name__ == "__main__":
    main()
