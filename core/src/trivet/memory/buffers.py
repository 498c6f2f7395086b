"""Buffers: large pieces of memory with an owner, a tag, and a state that says where they are."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self

import torch

from trivet.contracts.memory import Allocator, Reclaimer, Traits
from trivet.errors import InvalidBuffer, MemoryFault, NotResident, PluginBroken
from trivet.memory.upstream import allocator_problem

__all__ = ["Buffer", "Buffers", "Residency"]

ALIGNMENT: Final = 64
"""The least alignment of every buffer."""

_generations = itertools.count(1)


class Residency(StrEnum):
    """Where the contents of a buffer are.

    resident: in its memory.
    suspended: its memory was given back; its contents are kept elsewhere, or discarded.
    freed: nowhere, for ever.
    """

    RESIDENT = "resident"
    SUSPENDED = "suspended"
    FREED = "freed"


@dataclass(slots=True)
class Absence:
    """What is known of a buffer while it is suspended.

    Args:
        address: where it was when it was used last.
        holds_memory: it has memory again, without its contents.
        kept: a buffer, usually of the host, with its contents; None when they were discarded.
    """

    address: int
    holds_memory: bool = False
    kept: Buffer | None = None


class Buffer:
    """Memory that one owner holds until it frees it; made by ``Buffers.allocate``.

    One that is dropped without being freed is freed by the collector, and counted as leaked.
    """

    __slots__ = ("__weakref__", "_home", "_raw", "absence", "generation", "nbytes", "residency",
                 "tag")  # fmt: skip

    def __init__(self, home: Buffers, raw: torch.Tensor, tag: str) -> None:
        self._home, self._raw, self.tag = home, raw, tag
        self.nbytes = raw.numel()
        self.residency = Residency.RESIDENT
        self.absence: Absence | None = None
        self.generation = next(_generations)

    def __repr__(self) -> str:
        kept = f"{self.nbytes} bytes, {self.residency}, {self.tag or 'no tag'}"
        return f"<buffer {self.generation}: {kept}>"

    @property
    def traits(self) -> Traits:
        """What holds for it and its siblings."""
        return self._home.traits

    @property
    def raw(self) -> torch.Tensor:
        """All of it: ``uint8`` ``[nbytes]``, the very tensor that its allocator returned.

        Raises:
            NotResident: it is suspended.
            InvalidBuffer: it was freed.
        """
        if self.residency is Residency.RESIDENT:
            return self._raw
        if self.residency is Residency.SUSPENDED:
            msg = f"buffer {self.generation} ({self.tag or 'no tag'}) is suspended"
            raise NotResident(msg, fix="wake its tag, or fetch it back, before it is used")
        msg = f"buffer {self.generation} ({self.tag or 'no tag'}) was freed"
        raise InvalidBuffer(msg, fix="allocate a new one")

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype, offset: int = 0) -> torch.Tensor:
        """A tensor over a part of it, valid until it is freed or suspended.

        Args:
            shape: of the tensor.
            dtype: of the tensor.
            offset: its first byte; a multiple of the item size.

        Raises:
            NotResident: it is suspended.
            InvalidBuffer: it was freed, or the part does not lie in it.
        """
        count = 1
        for size in shape:
            count *= size
        end = offset + count * dtype.itemsize
        if offset < 0 or count < 0 or end > self.nbytes or offset % dtype.itemsize:
            msg, fix = _outside(self.nbytes, shape, dtype, offset, end)
            raise InvalidBuffer(msg, fix=fix)
        return self.raw[offset:end].view(dtype).view(shape)

    def free(self) -> None:
        """Gives it back, suspended or not.

        Raises:
            InvalidBuffer: it was freed before.
        """
        self._home.free(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.residency is not Residency.FREED:
            self.free()


class Buffers:
    """What one allocator has given out, checked: each piece is a ``Buffer`` with one owner.

    It may be used from any thread; the allocator behind it sees one call at a time, unless it says
    itself that it is ``thread_safe``: that one is called without a lock, as are its callbacks. A
    buffer that ends in a garbage collection is given back at the next call, as a collection may
    interrupt one.

    Args:
        allocator: a vendor's, or any of core's.

    Raises:
        PluginBroken: it is no allocator, or its traits are none.
    """

    def __init__(self, allocator: Allocator) -> None:
        if problem := allocator_problem(allocator):
            fix = "an object with traits(), allocate(nbytes, *, tag) and deallocate(buffer)"
            raise PluginBroken(problem, fix=fix)
        self.allocator = allocator
        self.traits = allocator.traits()
        self.leaked = 0
        self._lock = threading.RLock()
        shared = getattr(allocator, "thread_safe", False)
        self._calls: AbstractContextManager[object] = nullcontext() if shared else self._lock
        self._live: dict[int, tuple[torch.Tensor | None, weakref.ref[Buffer]]] = {}
        self._ended: deque[int] = deque()
        if self.traits.alignment < ALIGNMENT or self.traits.alignment & self.traits.alignment - 1:
            msg = f"{_name(allocator)} aligns to {self.traits.alignment} bytes"
            raise PluginBroken(msg, fix=f"a power of two, at least {ALIGNMENT}")

    def allocate(self, nbytes: int, *, tag: str = "") -> Buffer:
        """A new buffer.

        Raises:
            OutOfMemory: there is no room; nothing changed.
            MemoryFault: the size is negative, or no whole number.
            PluginBroken: the allocator returned something that is no such buffer.
        """
        if not isinstance(nbytes, int) or nbytes < 0:  # type: ignore[redundant-expr]  # untyped
            msg = f"a buffer of {nbytes!r} bytes cannot be made"
            raise MemoryFault(msg, fix="a whole number, 0 or more")
        self.settle()
        with self._calls:
            raw = self.allocator.allocate(nbytes, tag=tag)
            self._refuse_odd(raw, nbytes)
            buffer = Buffer(self, raw, tag)
            ended = self._ended
            number = buffer.generation
            held = weakref.ref(buffer, lambda _: ended.append(number))
            with self._lock:
                self._live[number] = raw, held
            return buffer

    def free(self, buffer: Buffer) -> None:
        """Gives a buffer back.

        Raises:
            InvalidBuffer: it was freed before, or belongs to another allocator.
        """
        self.settle()
        with self._lock:
            known = self._live.pop(buffer.generation, None) if buffer._home is self else None  # noqa: SLF001
            if known is None:
                why = "was freed before" if buffer._home is self else "is of another allocator"  # noqa: SLF001
                msg = f"{buffer!r} {why}"
                raise InvalidBuffer(msg, fix="each buffer is freed once, by its owner")
            buffer.residency = Residency.FREED
            absence, buffer.absence = buffer.absence, None
        if known[0] is not None:
            with self._calls:
                self.allocator.deallocate(known[0])
        if absence is not None and absence.kept is not None:
            absence.kept.free()  # of another allocator, whose lock is not taken under this one

    @property
    def preserves(self) -> frozenset[str]:
        """What of a buffer survives its suspension; see ``contracts.memory.Reclaimer``."""
        allocator = self.allocator
        return allocator.preserves if isinstance(allocator, Reclaimer) else frozenset()

    def suspend(self, buffer: Buffer) -> None:
        """Gives the memory of a live buffer back; its contents are lost unless they were copied.

        Raises:
            InvalidBuffer: it was freed, or belongs to another allocator.
            MemoryFault: the allocator's own; the buffer stays as it was.
        """
        self.settle()
        with self._calls:
            raw = self._raw_of(buffer)
            if raw is not None:
                address = raw.data_ptr()
                if self._stays:
                    self.allocator.suspend(raw)  # type: ignore[attr-defined]  # a Reclaimer
                else:
                    self.allocator.deallocate(raw)
                    # one empty tensor for all: nothing of the old memory stays referenced
                    buffer._raw = torch.empty(0, dtype=torch.uint8)  # noqa: SLF001
                    self._live[buffer.generation] = None, self._live[buffer.generation][1]
                buffer.absence = buffer.absence or Absence(address)
                buffer.absence.holds_memory = False
            buffer.residency = Residency.SUSPENDED

    def resume(self, buffer: Buffer) -> torch.Tensor:
        """Gives a suspended buffer memory again; it stays suspended until ``mark`` says otherwise.

        Returns:
            All of it, with any contents; the same tensor as before where that is preserved.

        Raises:
            InvalidBuffer: it was freed, or belongs to another allocator.
            OutOfMemory: there is no room; it stays suspended.
        """
        self.settle()
        with self._calls:
            raw = self._raw_of(buffer)
            if raw is not None:
                return raw
            if self._stays:
                raw = self._live[buffer.generation][0]
                self.allocator.resume(raw)  # type: ignore[attr-defined]  # a Reclaimer
            else:
                raw = self.allocator.allocate(buffer.nbytes, tag=buffer.tag)
                self._refuse_odd(raw, buffer.nbytes)
                self._live[buffer.generation] = raw, self._live[buffer.generation][1]
                buffer._raw = raw  # noqa: SLF001
            assert raw is not None  # noqa: S101  # for mypy: both branches have one
            if buffer.absence is not None:
                buffer.absence.holds_memory = True
            return raw

    def mark(self, buffer: Buffer, residency: Residency) -> None:
        """Says whether a live buffer that has memory may be used.

        Raises:
            InvalidBuffer: it was freed, or belongs to another allocator.
            NotResident: it has no memory.
        """
        self.settle()
        with self._lock:
            if self._raw_of(buffer) is None:
                raise NotResident(f"{buffer!r} has no memory", fix="resume it first")
            buffer.residency = residency

    @property
    def _stays(self) -> bool:
        """The allocator's own suspension is used: tensors or addresses outlast it."""
        return bool(self.preserves & {"address", "tensors"})

    def _raw_of(self, buffer: Buffer) -> torch.Tensor | None:
        """The memory of a live buffer; None when it has none now."""
        known = self._live.get(buffer.generation) if buffer._home is self else None  # noqa: SLF001
        if known is None:
            msg = f"{buffer!r} is no live buffer of {_name(self.allocator)}"
            raise InvalidBuffer(msg, fix="suspend what was not freed, with the heap that made it")
        absence = buffer.absence
        return None if absence is not None and not absence.holds_memory else known[0]

    def settle(self) -> None:
        """Gives back what the collector ended since the last call."""
        while self._ended:
            with self._lock:
                known = self._live.pop(self._ended.popleft(), None) if self._ended else None
                self.leaked += known is not None
            if known is not None and known[0] is not None:
                with self._calls:
                    self.allocator.deallocate(known[0])

    def __iter__(self) -> Iterator[Buffer]:
        """Every live buffer, in the order in which they were allocated."""
        self.settle()
        with self._lock:
            found = [held() for _, held in self._live.values()]
        return iter([buffer for buffer in found if buffer is not None])

    def _refuse_odd(self, raw: Any, nbytes: int) -> None:
        """Refuses what is no buffer of that size, after giving it back."""
        traits = self.traits
        good = (
            isinstance(raw, torch.Tensor)
            and raw.dtype == torch.uint8
            and raw.shape == (nbytes,)
            and raw.is_contiguous()
            and raw.device.type == traits.device.type
            and raw.data_ptr() % traits.alignment == 0
        )
        if good:
            return
        found = type(raw).__name__
        if isinstance(raw, torch.Tensor):
            self.allocator.deallocate(raw)
            found = f"{raw.dtype} {list(raw.shape)} on {raw.device} at {raw.data_ptr():#x}"
        msg = f"{_name(self.allocator)} was asked for {nbytes} bytes and returned {found}"
        fix = f"a contiguous uint8 tensor of that size, aligned to {traits.alignment} bytes"
        raise PluginBroken(msg, fix=fix)


def _outside(
    nbytes: int, shape: tuple[int, ...], dtype: torch.dtype, offset: int, end: int
) -> tuple[str, str]:
    """Why a tensor is no part of a buffer, and what to do."""
    what = f"{list(shape)} of {dtype} at byte {offset}"
    if offset >= 0 and offset % dtype.itemsize:
        return f"{what} is not aligned", f"an offset that is a multiple of {dtype.itemsize}"
    if offset < 0 or any(size < 0 for size in shape):
        return f"{what} has a negative size or offset", "0 or more; -1 infers nothing here"
    return f"{what} ends at byte {end}, the buffer has {nbytes}", "a larger buffer"


def _name(allocator: object) -> str:
    return f"the allocator {type(allocator).__qualname__}"
