"""What sleeps as a whole: a buffer, the storage of tensors, or something made anew.

Each step of ``fall_asleep`` and ``wake_up`` that fails leaves the piece as it was before the call.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import torch

from trivet.contracts.memory import Tier
from trivet.errors import MemoryFault
from trivet.memory.buffers import Absence, Buffer, Buffers, Residency
from trivet.memory.migrate import Mover, finish
from trivet.memory.torch_allocator import empty_storage, fill_storage
from trivet.memory.unraisable import brief, noted, unraisable

Told = Callable[["Piece"], object]
"""An owner's function: fills a piece again, or takes note of its new address."""


class Piece(ABC):
    """Memory with contents that sleeps as a whole.

    Args:
        name: what it is called in errors, its tag first.
        tag: what it is for.
        nbytes: its size.
    """

    def __init__(self, name: str, tag: str, nbytes: int) -> None:
        self.name, self.tag, self.nbytes = name, tag, nbytes

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """Its tensors by the names that ``Sleep.add`` was given; of a buffer none."""
        return {}

    @property
    @abstractmethod
    def tier(self) -> Tier:
        """Where its memory is while it is awake."""

    @property
    @abstractmethod
    def preserves(self) -> frozenset[str]:
        """What survives a suspension; see ``contracts.memory.Reclaimer``."""

    @property
    @abstractmethod
    def asleep(self) -> bool:
        """It may not be used."""

    @property
    @abstractmethod
    def gone(self) -> bool:
        """Its owner freed it."""

    @property
    @abstractmethod
    def absence(self) -> Absence | None:
        """What is known of it while it is asleep."""

    @abstractmethod
    def memory(self) -> torch.Tensor:
        """All its bytes; memory is taken for them where it has none.

        Raises:
            OutOfMemory: there is no room; it stays without.
        """

    @abstractmethod
    def suspend(self) -> None:
        """Gives its memory back; it is asleep then.

        Raises:
            MemoryFault: it stays as it was.
        """

    @abstractmethod
    def mark(self, *, asleep: bool) -> None:
        """Says whether it may be used; it has memory."""

    @abstractmethod
    def forget_absence(self) -> None:
        """It is awake for good."""

    def state(self) -> str:
        """``awake``, or ``kept`` or ``discarded`` of one that is asleep."""
        if not self.asleep:
            return "awake"
        return "discarded" if self.absence is None or self.absence.kept is None else "kept"


class BufferPiece(Piece):
    """A buffer of a heap."""

    def __init__(self, heap: Buffers, buffer: Buffer) -> None:
        super().__init__(f"{buffer.tag or 'no tag'}/{buffer.generation}", buffer.tag, buffer.nbytes)
        self.heap, self.buffer = heap, buffer

    @property
    def tier(self) -> Tier:
        """Where its heap's memory is."""
        return self.heap.traits.tier

    @property
    def preserves(self) -> frozenset[str]:
        """What its allocator says."""
        return self.heap.preserves

    @property
    def asleep(self) -> bool:
        """As its residency says."""
        return self.buffer.residency is Residency.SUSPENDED

    @property
    def gone(self) -> bool:
        """As its residency says."""
        return self.buffer.residency is Residency.FREED

    @property
    def absence(self) -> Absence | None:
        """Stands in the buffer, and ends with it."""
        return self.buffer.absence

    def memory(self) -> torch.Tensor:
        """Resumes it where it is suspended."""
        return self.heap.resume(self.buffer)

    def suspend(self) -> None:
        """Suspends it in its heap."""
        self.heap.suspend(self.buffer)

    def mark(self, *, asleep: bool) -> None:
        """Sets its residency."""
        self.heap.mark(self.buffer, Residency.SUSPENDED if asleep else Residency.RESIDENT)

    def forget_absence(self) -> None:
        """Takes it out of the buffer."""
        self.buffer.absence = None


