"""Cached prefix blocks outlast their eviction: on the host, then in files, found by their key."""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from trivet.contracts.memory import Allocator, Copy, Tier
from trivet.errors import DataCorrupt, MemoryFault, TrivetError
from trivet.memory.buffers import Buffer, Buffers
from trivet.memory.kv.blocks import KvBlocks
from trivet.memory.kv.caches import KvCaches
from trivet.memory.kv.keys import Key
from trivet.memory.migrate import Mover, finish
from trivet.memory.sizes import whole
from trivet.memory.tiers.block_files import BlockFiles, refuse_odd_facts
from trivet.memory.tiers.host import HostAllocator
from trivet.memory.unraisable import bare
from trivet.plugins.describe import said, shown

__all__ = ["Spill", "SpillStats"]

LOG = logging.getLogger("trivet.memory")


@dataclass(slots=True)
class SpillStats:
    """What happened to blocks so far.

    Args:
        spilled: copied to the host.
        to_disk: written to a file.
        from_host: read from the host to be brought back.
        from_disk: read from a file to be brought back.
        dropped: forgotten because the last tier was full.
        corrupt: files that were not what had been written; their blocks count as absent.
        failed: blocks that could not be copied or written; they count as absent.
        last_error: the newest error behind ``corrupt`` and ``failed``.
    """

    spilled: int = 0
    to_disk: int = 0
    from_host: int = 0
    from_disk: int = 0
    dropped: int = 0
    corrupt: int = 0
    failed: int = 0
    last_error: Exception | None = field(default=None, compare=False)

    def to_json(self) -> dict[str, object]:
        """A mapping of plain values."""
        plain: dict[str, object] = {name: getattr(self, name) for name in self.__slots__}
        return plain | {"last_error": None if self.last_error is None else said(self.last_error)}


