"""A right migrator and a right exporter over host memory."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Sequence
from typing import Final

import torch

from trivet.contracts.memory import Copy, Cost, Tier, Traits
from trivet.errors import MemoryFault

KIND: Final = "shm"
_START: Final = b"variant "
_MOST: Final = 1 << 40


class Moving:
    """A transfer that a thread makes, so that it is under way for a while."""

    def __init__(self, copies: Sequence[Copy], copy: Callable[[Copy], object]) -> None:
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._copies, self._copy = list(copies), copy
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while self._copies:
            with self._lock:
                if self._stop.is_set():
                    return
                self._copy(self._copies.pop(0))

    def poll(self) -> bool:
        """Whether it is done."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Until it is done."""
        self._thread.join()

    def release(self) -> None:
        """Stops it; what is under way is ended first."""
        self._stop.set()
        self._thread.join()
        self._copies = []


def copied(copy: Copy) -> None:
    """Makes one copy."""
    source = copy.source[copy.source_offset : copy.source_offset + copy.nbytes]
    copy.target[copy.target_offset : copy.target_offset + copy.nbytes].copy_(source)


class Mover:
    """A migrator of host memory, and nothing else."""

    pairs = frozenset({(Tier.HOST, Tier.HOST), (Tier.HOST, Tier.SHARED)})

    def routes(self) -> frozenset[tuple[Tier, Tier]]:
        """Between host and shared memory."""
        return self.pairs

    def estimate(self, source: Tier, target: Tier, nbytes: int) -> Cost:
        """A guess."""
        del source, target
        return Cost(seconds=nbytes / 1e9)

    def post(self, copies: Sequence[Copy]) -> Moving:
        """Starts a batch; see the contract."""
        self.check(copies)
        return Moving(copies, copied)

    def check(self, copies: Sequence[Copy]) -> None:
        """Refuses a run outside of its buffers."""
        for one in copies:
            inside = (
                one.nbytes >= 0
                and 0 <= one.source_offset <= one.source.numel() - one.nbytes
                and 0 <= one.target_offset <= one.target.numel() - one.nbytes
            )
            if not inside:
                msg = f"{one.nbytes} bytes at {one.source_offset} and {one.target_offset}"
                raise MemoryFault(msg, fix="a run that lies in both buffers")


class Shared:
    """An allocator of shared memory that other processes open by the owner's descriptor."""

    def __init__(self) -> None:
        self.owned: dict[int, tuple[torch.Tensor, int]] = {}
        self.opened: dict[int, torch.Tensor] = {}

    def traits(self) -> Traits:
        """Shared memory of the host."""
        device = torch.device("cpu")
        kinds = frozenset({KIND})
        return Traits(device, Tier.SHARED, 64, host_visible=True, zeroed=True, exportable=kinds)

    def allocate(self, nbytes: int, *, tag: str) -> torch.Tensor:
        """A file in memory a buffer."""
        if nbytes > _MOST:
            msg = f"no room for {nbytes} bytes ({tag})"
            raise torch.OutOfMemoryError(msg)
        descriptor = os.memfd_create("variant")
        os.ftruncate(descriptor, max(nbytes, 1))
        tensor = mapped(descriptor, nbytes)
        self.owned[id(tensor)] = tensor, descriptor
        return tensor

    def deallocate(self, buffer: torch.Tensor) -> None:
        """Closes the file; the mapping goes with the tensor."""
        os.close(self.owned.pop(id(buffer))[1])

    def export(self, buffer: torch.Tensor, kind: str) -> bytes:
        """Where the file is to be found, and the size."""
        if kind != KIND:
            raise MemoryFault(f"no export by {kind!r}", fix=KIND)
        return b"%s%d %d %d" % (_START, buffer.numel(), os.getpid(), self.owned[id(buffer)][1])

    def open(self, exported: bytes, kind: str) -> torch.Tensor:
        """The file of another process."""
        if kind != KIND or not exported.startswith(_START):
            raise MemoryFault("this is no export of this kind", fix=f"export by {KIND}")
        nbytes, owner, number = map(int, exported.removeprefix(_START).split())
        try:
            descriptor = os.open(f"/proc/{owner}/fd/{number}", os.O_RDWR)
        except OSError as error:
            raise MemoryFault("its owner has ended", fix="export it again") from error
        tensor = mapped(descriptor, nbytes)
        os.close(descriptor)
        self.opened[id(tensor)] = tensor
        return tensor

    def close(self, buffer: torch.Tensor) -> None:
        """Forgets it; the mapping goes with the tensor."""
        self.opened.pop(id(buffer))


def mapped(descriptor: int, nbytes: int) -> torch.Tensor:
    """A tensor over a file."""
    return torch.frombuffer(mmap.mmap(descriptor, max(nbytes, 1)), dtype=torch.uint8)[:nbytes]
