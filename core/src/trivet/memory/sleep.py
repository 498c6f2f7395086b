"""Memory that an engine gives back while it waits, by tag, with its contents kept or discarded."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Self

import torch

from trivet.errors import MemoryFault, PartialReclaim, TrivetError
from trivet.memory.buffers import Buffers
from trivet.memory.kv.blocks import KvBlocks
from trivet.memory.migrate import Mover
from trivet.memory.pieces import (
    BufferPiece,
    Piece,
    StoragePiece,
    Told,
    fall_asleep,
    wake_up,
)
from trivet.memory.tiers.host import HostAllocator
from trivet.memory.unraisable import brief, unraisable
from trivet.plugins.describe import said, shown

__all__ = ["TAGS", "Made", "Sleep"]

TAGS: Final = ("weights", "workspace", "kv_cache", "graph")
"""The usual tags, in the order in which they wake; other tags wake after the first two."""


@dataclass(slots=True)
class Made:
    """Something that can be dropped and made again, but not copied: a captured graph.

    Args:
        name: what it is called in errors, its tag first.
        tag: what it is for.
        drop: gives it up.
        rebuild: makes it again.
        dropped: it is not there now.
    """

    name: str
    tag: str
    drop: Callable[[], object]
    rebuild: Callable[[], object]
    dropped: bool = False


class Sleep:
    """Suspends and resumes everything that it was told of.

    Nothing of it may be used while it sleeps. A call that fails in parts leaves each piece either
    as it was or as it was asked to be, says which, and can be made again. One call at a time;
    owners' functions are called without a lock, and other threads free nothing meanwhile.

    Args:
        device: what is waited for before memory goes.
        host: where contents are copied to; pages of the host when None.
        mover: who copies; torch when None.
        unified: says whether host and device are one memory, so that what is kept frees nothing.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        host: Buffers | None = None,
        mover: Mover | None = None,
        unified: Callable[[], bool] = bool,
    ) -> None:
        self._device = device
        self._unified = unified
        self._host = host or Buffers(HostAllocator())
        self._mover = mover or Mover()
        self._heaps: list[Buffers] = []
        self._storages: dict[int, StoragePiece] = {}
        self._ended: deque[tuple[int, StoragePiece]] = deque()
        self._made: list[Made] = []
        self._pools: list[tuple[str, weakref.ref[KvBlocks]]] = []
        self._reload: dict[str, Told] = {}
        self._rebind: dict[str, list[Told]] = {}
        self._busy = threading.Lock()

    # --- what there is -------------------------------------------------------------------------

    def watch(self, heap: Buffers) -> None:
        """Lets every buffer of a heap sleep, those that it makes later too."""
        if heap not in self._heaps:
            self._heaps.append(heap)

    def add(self, tensors: Mapping[str, torch.Tensor], *, tag: str = "weights") -> None:
        """Lets tensors sleep by their storages, for as long as these live.

        The tensors stay the same objects, all views of them too; their addresses may change. They
        must not be read while they sleep: torch does not check that, and the process may end.

        Args:
            tensors: by name, as an owner's functions know them.
            tag: what they are for. Memory that is not torch's (a mapped file), or of which
                ``numpy()`` was taken, cannot sleep, which the error of ``sleep`` says.

        Raises:
            MemoryFault: ``tensors`` is no mapping.
        """
        odd: Any = tensors  # not all engines are typed
        if not isinstance(odd, Mapping):
            msg = f"{type(odd).__name__} is no mapping of names to tensors"
            raise MemoryFault(msg, fix="dict(model.named_parameters()), for example")
        self._settle()
        for name, tensor in tensors.items():
            given: object = tensor
            if not isinstance(given, torch.Tensor) or given.layout is not torch.strided:
                msg = f"{tag}/{name} is no tensor with a storage: {shown(tensor)}"
                raise MemoryFault(msg, fix="add the dense tensors that it consists of")
        for name, tensor in tensors.items():
            storage = tensor.untyped_storage()
            piece = self._storages.get(id(storage))
            if piece is None or piece.gone:
                whole = self._unused(f"{tag}/{name}")
                piece = self._storages[id(storage)] = StoragePiece(whole, tag, storage)
                end = weakref.finalize(storage, self._ended.append, (id(storage), piece))
                end.atexit = False
            piece.names[name] = weakref.ref(tensor)

    def made(
        self,
        name: str,
        *,
        drop: Callable[[], object],
        rebuild: Callable[[], object],
        tag: str = "graph",
    ) -> None:
        """Lets something sleep that is dropped and made again; where its tag is kept, it stays."""
        given: tuple[object, object] = drop, rebuild
        if not all(map(callable, given)):
            msg = f"{tag}/{name} cannot be dropped and made again by {shown(given)}"
            raise MemoryFault(msg, fix="two functions without arguments")
        self._made.append(Made(f"{tag}/{name}", tag, drop, rebuild))

    def contents(self, pool: KvBlocks, *, tag: str = "kv_cache") -> None:
        """Lets a pool forget its cached blocks when memory of a tag is discarded.

        Raises:
            MemoryFault: it is no pool of blocks.
        """
        odd: Any = pool
        if not isinstance(odd, KvBlocks):
            msg = f"{type(odd).__name__} is no pool that could forget its blocks"
            raise MemoryFault(msg, fix="what dev.memory.kv_blocks returned")
        self._pools.append((tag, weakref.ref(pool)))

    def on(self, tag: str, *, reload: Told | None = None, rebind: Told | None = None) -> None:
        """Names an owner's functions for the pieces of a tag; each is called with a ``Piece``.

        Args:
            tag: what the pieces are for.
            reload: fills a piece that was discarded; without one it is zeroed, and weights cannot
                be discarded.
            rebind: is told of each piece whose address or tensors changed; there may be several.
        """
        if reload is not None:
            self._reload[tag] = reload
        if rebind is not None and rebind not in self._rebind.get(tag, []):
            self._rebind.setdefault(tag, []).append(rebind)

    def states(self) -> dict[str, str]:
        """Every piece by name: ``awake``, ``kept``, or ``discarded``."""
        pieces = {piece.name: piece.state() for piece in self._pieces()}
        return pieces | {m.name: "discarded" if m.dropped else "awake" for m in self._made}

    def preserves(self, tag: str) -> frozenset[str]:
        """What survives the sleep of every piece of a tag; see ``contracts.memory.Reclaimer``."""
        found = [piece.preserves for piece in self._pieces() if piece.tag == tag]
        return frozenset.intersection(*found) if found else frozenset()

    # --- sleep and wake ------------------------------------------------------------------------

    def sleep(self, *, keep: Collection[str] = (), discard: Collection[str] = ()) -> int:
        """Gives the memory of tags back; what sleeps already is left, or discarded after all.

        Args:
            keep: tags whose contents are copied to the host.
            discard: tags whose contents are lost.

        Returns:
            Bytes that were given back; what is kept counts only where the host has other memory.

        Raises:
            PartialReclaim: some pieces could not; it names them, the others sleep.
            MemoryFault: a tag is unknown, or in both; nothing was done.
        """
        keep, discard = self._tags(keep), self._tags(discard)
        if keep & discard or not keep | discard:
            what = f"{sorted(keep & discard)} are both kept and discarded" if keep else "no tag"
            raise MemoryFault(f"sleep was told: {what}", fix="sleep(keep=[...], discard=[...])")
        unified = bool(keep) and self._unified()
        with self._alone(), _Report("sleep") as report:
            self._wait()
            for thing in self._made:
                if thing.tag in discard and not thing.dropped:
                    with report.of(thing.name):
                        thing.drop()
                        thing.dropped = True
            lost = set()
            try:
                for piece in reversed(list(self._pieces())):
                    if piece.tag in keep | discard:
                        kept = piece.tag in keep
                        with report.of(piece.name, piece):
                            self._refuse_loss(piece, kept)
                            given = fall_asleep(piece, self._host, self._mover, keep=kept)
                            report.nbytes += 0 if kept and unified else given
                            lost |= set() if kept else {piece.tag}
            finally:
                self._forget(lost)
            with report.of("cached memory", counts=False):
                self._trim()
        return report.nbytes

    def wake(self, tags: Collection[str] | None = None) -> int:
        """Gives memory and contents back to tags, to all of them by default.

        Returns:
            Bytes that were taken.

        Raises:
            PartialReclaim: some pieces could not; it names them, the others are awake.
            MemoryFault: a tag is unknown; nothing was done.
        """
        wanted = None if tags is None else self._tags(tags)
        with self._alone(), _Report("wake") as report:
            for piece in list(self._pieces()):
                if wanted is None or piece.tag in wanted:
                    with report.of(piece.name, piece):
                        report.nbytes += wake_up(
                            piece,
                            self._host,
                            self._mover,
                            reload=self._reload.get(piece.tag),
                            rebind=self._rebind.get(piece.tag, ()),
                        )
            for thing in self._made:
                if thing.dropped and (wanted is None or thing.tag in wanted):
                    with report.of(thing.name):
                        thing.rebuild()
                        thing.dropped = False
        return report.nbytes

    # --- inside --------------------------------------------------------------------------------

    def _pieces(self) -> Iterator[Piece]:
        """Every live piece, in the order in which they wake."""
        self._settle()
        found: list[Piece] = [p for p in self._storages.values() if not p.gone]
        found += [BufferPiece(heap, buffer) for heap in self._heaps for buffer in heap]
        return iter(sorted(found, key=lambda piece: _turn(piece.tag)))

    def _unused(self, name: str) -> str:
        taken = {piece.name for piece in self._storages.values()}
        tries = (name if i == 1 else f"{name}#{i}" for i in itertools.count(1))
        return next(n for n in tries if n not in taken)

    def _settle(self) -> None:
        """Gives up the host copies of tensors that ended while they slept."""
        while self._ended:
            key, piece = self._ended.popleft()
            if self._storages.get(key) is piece:
                del self._storages[key]
            absence = piece.absence
            if absence is not None and absence.kept is not None:
                kept, absence.kept = absence.kept, None
                try:
                    kept.free()
                except Exception as error:  # noqa: BLE001  # a vendor's; nobody is there to take it
                    unraisable(error, piece, "while the copy of what ended was given back")

    def _tags(self, tags: Collection[str]) -> set[str]:
        try:
            asked = {tags} if isinstance(tags, str) else set(tags)
        except TypeError as error:
            raise MemoryFault(f"{shown(tags)} are no tags", fix="a collection of texts") from error
        known = {*TAGS, *self._reload, *self._rebind, *(piece.tag for piece in self._pieces())}
        known |= {thing.tag for thing in self._made}
        if asked - known:
            msg = f"nothing has the tag {', '.join(sorted(map(shown, asked - known)))}"
            raise MemoryFault(msg, fix=f"tags here: {', '.join(sorted(known))}")
        return asked

    def _refuse_loss(self, piece: Piece, kept: bool) -> None:
        if not kept and piece.tag == "weights" and piece.tag not in self._reload:
            msg = "weights cannot be discarded: nothing loads them again"
            raise MemoryFault(msg, fix="on('weights', reload=...), or keep them")

    def _forget(self, tags: set[str]) -> None:
        for tag, held in self._pools:
            pool = held()
            if pool is not None and tag in tags:
                pool.forget()

    def _wait(self) -> None:
        """Waits for the device: a kernel may still use the memory."""
        if self._device.type == "cpu":
            return
        try:
            torch.accelerator.synchronize(self._device)
        except RuntimeError as error:
            msg = f"the device could not be waited for, nothing sleeps: {brief(error)}"
            raise MemoryFault(msg, fix="a kernel before failed: look for its error") from error

    def _trim(self) -> None:
        """Gives memory that an allocator caches back to the system."""
        if self._device.type != "cpu":
            torch.accelerator.empty_cache()
        for heap in self._heaps:
            heap.trim(0)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            msg = "another sleep or wake is under way"
            raise MemoryFault(msg, fix="one call at a time, and none from an owner's function")
        try:
            yield
        finally:
            self._busy.release()


