"""What ``dev.memory`` is: torch's allocator and a vendor's, under one account."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch

from trivet.contracts.memory import (
    Allocator,
    InfoSource,
    MemoryInfo,
    Stats,
    StatsSource,
    Trimmer,
)
from trivet.errors import MemoryFault, OutOfMemory, PluginBroken, TrivetError
from trivet.memory.budget import Budget
from trivet.memory.buffers import Buffer, Buffers
from trivet.memory.exhaustion import is_exhaustion, typed
from trivet.memory.holdings import (
    Holdings,
    holdings,
    is_accelerator,
    release_torch_cache,
    torch_stats,
)
from trivet.memory.kv.blocks import KvBlocks
from trivet.memory.kv.caches import KvCaches
from trivet.memory.ledger import Ledger, Token
from trivet.memory.sizes import whole
from trivet.memory.snapshot import publisher
from trivet.memory.system import host_info
from trivet.memory.torch_allocator import TorchAllocator
from trivet.memory.unraisable import noted
from trivet.memory.upstream import ability_problem
from trivet.plugins.describe import said, shown

if TYPE_CHECKING:
    from trivet.memory.pieces import Piece
    from trivet.memory.sleep import Sleep

T = TypeVar("T")

_ADDRESSABLE = 1 << 63  # sizes beyond this overflow inside torch and raise something else


class DeviceMemory:
    """Memory of one device.

    ``dev.memory.budget.hard_bytes = n`` sets a limit, which is ``ledger.limit_bytes``. It covers
    what ``empty`` and ``kv_caches`` make and what ``account`` is given, whoever allocated it; the
    rest of torch's allocations is outside of it, and ``holdings`` measures it.

    Args:
        device: where tensors are made.
        provided: what the device's plugin brought (any of ``contracts.memory.ABILITIES``), or
            None.
        ledger: the account; a new one without a limit when None.
        snapshots: a folder in which to say who holds what, at most once a second; None is not to.
        name: the device as trivet names it, ``"KIND:INDEX"``; as torch does when empty.

    Raises:
        PluginBroken: ``provided`` has none of those abilities.
    """

    def __init__(
        self,
        device: torch.device,
        provided: object = None,
        ledger: Ledger | None = None,
        *,
        snapshots: Path | None = None,
        name: str = "",
    ) -> None:
        self.name = name or str(device)
        if provided is not None and (problem := ability_problem(provided)):
            home = provided if isinstance(provided, type) else type(provided)
            raise PluginBroken(
                f"the memory that {home.__module__} brings to {self.name} cannot be used: "
                f"{problem}",
                fix="see trivet.contracts.memory, or return None from trivet_memory",
            )
        self.device = device
        self.provided = provided
        self.ledger = Ledger() if ledger is None else ledger
        self.budget = Budget(self.ledger)
        if isinstance(provided, Trimmer):
            me = weakref.ref(self)
            self.budget.register_reclaimable(
                "vendor's cache", 0, lambda n: _trimmed(me(), n), counted=False
            )
        if is_accelerator(device):
            self.budget.register_reclaimable(
                "torch's cache", 0, lambda _: release_torch_cache(device), counted=False
            )
        self._publisher = None if snapshots is None else publisher(snapshots)
        if self._publisher is not None:
            self._publisher.add(self)
            self.budget.after = self._publisher.later
        self._caches: list[KvCaches] = []  # of a vendor's memory: it stays until it is released

    @cached_property
    def allocator(self) -> Allocator:
        """The vendor's allocator, or torch's on this device: what pools and adaptors build on.

        ``kv_caches`` asks the vendor's as well, so that only one thread at a time asks either.
        Nothing of it is in the ledger; ``Instrumented(..., ledger=dev.memory.ledger)`` books it.
        """
        provided = self.provided
        return provided if isinstance(provided, Allocator) else TorchAllocator(self.device)

    @cached_property
    def sleeper(self) -> Sleep:
        """What sleeps, and whom it tells: weights and graphs are added to it; loaded when used."""
        from trivet.memory.migrate import Mover
        from trivet.memory.sleep import Sleep

        me = weakref.ref(self)
        return Sleep(self.device, mover=Mover(self.provided), unified=lambda: _unified(me()))

    def sleep(self, *, keep: Collection[str] = (), discard: Collection[str] = ()) -> int:
        """Gives the memory of tags back until ``wake``; see ``Sleep.sleep``.

        The ledger still counts it: its room is not given to anybody else.
        """
        return self.sleeper.sleep(keep=keep, discard=discard)

    def wake(self, tags: Collection[str] | None = None) -> int:
        """Gives memory and contents back to tags, to all of them by default; see ``Sleep.wake``."""
        return self.sleeper.wake(tags)

    def account(self, what: torch.Tensor | int, tag: str = "", *, tier: str = "") -> Token:
        """Add a tensor that exists, or bytes, to the ledger; see ``Ledger.account``."""
        return self.ledger.account(what, tag, tier=tier)

    def empty(
        self, shape: Sequence[int], dtype: torch.dtype = torch.float32, *, tag: str = ""
    ) -> torch.Tensor:
        """A tensor of torch's allocator, not initialised, accounted for as long as it lives.

        A vendor's allocator serves ``kv_caches`` alone.

        Raises:
            OutOfMemory: the ledger's limit or the device does not admit it; nothing was added.
            MemoryFault: a size is negative.
        """
        tensor, token = self._reserved(shape, dtype, tag)
        token.confirm()
        return tensor

    def kv_blocks(
        self, num_blocks: int, block_size: int, *, bytes_per_block: int | None = None
    ) -> KvBlocks:
        """A pool of block numbers; it holds no memory."""
        return KvBlocks(num_blocks, block_size, bytes_per_block=bytes_per_block)

    def kv_caches(
        self,
        layers: int,
        num_blocks: int,
        block_size: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        *,
        tag: str = "kv_cache",
    ) -> KvCaches:
        """Key and value caches of every layer, zeroed, from the vendor's allocator if it has one.

        They are zeroed because a kernel that masks by multiplying would let a NaN of memory that
        was never written through; and memory that is touched is memory that is really there.

        Returns:
            ``layers`` pairs of ``[num_blocks, block_size, kv_heads, head_dim]``; release them when
            the engine is done.

        Raises:
            OutOfMemory: they do not all fit; what was made before is given back.
            PluginBroken: the vendor's allocator returned something that is no such buffer.

        The peak of the ledger rises only when all of them are there.
        """
        shape = _shape((num_blocks, block_size, kv_heads, head_dim))
        layers = whole(layers, "caches of {} layers")
        tokens: list[Token] = []
        buffers: list[Buffer] = []
        undo = ExitStack()
        try:
            made = [
                self._zeroed(shape, dtype, tag, tokens)
                if self._heap is None
                else self._buffer(self._heap, shape, dtype, tag, tokens, buffers, undo)
                for _ in range(2 * layers)
            ]
        except BaseException as error:
            with noted(error, "what was made before did not all go back"):
                undo.close()
            raise
        for token in tokens:
            token.confirm()
        caches = KvCaches(tuple(zip(made[::2], made[1::2], strict=True)), undo.close, buffers)
        self._let_sleep(caches, made, tag)
        return caches

    def info(self) -> MemoryInfo:
        """How much memory the device has; None where nobody knows."""
        if isinstance(self.provided, InfoSource):
            return self._answer("info", self.provided.info, MemoryInfo)
        if self.device.type == "cpu":
            return host_info()
        read = getattr(torch.accelerator, "get_memory_info", None)
        if read is None or not is_accelerator(self.device):
            return MemoryInfo(source=f"unknown: torch has no accelerator {self.device}")
        try:
            free, total = read(self.device)
        except RuntimeError as error:  # not every accelerator of torch can say
            return MemoryInfo(source=f"unknown: {_first_line(error)}")
        return MemoryInfo(total_bytes=total, free_bytes=free, source="torch.accelerator")

    def stats(self) -> Stats:
        """What is in use; ``stats().to_json()`` is plain values."""
        return replace(
            self._allocator_stats(),
            accounted_bytes=self.ledger.used_bytes,
            max_accounted_bytes=self.ledger.peak_bytes,
            by_tag=self.ledger.by_tag(),
        )

    def holdings(self) -> Holdings:
        """Who holds what: by tag and tier, torch besides, and the totals of the device."""
        found = holdings(self.device, self.ledger, self.budget.soft_bytes, self.info())
        return replace(found, device=self.name)

    def publish(self) -> Path | None:
        """Say it now, for ``trivet memory``; None unless ``TRIVET_MEMORY_SNAPSHOT`` names a folder.

        Raises:
            MemoryFault: the folder cannot be written.
        """
        return None if self._publisher is None else self._publisher.publish()

    def _allocator_stats(self) -> Stats:
        if isinstance(self.provided, StatsSource):
            return self._answer("stats", self.provided.stats, Stats)
        return torch_stats(self.device)

    def _answer(self, what: str, ask: Callable[[], object], kind: type[T]) -> T:
        heap: Buffers | None = vars(self).get("_heap")  # one that is not made yet does nothing
        with nullcontext() if heap is None else heap.in_turn():
            return _answered(what, ask, kind)

    def _reserved(
        self, shape: Sequence[int], dtype: torch.dtype, tag: str
    ) -> tuple[torch.Tensor, Token]:
        """A tensor of torch's allocator and its amount, which is not in the peak yet."""
        shape = _shape(shape)
        nbytes = _nbytes(shape, dtype)
        token = self.ledger.reserve(nbytes, tag)
        with ExitStack() as undo:
            undo.callback(token.release)
            tensor = self._torch_empty(shape, dtype, nbytes, tag)
            token.bind(tensor)
            undo.pop_all()
        return tensor, token

    def _zeroed(
        self, shape: Sequence[int], dtype: torch.dtype, tag: str, tokens: list[Token]
    ) -> torch.Tensor:
        """A zeroed tensor of torch's allocator; ``tokens`` learns of its amount."""
        tensor, token = self._reserved(shape, dtype, tag)
        tokens.append(token)
        return tensor.zero_()

    def _torch_empty(
        self, shape: tuple[int, ...], dtype: torch.dtype, nbytes: int, tag: str
    ) -> torch.Tensor:
        if nbytes >= _ADDRESSABLE:
            raise OutOfMemory(
                f"no device can address {nbytes} bytes ({tag or 'no tag'})",
                requested_bytes=nbytes,
                tag=tag,
                fix="look for a product of sizes that was not meant",
            )
        try:
            return self._made_room(
                nbytes, lambda: torch.empty(shape, dtype=dtype, device=self.device)
            )
        except RuntimeError:
            # Only now: asking the system what is free costs more than most allocations.
            free = self.info().free_bytes
            with typed(self.name, nbytes, tag=tag, free_bytes=free):
                raise

    @cached_property
    def _heap(self) -> Buffers | None:
        """What the vendor's allocator gives out; None where torch's serves."""
        provided = self.provided
        return Buffers(provided, self.name) if isinstance(provided, Allocator) else None

    def _let_sleep(self, caches: KvCaches, made: Sequence[torch.Tensor], tag: str) -> None:
        if self._heap is None:
            self.sleeper.add({str(i): tensor for i, tensor in enumerate(made)}, tag=tag)
            return
        self.sleeper.watch(self._heap)
        self.sleeper.on(tag, rebind=self._rebind)
        self._caches = [c for c in self._caches if not c.released] + [caches]

    def _rebind(self, piece: Piece) -> None:
        """Gives caches tensors over the new memory of a buffer that woke elsewhere."""
        for caches in self._caches:
            caches.rebind(getattr(piece, "buffer", None))

    def _made_room(self, nbytes: int, allocate: Callable[[], T]) -> T:
        """What ``allocate`` gives; where the device is full, those who can give way are asked."""
        try:
            return allocate()
        except RuntimeError as error:
            if not is_exhaustion(error) or not any(self.budget.reclaim(nbytes).values()):
                raise
        return allocate()

    def _buffer(
        self,
        heap: Buffers,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        tag: str,
        tokens: list[Token],
        buffers: list[Buffer],
        undo: ExitStack,
    ) -> torch.Tensor:
        """A zeroed tensor over a vendor's buffer; ``undo`` learns how to give it back."""
        nbytes = _nbytes(shape, dtype)
        tokens.append(token := self.ledger.reserve(nbytes, tag, tier=heap.traits.tier))
        undo.callback(token.release)
        buffer = self._made_room(nbytes, lambda: heap.allocate(nbytes, tag=tag))
        undo.callback(buffer.free)
        buffers.append(buffer)
        return buffer.tensor(shape, dtype).zero_()