class StoragePiece(Piece):
    """The storage of tensors of torch; the tensors stay as objects, their address may change."""

    def __init__(self, name: str, tag: str, storage: torch.UntypedStorage) -> None:
        super().__init__(name, tag, storage.nbytes())
        self._storage = weakref.ref(storage)
        self._absence: Absence | None = None
        self._usable = True
        self.names: dict[str, weakref.ref[torch.Tensor]] = {}

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """Those that live."""
        found = {name: held() for name, held in self.names.items()}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    @property
    def tier(self) -> Tier:
        """The host or the device."""
        return Tier.HOST if self._live().device.type == "cpu" else Tier.DEVICE

    @property
    def preserves(self) -> frozenset[str]:
        """Tensors, but not their address."""
        return frozenset({"tensors"})

    @property
    def asleep(self) -> bool:
        """As ``mark`` said last."""
        return not self._usable

    @property
    def gone(self) -> bool:
        """No tensor over it is left."""
        return self._storage() is None

    @property
    def absence(self) -> Absence | None:
        """Stands in this piece."""
        return self._absence

    def memory(self) -> torch.Tensor:
        """Fills an empty storage."""
        storage = self._live()
        if self._absence is not None and not self._absence.holds_memory:
            fill_storage(storage, self.nbytes, tag=self.tag)
            self._absence.holds_memory = True
        return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)

    def suspend(self) -> None:
        """Empties the storage."""
        storage = self._live()
        address = storage.data_ptr()
        empty_storage(storage)
        self._absence = self._absence or Absence(address)
        self._absence.holds_memory = False
        self._usable = False

    def mark(self, *, asleep: bool) -> None:
        """Notes it."""
        self._usable = not asleep

    def forget_absence(self) -> None:
        """Forgets it."""
        self._absence = None

    def _live(self) -> torch.UntypedStorage:
        storage = self._storage()
        if storage is None:
            raise MemoryFault(f"the tensors of {self.name} are gone", fix="nothing: they ended")
        return storage


def fall_asleep(piece: Piece, host: Buffers, mover: Mover, *, keep: bool) -> int:
    """Gives the memory of a piece back, after its contents were copied to the host.

    Args:
        piece: one that may be asleep already: then its host copy is given up where contents are
            not to be kept, and a copy that is not there is not made.
        host: where copies are allocated.
        mover: who copies.
        keep: whether contents are kept.

    Returns:
        Bytes that were given back.

    Raises:
        MemoryFault: it is as it was.
    """
    if piece.asleep:
        absence = piece.absence
        if not keep and absence is not None and absence.kept is not None:
            absence.kept.free()
            absence.kept = None
        return 0
    copied: Buffer | None = None
    try:
        if keep:
            copied = host.allocate(piece.nbytes, tag=f"{piece.tag} asleep")
            _copy(mover, piece.memory(), copied.raw, (piece.tier, host.traits.tier))
        piece.suspend()
    except BaseException as error:
        if copied is not None:
            with noted(error, f"the copy of {piece.name} did not go back"):
                copied.free()
        raise
    if piece.absence is not None:
        piece.absence.kept = copied
    return piece.nbytes


def wake_up(
    piece: Piece, host: Buffers, mover: Mover, *, reload: Told | None, rebind: Sequence[Told]
) -> int:
    """Gives a piece memory again and fills it: from its host copy, by ``reload``, or with zeros.

    Args:
        piece: one that may be awake already.
        host: where copies were allocated.
        mover: who copies.
        reload: fills what was discarded.
        rebind: are told when its address changed, or its tensors.

    Returns:
        Bytes that were taken.

    Raises:
        MemoryFault: it is asleep as before, with its host copy.
    """
    absence = piece.absence
    if not piece.asleep or absence is None:
        return 0
    memory = piece.memory()
    try:
        if absence.kept is not None:
            _copy(mover, absence.kept.raw, memory, (host.traits.tier, piece.tier))
        elif reload is None:
            memory.zero_()
        moved = memory.data_ptr() != absence.address or not piece.preserves & {"address", "tensors"}
        piece.mark(asleep=False)
        if absence.kept is None and reload is not None:
            reload(piece)
        for told in rebind if moved else ():
            told(piece)
    except BaseException as error:
        if not piece.gone:
            _back_to_sleep(piece, error)
        raise
    kept, absence.kept = absence.kept, None
    piece.forget_absence()
    if kept is not None:
        try:
            kept.free()
        except Exception as error:  # noqa: BLE001  # a vendor's; the piece is awake all the same
            unraisable(error, piece, "while the copy of what woke was given back")
    return piece.nbytes


def _back_to_sleep(piece: Piece, error: BaseException) -> None:
    """Undoes half a waking; memory that cannot be given back is used by the next attempt."""
    piece.mark(asleep=True)
    try:
        piece.suspend()
    except Exception as second:  # noqa: BLE001  # a vendor's code; told with the first error
        error.add_note(
            f"the memory of {piece.name} could not be given back either: {brief(second)}"
        )


def _copy(
    mover: Mover, source: torch.Tensor, target: torch.Tensor, route: tuple[Tier, Tier]
) -> None:
    finish(mover.copy(source, target, route))