class _Report:
    """What was done and what was not; raises at its end when something was not."""

    def __init__(self, what: str) -> None:
        self._what, self.nbytes = what, 0
        self._done: list[str] = []
        self._failed: dict[str, str] = {}
        self._first: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        first, self._first = self._first, None  # in no cycle: frames hold buffers
        if kind is None and self._failed:
            raise PartialReclaim(
                f"{self._what} could not be done for everything",
                done=self._done,
                failed=self._failed,
                fix="mend what is said of each and call it again: what is done stays done",
            ) from first

    @contextmanager
    def of(self, name: str, piece: Piece | None = None, *, counts: bool = True) -> Iterator[None]:
        """Enters how one piece fared; one that its owner freed meanwhile is done."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # a vendor's or an owner's code; told by name
            if piece is None or not piece.gone:
                self._failed[name] = _why(error)
                self._first = self._first or error
                return
        if counts:
            self._done.append(name)


def _why(error: Exception) -> str:
    """One line of an error: what and fix of ours, with its type of anybody else's."""
    if isinstance(error, TrivetError):
        what = error.what.partition("\n")[0]
        return f"{what}; {error.fix}" if error.fix else what
    return said(error).partition("\n")[0]


def _turn(tag: str) -> int:
    """When a tag wakes, relative to others."""
    return {"weights": 0, "workspace": 1, "kv_cache": 3, "graph": 4}.get(tag, 2)
