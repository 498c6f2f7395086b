"""Memory: the small abilities that a vendor may bring, and the facts that memory is told in.

What a plugin's ``trivet_memory`` returns is one object with any of the protocols below; what is
missing, core composes from torch. The least is an ``Allocator``, or a ``Migrator`` alone, or any
other of them. Weights and activations always stay in torch's allocator; an ``Allocator`` serves
large buffers that live long: KV caches, arenas, staging memory.

All sizes are bytes, as plain integers; None means unknown, 0 means none.

Streams: a buffer may be used on the stream that was the current one when it was allocated; other
streams wait for that one first. It is given back in the order of the stream that is current at
``deallocate``: that stream may have the memory again at once, others after they waited.

Threads: core never calls one vendor object from two threads at a time, except ``deallocate`` of
buffers that end in a garbage collection, which core puts off until the next call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

import torch

from trivet.errors import MemoryFault

__all__ = [
    "ABILITIES",
    "Allocator",
    "Copy",
    "Cost",
    "Exporter",
    "InfoSource",
    "MemoryInfo",
    "Migrator",
    "Reclaimer",
    "Stats",
    "StatsSource",
    "Tier",
    "Traits",
    "Transfer",
    "Trimmer",
]


class Tier(StrEnum):
    """Where memory is, from near to far.

    device: on the accelerator itself; of the CPU it is ``host``.
    pinned: host memory that the device copies from and to without the processor.
    host: ordinary memory of the process.
    shared: host memory that other processes can open.
    disk: a file.
    """

    DEVICE = "device"
    PINNED = "pinned"
    HOST = "host"
    SHARED = "shared"
    DISK = "disk"


@dataclass(frozen=True, slots=True)
class Traits:
    """What holds for every buffer of one allocator; collectives ask for traits by these names.

    Args:
        device: where its tensors live, as torch names it.
        tier: one of ``Tier``.
        alignment: what every address is a multiple of; at least 64.
        host_visible: the processor reads and writes it at the tensor's address.
        stable_address: the address stays until it is given back, also over suspension.
        zeroed: it is all zeros when allocated.
        exportable: ways in which another process can open it (``"fd"``, ``"ipc"``, ``"shm"``).
        registered: names of communicators that know it.
        addressed: ``data_ptr`` says where the bytes lie. Else it is a handle of a buffer, and
            ``alignment`` is kept from the buffer's begin on.
    """

    device: torch.device
    tier: Tier
    alignment: int = 64
    host_visible: bool = False
    stable_address: bool = True
    zeroed: bool = False
    exportable: frozenset[str] = frozenset()
    registered: frozenset[str] = frozenset()
    addressed: bool = True

    def start_of(self, buffer: torch.Tensor) -> int:
        """What of a buffer is a multiple of ``alignment``: its address, or its place in another."""
        return buffer.data_ptr() if self.addressed else int(buffer.storage_offset())

    def lacks(self, wanted: Mapping[str, object]) -> str:
        """Why a buffer with these traits does not do for somebody; empty where it does.

        Args:
            wanted: trait -> value; of a set, members that must be in it; of ``alignment``, a
                divisor.

        Raises:
            MemoryFault: there is no such trait.
        """
        for name, value in wanted.items():
            if name not in self.__slots__:
                raise MemoryFault(
                    f"{name!r} is no trait", fix=f"one of {', '.join(self.__slots__)}"
                )
            have = getattr(self, name)
            if isinstance(have, frozenset):
                missing = sorted(frozenset(value) - have)  # type: ignore[call-overload]
                if missing:
                    return f"{name} lacks {', '.join(missing)}"
            elif name == "alignment":
                if have % value:
                    return f"alignment is {have}, wanted {value}"
            elif have != value:
                return f"{name} is {have}, wanted {value}"
        return ""

    def to_json(self) -> dict[str, object]:
        """A mapping of plain values with sorted lists in place of sets."""
        plain = {n: getattr(self, n) for n in self.__slots__} | {"device": str(self.device)}
        return {k: sorted(v) if isinstance(v, frozenset) else v for k, v in plain.items()}


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """How much memory a device has, in numbers that must not be mistaken for one another.

    Args:
        total_bytes: what is built in.
        free_bytes: what a new allocation of this process can expect to get now.
        limit_bytes: a ceiling that was set for this process from outside (a control group).
        recommended_bytes: what the maker advises to stay under.
        max_buffer_bytes: the largest single allocation.
        source: where the numbers come from, for a person.
        unified: it is the host's memory, too: what is copied there frees nothing.
    """

    total_bytes: int | None = None
    free_bytes: int | None = None
    limit_bytes: int | None = None
    recommended_bytes: int | None = None
    max_buffer_bytes: int | None = None
    source: str = ""
    unified: bool = False

    def to_json(self) -> dict[str, object]:
        """A mapping of plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Stats:
    """What is in use: by the device's allocator, and by trivet's own account.

    Args:
        allocated_bytes: in live tensors, as the device's allocator counts them.
        reserved_bytes: held by that allocator, live or cached.
        max_allocated_bytes: peak of ``allocated_bytes``.
        max_reserved_bytes: peak of ``reserved_bytes``.
        accounted_bytes: in the ledger now; the ledger counts on every device.
        max_accounted_bytes: peak of ``accounted_bytes``.
        by_tag: ``accounted_bytes`` by tag.
    """

    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    max_allocated_bytes: int | None = None
    max_reserved_bytes: int | None = None
    accounted_bytes: int = 0
    max_accounted_bytes: int = 0
    by_tag: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """A mapping of plain values, tags in alphabetical order."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        return plain | {"by_tag": dict(sorted(self.by_tag.items()))}


@runtime_checkable
class Allocator(Protocol):
    """Gives and takes back large buffers; three functions are the whole of it.

    A failed ``allocate`` changes nothing. Limits are not its business: the ledger has refused
    what exceeds one before ``allocate`` is called.
    """

    def traits(self) -> Traits:
        """What holds for all its buffers; the same answer at any time."""
        ...

    def allocate(self, nbytes: int, *, tag: str) -> torch.Tensor:
        """A buffer: a ``uint8`` tensor ``[nbytes]``, contiguous, aligned as the traits say.

        Args:
            nbytes: its size, 0 included; all of it may be written.
            tag: what it is for, in the words of ``dev.memory.stats().by_tag``.

        Raises:
            torch.OutOfMemoryError: there is no room; ``trivet.errors.OutOfMemory`` is one.
        """
        ...

    def deallocate(self, buffer: torch.Tensor) -> None:
        """Take back a buffer, suspended or not; it is the very tensor that ``allocate`` returned.

        No view of it is used afterwards.
        """
        ...


@runtime_checkable
class Trimmer(Protocol):
    """Gives cached memory, which is in no buffer, back to the system."""

    def trim(self, nbytes: int) -> int:
        """Give back at least so much if it can; how much it was. 0 asks for all of it."""
        ...


@runtime_checkable
class Reclaimer(Protocol):
    """Takes the memory of a buffer away and gives it back; what stays, ``preserves`` says.

    One buffer at a time: which ones, in what order, and what is copied away before, is core's
    part, which also goes back when one of them fails.
    """

    preserves: frozenset[str]
    """What survives a suspension.

    ``"address"``: it has the same one afterwards. ``"tensors"``: its tensor and every view of it
    are valid again, at whatever address. ``"graphs"`` and ``"communicators"``: those that know it.
    Where neither of the first two is there, core gives the buffer back and allocates another one.
    """

    def suspend(self, buffer: torch.Tensor) -> None:
        """Give its memory back; its contents are lost, its tensor is not used until ``resume``.

        Raises:
            MemoryFault: it stays as it was.
        """
        ...

    def resume(self, buffer: torch.Tensor) -> None:
        """Give it memory again, with any contents.

        Raises:
            torch.OutOfMemoryError: there is no room; it stays suspended.
        """
        ...


@dataclass(frozen=True, slots=True)
class Copy:
    """One run of bytes to copy between two buffers, which are ``uint8`` tensors."""

    source: torch.Tensor
    source_offset: int
    target: torch.Tensor
    target_offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Cost:
    """What a transfer is expected to take; None is unknown."""

    seconds: float | None = None
    bytes_per_second: float | None = None


@runtime_checkable
class Transfer(Protocol):
    """A batch of copies under way."""

    def poll(self) -> bool:
        """Whether it is done; never blocks.

        Raises:
            MemoryFault: it failed; every source is as it was.
        """
        ...

    def wait(self) -> None:
        """Blocks until it is done; for its errors see ``poll``."""
        ...

    def release(self) -> None:
        """Give up everything that it holds, done or not; no target is written afterwards."""
        ...


@runtime_checkable
class Migrator(Protocol):
    """Copies batches of blocks between tiers."""

    def routes(self) -> frozenset[tuple[Tier, Tier]]:
        """From which tier to which it can copy."""
        ...

    def estimate(self, source: Tier, target: Tier, nbytes: int) -> Cost:
        """What a batch of so many bytes is expected to take."""
        ...

    def post(self, copies: Sequence[Copy]) -> Transfer:
        """Starts a batch after what the current stream was given before.

        Raises:
            MemoryFault: a run lies outside its buffer, or a route is none of ``routes``; nothing
                was started.
        """
        ...


@runtime_checkable
class Exporter(Protocol):
    """Lets another process open a buffer."""

    def export(self, buffer: torch.Tensor, kind: str) -> bytes:
        """What the other process needs, for one of the kinds in ``Traits.exportable``.

        Raises:
            MemoryFault: this buffer cannot be exported so; the text says why.
        """
        ...

    def open(self, exported: bytes, kind: str) -> torch.Tensor:
        """The buffer of another process: a ``uint8`` tensor over the same memory.

        Raises:
            MemoryFault: it is no such export, or its owner has ended.
        """
        ...

    def close(self, buffer: torch.Tensor) -> None:
        """Give up what ``open`` returned; no view of it is used afterwards."""
        ...


@runtime_checkable
class InfoSource(Protocol):
    """Knows the device's memory better than torch."""

    def info(self) -> MemoryInfo:
        """The numbers of this moment."""
        ...


@runtime_checkable
class StatsSource(Protocol):
    """Counts what its allocator holds; the fields of the ledger are filled in by the caller."""

    def stats(self) -> Stats:
        """The numbers of this moment."""
        ...


ABILITIES = (Allocator, Trimmer, Reclaimer, Migrator, Exporter, InfoSource, StatsSource)
"""Every protocol of which ``trivet_memory`` may bring any number."""
