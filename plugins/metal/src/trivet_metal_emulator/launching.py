"""One launch: storages laid out, the grid run, results copied back, findings told."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from torch import Tensor

from trivet_metal_emulator.arguments import Bound, Grid
from trivet_metal_emulator.errors import Finding, LaunchError
from trivet_metal_emulator.faults import describe
from trivet_metal_emulator.loading import U32, RawInterval, RawRegion, Runtime
from trivet_metal_emulator.stats import BufferTraffic, Stats
from trivet_metal_emulator.translation import Entry

__all__ = ["Limits", "launch"]

Start: TypeAlias = tuple[int, int] | list[tuple[int, int]] | None
_ALIGNMENT = 256  # storages keep their alignment up to here, as Metal's buffers do
_COARSEST = 4


@dataclass(frozen=True)
class Limits:
    """What a launch may use."""

    threadgroup_bytes: int
    accesses: int


@dataclass
class _Region:
    """Bytes of one storage that arguments point into."""

    address: int
    begin: int
    end: int
    names: list[str] = field(default_factory=list)
    intervals: list[tuple[int, int]] = field(default_factory=list)
    granule: int = _COARSEST
    keep: object = None
    placed: int = 0

    def include(self, name: str, begin: int, end: int, granule: int) -> None:
        """Adds the bytes of one argument."""
        self.names.append(name)
        self.begin = min(self.begin, begin // _ALIGNMENT * _ALIGNMENT)
        self.end = max(self.end, end)
        self.granule = min(self.granule, granule)
        self.intervals.append((begin, end))

    def merged(self) -> list[tuple[int, int]]:
        """The intervals without overlaps."""
        out: list[tuple[int, int]] = []
        for begin, end in sorted(self.intervals):
            if out and begin <= out[-1][1]:
                out[-1] = (out[-1][0], max(out[-1][1], end))
            else:
                out.append((begin, end))
        return out

    @property
    def size(self) -> int:
        return max(self.end - self.begin, 1)


class _Layout:
    """Where each argument lies during a launch."""

    def __init__(self, *, checked: bool) -> None:
        self.checked = checked
        self.regions: dict[int, _Region] = {}
        self.starts: list[tuple[int, int]] = []  # key of the region, byte of the storage

    def tensor(self, name: str, tensor: Tensor) -> tuple[int, int]:
        """Binds a tensor: the storage once, so that arguments which alias still do."""
        storage, item = tensor.untyped_storage(), tensor.element_size()
        key = storage.data_ptr()
        begin = int(tensor.storage_offset()) * item
        reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        end = begin + ((reach + 1) * item if tensor.numel() else 0)
        if key not in self.regions:
            first = begin // _ALIGNMENT * _ALIGNMENT
            self.regions[key] = _Region(key, first, end, keep=storage)
        self.regions[key].include(name, begin, end, item)
        return key, begin

    def numbers(self, name: str, data: bytes) -> tuple[int, int]:
        """Binds the bytes of numbers."""
        memory = ctypes.create_string_buffer(data, len(data))
        key = ctypes.addressof(memory)
        self.regions[key] = region = _Region(key, 0, len(data), keep=memory)
        region.include(name, 0, len(data), _COARSEST)
        return key, 0

    def place(self, runtime: Runtime) -> None:
        """Copies the storages between gaps of addresses, so that no overrun meets another."""
        listed = list(self.regions.values())
        raw = (RawRegion * max(len(listed), 1))()
        for one, region in zip(raw, listed, strict=False):
            merged = [(a - region.begin, b - region.begin) for a, b in region.merged() if b > a]
            one.size, one.granule = region.size, region.granule
            one.valid = (RawInterval * max(len(merged), 1))(*(RawInterval(a, b) for a, b in merged))
            one.valid_count = len(merged)
        if not runtime.library.trivet_msl_regions(raw, len(listed)):
            raise LaunchError("no room for a copy of the arguments")
        self.raw = raw
        for one, region in zip(raw, listed, strict=False):
            region.placed = one.begin
            if region.end > region.begin:
                ctypes.memmove(one.begin, region.address + region.begin, region.end - region.begin)

    def address(self, start: tuple[int, int]) -> int:
        """The address that a kernel sees."""
        key, byte = start
        region = self.regions[key]
        return region.placed + byte - region.begin if self.checked else key + byte

    def collect(self, runtime: Runtime) -> None:
        """Copies back what was written."""
        for i, region in enumerate(self.regions.values()):
            if runtime.region(i).changed:
                ctypes.memmove(
                    region.address + region.begin, region.placed, region.end - region.begin
                )


def _bind(layout: _Layout, names: dict[int, str], bound: Sequence[Bound]) -> list[Start]:
    starts: list[Start] = []
    for i, value in enumerate(bound):
        name = names.get(i, f"argument {i}")
        if isinstance(value, Tensor):
            starts.append(layout.tensor(name, value))
        elif isinstance(value, bytes):
            starts.append(layout.numbers(name, value))
        elif value is None:
            starts.append(None)
        else:
            starts.append([layout.tensor(f"{name}[{k}]", one) for k, one in enumerate(value)])
    return starts


def launch(
    runtime: Runtime, entry: Entry, number: int, bound: Sequence[Bound], grid: Grid, *,
    checked: bool, seed: int, limits: Limits,
) -> tuple[Stats, list[Finding]]:  # fmt: skip
    """Runs a kernel; results are in the tensors afterwards."""
    names = {p.index: p.name for p in entry.parameters if p.kind == "buffer"}
    needed = {p.index for p in entry.parameters if p.kind == "buffer" and not p.optional}
    missing = [f"{names[i]} (buffer {i})" for i in sorted(needed) if i >= len(bound)]
    if missing:
        raise LaunchError(
            f"{entry.name} reads {', '.join(missing)}, and {len(bound)} arguments were given"
        )
    if len(bound) > (most := max(names, default=-1) + 1):
        raise LaunchError(f"{entry.name} has {most} buffers, and {len(bound)} arguments were given")
    layout = _Layout(checked=checked)
    starts = _bind(layout, names, bound)
    tables = []
    pointers = (ctypes.c_void_p * (max([len(bound), *names]) + 1))()
    lists = [(i, start) for i, start in enumerate(starts) if isinstance(start, list)]
    if checked:
        # tables of addresses are regions like others; their content is known once all are placed
        for i, start in lists:
            starts[i] = layout.numbers(names.get(i, f"argument {i}"), bytes(8 * len(start)))
        layout.place(runtime)
        for i, start in lists:
            table = (ctypes.c_uint64 * len(start))(*(layout.address(one) for one in start))
            at = starts[i]
            if isinstance(at, tuple):
                ctypes.memmove(layout.address(at), table, ctypes.sizeof(table))
    for i, at in enumerate(starts):
        if isinstance(at, tuple):
            pointers[i] = layout.address(at)
        elif at is not None:
            tables.append((ctypes.c_uint64 * len(at))(*(layout.address(one) for one in at)))
            pointers[i] = ctypes.addressof(tables[-1])
    runtime.library.trivet_msl_limits(limits.threadgroup_bytes, limits.accesses)
    done = runtime.library.trivet_msl_dispatch(
        runtime.kernel(number), pointers, (U32 * 3)(*grid.threads), (U32 * 3)(*grid.group), seed
    )
    if not done:
        raise LaunchError("no room for the stacks of 1024 threads")
    if checked:
        layout.collect(runtime)
    stats = _count(runtime, layout, grid, checked=checked)
    regions = list(layout.regions.values())
    titles = [" and ".join(dict.fromkeys(region.names)) for region in regions]
    origins = [min(a for a, _ in region.intervals) - region.begin for region in regions]
    return stats, describe(runtime, titles, origins)


def _count(runtime: Runtime, layout: _Layout, grid: Grid, *, checked: bool) -> Stats:
    raw = runtime.stats()
    buffers = []
    for i, region in enumerate(layout.regions.values()):
        seen = runtime.region(i) if checked else None
        counts = (seen.read, seen.written, seen.covered) if seen else (0, 0, 0)
        buffers.append(BufferTraffic(tuple(region.names), *counts))
    lines = tuple(dict.fromkeys(runtime.sites())) if raw.divergent else ()
    return Stats(
        grid.groups, raw.barriers, raw.exchanges, raw.divergent, raw.threadgroup_bytes,
        raw.threadgroup_read, raw.threadgroup_written, tuple(buffers), lines,
    )  # fmt: skip
