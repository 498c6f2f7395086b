"""What the kernels of a group work with: memory of every rank, counters, and the host's word."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from trivet.contracts.collectives import Group, Store
from trivet.kernels.triton import Kernel
from trivet_cuda.collectives import plan
from trivet_cuda.collectives.failures import failure
from trivet_cuda.collectives.room import Piece, Room, TorchRoom
from trivet_cuda.collectives.streams import Streams
from trivet_cuda.collectives.talk import Talk
from trivet_cuda.collectives.watch import Watch
from trivet_cuda.collectives.words import DIVISIBLE, FAR, GAVE_UP, LOST, STOP

_FOREVER: Final = 1 << 62
_KEPT: Final = 4096
"""Launches that are remembered; more sizes than that begin anew."""


class Ready(NamedTuple):
    """A launch, its grid and what it is given behind the tensors and the channel."""

    launch: Callable[..., None]
    grid: int
    numbers: tuple[int, ...]


class Channels:
    """What the kernels of a group work with: memory, counters, and the host's word.

    Args:
        group: the group.
        store: through which its ranks meet first.
        room: where the memory comes from; None is torch.
        shape: threads by operation, words and capability; the same on every rank.

    Raises:
        CommUnsupported: on all ranks alike; says whose GPU or torch does not fit.
        CommTimeout: a rank did not come.
    """

    def __init__(
        self,
        group: Group,
        store: Store,
        room: Callable[[Group, Store, Talk], Room] = TorchRoom,
        shape: Callable[[str, int, int], plan.Shape] = plan.shape,
    ) -> None:
        self.group, self.shape = group, shape
        self._cuda = group.device.type == "cuda"
        self.capability = _capability(group.device)
        talk = Talk(group, store)
        talk.alike({"capability": self.capability, "torch": torch.__version__, **_sizes(shape)})
        self.room = room(group, store, talk)
        size = group.size
        self.slot = plan.slot(size)
        words = plan.words_of(size)
        self._staged: Piece | None = self.room.take(4 * words, 0xFF)
        flags = self.room.take(4 * plan.flags_of(size), 0)
        self._flags: Piece | None = flags
        talk.say(self._count)
        patience = min(_FOREVER, int(group.timeout * 1e9))
        self._staging = self._channel(self._staged, patience)
        self._meeting = self._channel(flags, patience)
        self._streams = Streams(group.device) if self._cuda else None
        self.memory: list[tuple[int, int, Piece]] = []
        self.made: dict[Any, Ready] = {}
        others = {r: m.pid for r, m in enumerate(group.members) if r != group.rank}
        self._watch = Watch(others, partial(_lost, self.said, self.verdict))
        weakref.finalize(self, self._watch.close)  # a group that nobody closes

    def _count(self) -> dict[str, Any]:
        """Calls are counted on the device, and failures told on the host."""
        device = self.group.device
        self.turns = torch.zeros(2 * plan.CHANNELS, dtype=torch.int32, device=device)
        self.verdict = torch.zeros(16, dtype=torch.int32, pin_memory=self._cuda)
        self.said = (ctypes.c_int32 * 16).from_address(self.verdict.data_ptr())
        self._settle()
        return {}

    def _channel(self, piece: Piece, patience: int) -> tuple[Any, ...]:
        far, rank = distances(piece.addresses, self.group.rank, 4), self.group.rank
        return (piece.own.view(torch.int32), self.turns, self.verdict, *far, rank, patience)

    def begin(self, *, staged: bool = True) -> tuple[Any, ...]:
        """What every kernel is given behind its tensors, after a look whether one gave up.

        Raises:
            CommError: one did.
        """
        if self.said[GAVE_UP] or self.said[STOP]:
            raise failure(self.group, self.said)
        if self._streams is not None:
            self._streams.follow()
        return self._staging if staged else self._meeting

    def ready(self, key: Any, make: Callable[..., Ready], *arguments: Any) -> Ready:
        """The launch for calls of one kind."""
        if len(self.made) >= _KEPT:
            self.made.clear()
        made = self.made[key] = make(*arguments)
        return made

    def launch_of(
        self, kernel: Kernel, dtypes: Mapping[str, torch.dtype], shape: plan.Shape,
        constants: Mapping[str, Any], divisible: Mapping[str, int],
    ) -> Callable[..., None]:  # fmt: skip
        """A variant for this group."""
        return kernel.launch(
            self.group.device, dtypes,
            {"OVERLAP": shape.overlap and self._cuda, "WORLD": self.group.size,
             "CHANNELS": plan.CHANNELS, "BLOCK": shape.block, **constants},
            divisible={**DIVISIBLE, **divisible}, **shape.options(),
        )  # fmt: skip

    # --- memory and life ---------------------------------------------------------------------

    def symmetric(self, nbytes: int) -> Sequence[Tensor]:
        """Memory of every rank, by rank, which kernels of each address."""
        piece = self.room.take(nbytes, 0)
        base = piece.own.data_ptr()
        self.memory.append((base, base + nbytes, piece))
        return piece.peers

    def release(self, memory: Sequence[Tensor]) -> None:
        """Give back what ``symmetric`` returned; it is unmapped with the last view of it."""
        for index, (_, _, piece) in enumerate(self.memory):
            if piece.peers is memory:
                self._settle()
                del self.memory[index]  # its address may come back with other distances
                self.made = {k: v for k, v in self.made.items() if k[0] != "place"}
                return

    def abort(self) -> None:
        """Tell the kernels that wait to stop; from any thread."""
        self.said[STOP] = 1

    def close(self) -> None:
        """Give everything back; a kernel that still waits for another rank is stopped."""
        if self._staged is not None:
            self._watch.close()
            self.said[STOP] = 1
            self._settle()
            self._staged = self._flags = None
            self._staging = self._meeting = ()
            self.memory.clear()
            self.made.clear()
            self.room.close()

    def _settle(self) -> None:
        """Wait until no kernel of this process can touch what is given back."""
        if self._cuda:
            torch.cuda.synchronize(self.group.device)


def distances(addresses: Sequence[int], rank: int, unit: int) -> tuple[int, ...]:
    """How far behind this rank's memory that of each next rank lies; 0 where there is none."""
    size = len(addresses)
    far = [(addresses[(rank + s) % size] - addresses[rank]) // unit for s in range(1, size)]
    return (*far, *[0] * (len(FAR) + 1 - size))


def _lost(said: Any, memory: Tensor, rank: int) -> None:
    """The process of a rank has ended: whoever waits for it stops; called by a thread."""
    del memory  # in which ``said`` lies
    said[LOST] = rank + 1
    said[STOP] = 1


def _capability(device: torch.device) -> int:
    if device.type == "cpu":
        return 90
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def _sizes(shape: Callable[[str, int, int], plan.Shape]) -> dict[str, Any]:
    """What decides the choices below, in words that ranks compare."""
    tried = [(name, str(shape(name, 1 << power, 90)))
             for name in ("one_shot", "two_shot", "gather", "in_place")
             for power in range(0, 24, 3)]  # fmt: skip
    return {"threads": "; ".join(f"{name} {text}" for name, text in tried)}
