"""Buffers: large pieces of memory with an owner, a tag, and a state that says where they are."""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

import torch

from trivet.contracts.memory import Allocator, Reclaimer, Traits, Trimmer
from trivet.errors import InvalidBuffer, NotResident
from trivet.memory.asking import ask, give_back, name_of, traits_of
from trivet.memory.parts import end_of_part
from trivet.memory.sizes import label, whole
from trivet.memory.turn import Turn
from trivet.memory.unraisable import noted, unraisable

__all__ = ["Buffer", "Buffers", "Residency"]

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
        end = end_of_part(self.nbytes, shape, dtype, offset)
        return self.raw[offset:end].view(dtype).view(shape)

    def free(self) -> None:
        """Gives it back, suspended or not.

        Raises:
            InvalidBuffer: it was freed before.
        """
        self._home.free(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, first: BaseException | None, *__: object) -> None:
        if self.residency is Residency.FREED:
            return
        with nullcontext() if first is None else noted(first, f"{self!r} did not go back"):
            self.free()


class Buffers:
    """What one allocator has given out, checked: each piece is a ``Buffer`` with one owner.

    It may be used from any thread; the allocator behind it sees one call at a time, unless it says
    itself that it is ``thread_safe``: that one is called without a lock, as are its callbacks. A
    buffer that ends in a garbage collection is given back at the next call, as a collection may
    interrupt one.

    Args:
        allocator: a vendor's, or any of core's.
        where: the device as trivet names it, for errors; as torch does when empty.

    Raises:
        PluginBroken: it is no allocator, or its traits are none.
    """

    def __init__(self, allocator: Allocator, where: str = "") -> None:
        self.allocator, self._where = allocator, where
        self.traits = traits_of(allocator)
        self.leaked = 0
        self._turn = Turn(weakref.WeakMethod(self.settle))
        self._lock = self._turn.lock
        shared = getattr(allocator, "thread_safe", False)
        self._calls: AbstractContextManager[object] = nullcontext() if shared else self._turn
        self._live: dict[int, tuple[torch.Tensor | None, weakref.ref[Buffer]]] = {}
        self._places: dict[int, int] = {}  # address of a live buffer -> its generation
        self._ended: deque[int] = deque()
        self._told: set[int] = set()  # those that were not taken back, as their owners know

    def allocate(self, nbytes: int, *, tag: str = "") -> Buffer:
        """A new buffer.

        Raises:
            OutOfMemory: there is no room; nothing changed.
            MemoryFault: the size is no number of 0 or more, or the tag no text.
            PluginBroken: the allocator returned something that is no such buffer, or raised
                something that no allocator raises.
        """
        nbytes, tag = whole(nbytes, "a buffer of {} bytes"), label(tag)
        self.settle()
        with self._calls:
            raw = self._asked(nbytes, tag)
            buffer = Buffer(self, raw, tag)
            ended = self._ended
            number = buffer.generation
            held = weakref.ref(buffer, lambda _: ended.append(number))
            with self._lock:
                self._live[number] = raw, held
                self._note_place(raw, number)
            return buffer

    def free(self, buffer: Buffer) -> None:
        """Gives a buffer back.

        Within a call of its allocator (a collection may end an owner there, which frees) it is
        put down, and whoever made that call gives it back.

        Raises:
            InvalidBuffer: it was freed before, or belongs to another allocator.
            PluginBroken: the allocator does not take it back; it is as it was.
        """
        self.settle()
        with self._lock:
            known = self._live.pop(buffer.generation, None) if buffer._home is self else None  # noqa: SLF001
            if known is None:
                why = "was freed before" if buffer._home is self else "is of another allocator"  # noqa: SLF001
                msg = f"{buffer!r} {why}"
                raise InvalidBuffer(msg, fix="each buffer is freed once, by its owner")
            was = buffer.residency, buffer.absence
            buffer.residency, buffer.absence = Residency.FREED, None
        try:
            self._give_back(known[0])
        except BaseException:
            with self._lock:
                self._told.add(buffer.generation)
                self._live[buffer.generation] = known
                buffer.residency, buffer.absence = was
            raise
        absence = was[1]
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
                    if "address" not in self.preserves:
                        self._places.pop(address, None)
                else:
                    self.allocator.deallocate(raw)
                    self._places.pop(address, None)
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
                raw = self._asked(buffer.nbytes, buffer.tag)
                self._live[buffer.generation] = raw, self._live[buffer.generation][1]
                buffer._raw = raw  # noqa: SLF001
            assert raw is not None  # noqa: S101  # for mypy: both branches have one
            self._note_place(raw, buffer.generation)
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
            msg = f"{buffer!r} is no live buffer of {name_of(self.allocator)}"
            raise InvalidBuffer(msg, fix="suspend what was not freed, with the heap that made it")
        absence = buffer.absence
        return None if absence is not None and not absence.holds_memory else known[0]

    def settle(self) -> None:
        """Gives back what the collector ended, or a finaliser freed, since the last call.

        Nobody is there to take an error of the allocator: it is reported as those of finalisers.
        """
        while self._ended or self._turn.late:
            with self._lock:
                if self._turn.inside:
                    return  # in the middle of a call: whoever made it comes here when it ends
                raw, number = self._next_ended()
            try:
                self._give_back(raw)
            except Exception as error:  # noqa: BLE001  # a vendor's code; reported by name
                if number not in self._told:
                    unraisable(error, self.allocator, "while a buffer was given back later")
            self._told.discard(number)

    def trim(self, nbytes: int) -> int:
        """What a ``Trimmer`` gives back, called in turn with all else; 0 where it is none."""
        self.settle()
        with self._calls:
            return self.allocator.trim(nbytes) if isinstance(self.allocator, Trimmer) else 0

    def in_turn(self) -> AbstractContextManager[object]:
        """Within it the allocator is asked by nobody else, for what it can besides."""
        return self._calls

    def __iter__(self) -> Iterator[Buffer]:
        """Every live buffer, in the order in which they were allocated."""
        self.settle()
        with self._lock:
            found = [held() for _, held in self._live.values()]
        return iter([buffer for buffer in found if buffer is not None])

    # --- inside --------------------------------------------------------------------------------

    def _asked(self, nbytes: int, tag: str) -> torch.Tensor:
        return ask(self.allocator, self.traits, nbytes, tag, self._places, self._where)

    def _next_ended(self) -> tuple[torch.Tensor | None, int]:
        """What is to be given back next, None where it was done; and the number of its buffer."""
        try:
            if not self._ended:
                return self._turn.late.popleft(), 0
            number = self._ended.popleft()
        except IndexError:  # another thread was faster
            return None, 0
        known = self._live.pop(number, None)
        self.leaked += known is not None
        return (None if known is None else known[0]), number

    def _give_back(self, raw: torch.Tensor | None) -> None:
        """Has the allocator take a buffer back, or puts it down while a call is under way."""
        if raw is None:
            return
        with self._calls:
            if self._turn.inside > 1:
                self._turn.late.append(raw)
                return
            address = raw.data_ptr()
            give_back(self.allocator, raw)
            self._places.pop(address, None)

    def _note_place(self, raw: torch.Tensor, number: int) -> None:
        if raw.numel() and (address := raw.data_ptr()):  # the meta device has no addresses
            self._places[address] = number