class Spill:
    """Takes the blocks that a pool evicts, and brings them back by key.

    ``fetch`` takes the place of ``pool.take``. What was evicted is copied in one batch before
    ``pool.allocate`` returns; it never makes ``allocate`` fail. Like its pool it is for one thread.

    Args:
        pool: the blocks; its ``on_evict`` becomes this object's.
        caches: all cache tensors, ``[blocks, ...]``. Of ``KvCaches`` the tensors of the moment are
            used: they may sleep and move.
        host_bytes: for blocks on the host; at least one block.
        disk_bytes: for blocks in files; 0 for none.
        folder: where the folder of files is made; the system's temporary one when None.
        host: the allocator of the host tier; pages of the system when None.
        mover: who copies; torch when None.
        facts: what else must be equal for a file to be read: the name of the model, its layout.

    Raises:
        MemoryFault: the host tier holds no block, the pool spills already, or tensors do not have
            the pool's number of blocks.
        OutOfMemory: the host has no room.
    """

    def __init__(
        self,
        pool: KvBlocks,
        caches: KvCaches | Iterable[torch.Tensor],
        *,
        host_bytes: int,
        disk_bytes: int = 0,
        folder: str | os.PathLike[str] | None = None,
        host: Allocator | None = None,
        mover: Mover | None = None,
        facts: dict[str, object] | None = None,
    ) -> None:
        self.pool = pool
        self._caches = caches if isinstance(caches, KvCaches) else list(caches)
        tensors = self._tensors()
        self._refuse_odd(tensors)
        flat = [_rows(t) for t in tensors]
        self.block_bytes = sum(f.shape[1] for f in flat)
        self._device = flat[0].device
        self.host_blocks = whole(host_bytes, "a host tier of {} bytes") // self.block_bytes
        self.disk_blocks = whole(disk_bytes, "a disk tier of {} bytes") // self.block_bytes
        if not self.host_blocks:
            msg = f"{host_bytes} bytes of the host hold no block of {self.block_bytes} bytes"
            raise MemoryFault(msg, fix="at least one block: files are written from the host")
        layers = [[str(t.dtype), list(t.shape[1:])] for t in tensors]
        self._facts = {"layers": layers, **(facts or {})}
        refuse_odd_facts(self._facts)
        self._mover = mover or Mover()
        self._heap = Buffers(host or HostAllocator())
        self._files = BlockFiles(folder) if self.disk_blocks else None
        self._rows: Buffer = self._heap.allocate(
            self.host_blocks * self.block_bytes, tag="kv_spill"
        )
        self._near = Tier.HOST if self._device.type == "cpu" else Tier.DEVICE
        self._on_host: OrderedDict[Key, int] = OrderedDict()  # key -> row; used last is last
        self._empty = list(range(self.host_blocks - 1, -1, -1))
        self._on_disk: OrderedDict[Key, None] = OrderedDict()
        self._said: set[str] = set()
        self.stats = SpillStats()
        pool.on_evict = self._evicted

    def __contains__(self, key: Key) -> bool:
        """Whether a block was spilled and is still there."""
        return key in self._on_host or key in self._on_disk

    def __len__(self) -> int:
        return len(self._on_host) + len(self._on_disk)

    def find(self, keys: Iterable[Key]) -> int:
        """How many keys from the first on are in the pool or spilled."""
        count = 0
        for key in keys:
            if not self.pool.find([key]) and key not in self:
                break
            count += 1
        return count

    def fetch(self, keys: Sequence[Key], *, most: int | None = None) -> list[int]:
        """The blocks of the longest run of keys from the first on, with one reference to each.

        Spilled ones get a block of the pool each and are published again; what was spilled stays,
        so that its next eviction costs nothing. The run ends early where the pool has no free
        block, or a file is damaged: the rest is to be computed.

        Args:
            keys: of a sequence's blocks, in order.
            most: blocks of the pool that may be taken for spilled ones; all that are free if None.

        Raises:
            MemoryFault: a key is listed twice, or ``most`` is no number of blocks.
        """
        most = None if most is None else whole(most, "a fetch of {} blocks")
        if len(set(keys)) != len(keys):
            raise MemoryFault("a key is listed twice", fix="pass the keys of one sequence")
        run = list(keys[: self.find(keys)])
        near = {key: block for key in run for block in self.pool.take([key])}
        free = self.pool.num_free if most is None else min(most, self.pool.num_free)
        wanted = [key for key in run if key not in near]
        end = run.index(wanted[free]) if free < len(wanted) else len(run)
        wanted = wanted[:free]
        staged, good = torch.empty(0, dtype=torch.uint8), len(wanted)
        blocks: list[int] = []
        try:
            if wanted:
                # Read first: allocating may evict, and that may drop what is wanted here.
                staged, good = self._read(wanted)
                blocks = self.pool.allocate(good)
                good = self._bring(staged, blocks, good)
        except BaseException:
            self.pool.free([*blocks, *near.values()])
            raise
        self.pool.free(blocks[good:])
        far = dict(zip(wanted[:good], blocks, strict=False))
        for key, block in far.items():
            self.pool.publish(block, key)
        if good < len(wanted):
            end = run.index(wanted[good])
        self.pool.free(near[key] for key in reversed(run[end:]) if key in near)
        return [near[key] if key in near else far[key] for key in run[:end]]

    def forget(self) -> None:
        """Drops everything that was spilled."""
        for key in self._on_disk:
            self._drop_file(key)
        self._on_disk.clear()
        self._empty.extend(self._on_host.values())
        self._on_host.clear()

    def close(self) -> None:
        """Gives back host memory and files and lets the pool go; a second call does nothing."""
        if self.pool.on_evict == self._evicted:
            self.pool.on_evict = None
        self.forget()
        if self._files is not None:
            self._files.close()
        for buffer in self._heap:
            buffer.free()

    # --- out -----------------------------------------------------------------------------------

    def _evicted(self, victims: Sequence[tuple[Key, int]]) -> None:
        """Copies what is evicted; errors are counted, never raised into the pool's call."""
        new = []
        for key, block in victims:
            if key in self._on_host:
                self._on_host.move_to_end(key)
            elif key in self._on_disk:
                self._on_disk.move_to_end(key)
            else:
                new.append((key, block))
        self.stats.dropped += max(0, len(new) - self.host_blocks - self.disk_blocks)
        new = new[-(self.host_blocks + self.disk_blocks) :]
        for first in range(0, len(new), self.host_blocks):
            batch = new[first : first + self.host_blocks]
            self._make_room(len(batch))
            rows = [self._empty.pop() for _ in batch]
            try:
                self._store([block for _, block in batch], rows)
            except (TrivetError, RuntimeError) as error:  # of a migrator, or of torch
                self._empty.extend(rows)
                self.stats.failed += len(batch)
                self._say("spilling blocks to the host", error)
                continue
            self.stats.spilled += len(batch)
            for (key, _), row in zip(batch, rows, strict=True):
                self._on_host[key] = row

    def _store(self, blocks: Sequence[int], rows: Sequence[int]) -> None:
        index = torch.tensor(blocks, dtype=torch.int64, device=self._device)
        staged = torch.empty(len(blocks), self.block_bytes, dtype=torch.uint8, device=self._device)
        start = 0
        for tensor in self._tensors():
            flat = _rows(tensor)
            staged[:, start : start + flat.shape[1]] = flat.index_select(0, index)
            start += flat.shape[1]
        size, target = self.block_bytes, self._rows.raw
        flat = staged.view(-1)
        copies = [Copy(flat, i * size, target, row * size, size) for i, row in enumerate(rows)]
        self._move(copies, self._near, Tier.HOST)

    def _make_room(self, count: int) -> None:
        """Empties rows of the host, the one that was used first before the others."""
        while len(self._empty) < count:
            key, row = self._on_host.popitem(last=False)
            self._empty.append(row)
            self._to_disk(key, row)

    def _to_disk(self, key: Key, row: int) -> None:
        if self._files is None:
            self.stats.dropped += 1
            return
        while len(self._on_disk) >= self.disk_blocks:
            old, _ = self._on_disk.popitem(last=False)
            self._drop_file(old)
            self.stats.dropped += 1
        try:
            self._files.write(key.hex(), self._row(row), self._facts)
        except (MemoryFault, OSError) as error:
            self.stats.failed += 1
            self._say("writing a block to disk", error)
            return
        self._on_disk[key] = None
        self.stats.to_disk += 1

    # --- back ----------------------------------------------------------------------------------

    def _read(self, keys: Sequence[Key]) -> tuple[torch.Tensor, int]:
        """The contents of keys side by side on the host, and how many from the first are right."""
        staged = torch.empty(len(keys), self.block_bytes, dtype=torch.uint8)
        for i, key in enumerate(keys):
            if key in self._on_host:
                self._on_host.move_to_end(key)
                staged[i] = self._row(self._on_host[key])
                self.stats.from_host += 1
            elif not self._read_file(key, staged[i]):
                return staged, i
        return staged, len(keys)

    def _read_file(self, key: Key, into: torch.Tensor) -> bool:
        assert self._files is not None  # noqa: S101  # for mypy: a key on disk has a file
        try:
            self._files.read(key.hex(), into, self._facts)
        except (DataCorrupt, OSError) as error:
            del self._on_disk[key]
            self._drop_file(key)
            self.stats.corrupt += isinstance(error, DataCorrupt)
            self.stats.failed += not isinstance(error, DataCorrupt)
            self._say("reading a block from disk", error)
            return False
        self._on_disk.move_to_end(key)
        self.stats.from_disk += 1
        return True

    def _bring(self, staged: torch.Tensor, blocks: Sequence[int], count: int) -> int:
        """Writes contents into blocks of the pool; how many, which is all or none."""
        if not count:
            return 0
        try:
            near = staged[:count]
            if self._device.type != "cpu":
                near = torch.empty(near.shape, dtype=torch.uint8, device=self._device)
                copies = [Copy(staged.view(-1), 0, near.view(-1), 0, near.numel())]
                self._move(copies, Tier.HOST, self._near)
            index = torch.tensor(blocks, dtype=torch.int64, device=self._device)
            start = 0
            for tensor in self._tensors():
                flat = _rows(tensor)
                flat[index] = near[:, start : start + flat.shape[1]]
                start += flat.shape[1]
        except (TrivetError, RuntimeError) as error:  # of a migrator, or of torch
            self.stats.failed += count
            self._say("bringing blocks back", error)
            return 0
        return count

    # --- inside --------------------------------------------------------------------------------

    def _move(self, copies: Sequence[Copy], source: Tier, target: Tier) -> None:
        finish(self._mover.prepare(copies, source, target).post())

    def _row(self, row: int) -> torch.Tensor:
        return self._rows.raw[row * self.block_bytes : (row + 1) * self.block_bytes]

    def _drop_file(self, key: Key) -> None:
        if self._files is not None:
            try:
                self._files.drop(key.hex())
            except OSError as error:
                self._say("removing a block's file", error)

    def _say(self, what: str, error: Exception) -> None:
        """Keeps an error without its frames, which hold tensors, and logs the first of a kind."""
        self.stats.last_error = bare(error)
        if what not in self._said:
            self._said.add(what)
            LOG.warning("%s failed, later failures are only counted: %s", what, error)

    def _tensors(self) -> list[torch.Tensor]:
        if isinstance(self._caches, KvCaches):
            return [tensor for layer in self._caches for tensor in layer]
        return self._caches

    def _refuse_odd(self, tensors: Sequence[torch.Tensor]) -> None:
        if self.pool.on_evict is not None:
            raise MemoryFault("this pool spills already", fix="one Spill a pool; close the other")
        _refuse_others(tensors)
        wrong = [t for t in tensors if t.dim() < 1 or t.shape[0] != self.pool.num_blocks]
        if wrong or not tensors:
            shape = list(wrong[0].shape) if wrong else "no tensor"
            msg = f"a pool of {self.pool.num_blocks} blocks does not describe {shape}"
            raise MemoryFault(msg, fix="pass every cache tensor of that pool, [blocks, ...]")
        devices = {t.device for t in tensors}
        if len(devices) > 1 or not all(t.is_contiguous() and t.numel() for t in tensors):
            msg = f"cache tensors on {sorted(map(str, devices))}, empty or not contiguous"
            raise MemoryFault(msg, fix="one Spill for the contiguous tensors of one device")


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a cache, ``[blocks, bytes of a block]``, over the same memory."""
    return tensor.view(tensor.shape[0], -1).view(torch.uint8)


def _refuse_others(tensors: Sequence[object]) -> None:
    if odd := [one for one in tensors if not isinstance(one, torch.Tensor)]:
        raise MemoryFault(f"{shown(odd[0])} is no cache tensor", fix="pass tensors, not layers")
