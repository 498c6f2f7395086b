"""Replays what an engine allocated through our pools and through torch's policy, without memory.

The figure is the most that was reserved: what the device must have. Memory is pretended to come in
pages of 2 MiB, as drivers of devices map it; torch's segments are multiples of that. What a pool
reserves over exact sizes stands beside it, and the least that any allocator needs: the most that
was live at once. Each trace is also played with sizes 4, 16 and 64 times as large, as a larger
model would ask for; the row that stays is the worst of them all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import click
from report import Row, publish
from torch_policy import TorchPolicy

from trivet.contracts.memory import Allocator
from trivet.memory.adaptors import Entry, Instrumented, Simulated, read, replay
from trivet.memory.pools import BestFit, Binned

DATA = Path(__file__).resolve().parent / "data"
TORCH = "torch's policy"
PAGE = 1 << 21
POOLS: dict[str, tuple[int, Callable[[Allocator], Allocator]]] = {
    "best fit": (PAGE, BestFit),
    "best fit 64 KiB, exact": (512, lambda below: BestFit(below, least_bytes=1 << 16)),
    "powers of two, exact": (512, Binned),
}
"""Name -> bytes of a page, and the pool. Only those over pages stand for a device."""


@dataclass
class Course:
    """What one policy reserved over the lines of a trace: bytes, one entry a line.

    ``calls``: how often the device was asked for memory.
    """

    reserved: list[int]
    live: list[int]
    calls: int = 0

    @property
    def peak(self) -> int:
        """The most that was reserved."""
        return max(self.reserved)

    @property
    def fragmentation(self) -> float:
        """The part of the peak that no buffer used when the most was live."""
        return 1 - max(self.live) / self.peak


def through_pool(entries: list[Entry], page: int, make: Callable[[Allocator], Allocator]) -> Course:
    """A replay through a pool over pretended memory that aligns as devices do."""
    below = Simulated(1 << 40, alignment=512, page_bytes=page)
    counted = Instrumented(below)
    course = Course([], [])

    def note(live: int) -> None:
        course.reserved.append(below.used_bytes)
        course.live.append(live)

    replay(entries, make(counted), after=note)
    course.calls = counted.counts().allocations
    # between two lines a pool may hold more than at the end of either
    course.reserved.append(below.peak_bytes)
    course.live.append(0)
    return course


def through_torch(entries: list[Entry]) -> Course:
    """A replay through torch's policy."""
    policy, blocks, course, live = TorchPolicy(), {}, Course([], []), 0
    for entry in entries:
        if entry.op == "allocate":
            blocks[entry.id] = policy.allocate(entry.bytes)
            live += entry.bytes
        else:
            policy.deallocate(blocks.pop(entry.id))
            live -= entry.bytes
        course.reserved.append(policy.reserved)
        course.live.append(live)
    course.calls = policy.segments
    return course


def courses(entries: list[Entry]) -> dict[str, Course]:
    """What every policy did with one trace."""
    found = {name: through_pool(entries, *how) for name, how in POOLS.items()}
    return found | {TORCH: through_torch(entries)}


SCALES = (1, 4, 16, 64)


def traces() -> dict[str, list[Entry]]:
    """The recorded traces by name, as they are and enlarged."""
    found = {}
    for path in sorted(DATA.glob("*.csv.xz")):
        entries = list(read(path))
        for scale in SCALES:
            name = path.name.partition(".")[0] + (f"-x{scale}" if scale > 1 else "")
            found[name] = [replace(e, bytes=e.bytes * scale) for e in entries]
    return found


def rows(*, quick: bool = False) -> list[Row]:
    """The figures of every trace; the first row is the worst trace of our best pool."""
    del quick  # nothing is timed
    details = []
    worst = {name: 0.0 for name, (page, _) in POOLS.items() if page == PAGE}
    for trace, entries in traces().items():
        found = courses(entries)
        peer, live = found[TORCH].peak, max(found[TORCH].live)
        for name, course in found.items():
            beside = f"{live / 2**20:.1f} MiB live, {course.fragmentation:.2f} unused, "
            beside += f"{course.calls} calls"
            label = name.replace(" ", "_").replace(",", "").replace("'", "")
            details.append(
                Row(f"memory.replay.{trace}.{label}", course.peak / 2**20, "MiB", beside)
            )
            if name in worst:
                worst[name] = max(worst[name], course.peak / peer)
    best = min(worst, key=lambda name: worst[name])
    against = f"{TORCH}, {best} on the worst of {len(traces())} traces; bar 1"
    return [Row("memory.replay_peak_vs_torch", worst[best], "ratio", against), *details]


def plot(path: Path) -> None:
    """Draws what each policy reserved over the lines of each trace."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    known = {name: lines for name, lines in traces().items() if not name.endswith(("x4", "x64"))}
    fig, grid = plt.subplots(len(known), 1, figsize=(10, 2.6 * len(known)), squeeze=False)
    for axes, (name, entries) in zip(grid[:, 0], known.items(), strict=True):
        found = courses(entries)
        for policy, course in found.items():
            axes.plot([b / 2**20 for b in course.reserved[: len(entries)]], label=policy, lw=1.2)
        live = [b / 2**20 for b in found[TORCH].live]
        axes.fill_between(range(len(live)), live, color="#bbbbbb", label="live", lw=0)
        axes.set_title(name)
        axes.set_xlabel("allocation or release")
        axes.set_ylabel("MiB reserved")
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), fontsize="small", frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    fig.tight_layout()
    fig.savefig(path, dpi=120)
    plt.close(fig)


@click.command(help=__doc__)
@click.option("--json", "target", type=click.Path(path_type=Path), default=None)
@click.option("--plot", "image", type=click.Path(path_type=Path), default=None)
def main(target: Path | None, image: Path | None) -> None:
    """Replays, prints the figures, and draws them where a file is named."""
    publish("memory replay", rows(), target)
    if image:
        plot(image)


if __name__ == "__main__":
    main()