def _answered(what: str, ask: Callable[[], object], kind: type[T]) -> T:
    """What the vendor's memory says.

    Raises:
        PluginBroken: it raises, or says something else.
    """
    try:
        found = ask()
    except TrivetError:
        raise
    except Exception as error:
        msg = f"memory {what} raises {said(error)}"
        raise PluginBroken(msg, fix="tell who makes the plugin") from error
    if isinstance(found, kind):
        return found
    msg = f"memory {what} gives {shown(found)}"
    raise PluginBroken(msg, fix=f"an instance of {kind.__name__}")


def _unified(memory: DeviceMemory | None) -> bool:
    return memory is not None and memory.info().unified


def _trimmed(memory: DeviceMemory | None, nbytes: int) -> int:
    """What the vendor gives back of its cache, asked in turn with what its allocator does."""
    if memory is None or not isinstance(memory.provided, Trimmer):
        return 0
    heap = memory._heap  # noqa: SLF001  # a part of it
    return memory.provided.trim(nbytes) if heap is None else heap.trim(nbytes)


def _shape(shape: Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(whole(n, "a dim of {}") for n in shape)
    except (MemoryFault, TypeError) as error:
        msg = f"a tensor of shape {shown(shape)} cannot be made"
        raise MemoryFault(msg, fix="whole numbers, each 0 or more") from error


def _nbytes(shape: Sequence[int], dtype: torch.dtype) -> int:
    given: object = dtype
    if not isinstance(given, torch.dtype):
        raise MemoryFault(f"{shown(given)} is no torch.dtype", fix="torch.float32, for example")
    return math.prod(shape) * dtype.itemsize


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
