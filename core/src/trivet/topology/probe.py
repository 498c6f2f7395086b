"""Probes: bytes are really copied between two devices, both ways, and compared.

Drivers claim direct access that a machine then answers with wrong bytes, so that nothing less
than comparing shows it. The patterns differ from pair to pair and from direction to direction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from statistics import median
from typing import Final, Protocol

import torch

from trivet.contracts.topology import PeerCopier
from trivet.topology.merge import Part, Probe
from trivet.topology.verdict import Verdict

BYTES: Final = (1, 4097, 1 << 20)
"""Sizes that are compared: one byte, one over a page, and many pages."""

TIMED_BYTES: Final = 256 << 20
REPEATS: Final = 9


class Through(Protocol):
    """What a probe copies through."""

    def read(self, out: torch.Tensor, inp: torch.Tensor) -> None:
        """The device of ``out`` loads ``inp``."""

    def write(self, out: torch.Tensor, inp: torch.Tensor) -> None:
        """The device of ``inp`` stores it into ``out``."""


class TorchCopies:
    """Copies of torch, which may go through the host."""

    def read(self, out: torch.Tensor, inp: torch.Tensor) -> None:
        """Copy and wait."""
        out.copy_(inp)
        _finish(out.device)
        _finish(inp.device)

    write = read


def probe(
    parts: Iterable[Part],
    verdict: Verdict,
    *,
    timed_bytes: int = TIMED_BYTES,
    repeats: int = REPEATS,
    allocate: Callable[..., torch.Tensor] = torch.empty,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Probe]:
    """Probe every ordered pair of devices of which direct access is claimed.

    Args:
        parts: of the plugins.
        verdict: what is claimed.
        timed_bytes: size of the copies that are timed; 0 times none.
        repeats: how often; the median counts.
        allocate: makes tensors, as ``torch.empty``.
        clock: seconds.
    """
    for part in parts:
        if part.topology is None:
            continue
        through: Through = TorchCopies()
        if isinstance(part.topology, PeerCopier):
            through = part.topology
        for i, reader in enumerate(part.devices):
            for j, owner in enumerate(part.devices):
                names = (part.names[i], part.names[j])
                if i != j and verdict.reaches(*names):
                    pair = _Pair(through, reader, owner, 1 + i * len(part.devices) + j, allocate)
                    yield _judge(pair, names, timed_bytes, repeats, clock)


def _judge(
    pair: _Pair, names: tuple[str, str], nbytes: int, repeats: int, clock: Callable[[], float]
) -> Probe:
    reader, owner = names
    try:
        for size in BYTES:
            if wrong := pair.wrong(size):
                return Probe(reader, owner, right=False, reason=wrong)
        rate = pair.rate(nbytes, repeats, clock) if nbytes else None
    except torch.OutOfMemoryError as error:  # says nothing of the link
        return Probe(reader, owner, right=None, reason=f"no memory for it: {_first_line(error)}")
    except Exception as error:  # noqa: BLE001 - of a driver or a vendor: it is the finding
        why = f"a copy raises {type(error).__name__}: {_first_line(error)}"
        return Probe(reader, owner, right=False, reason=why)
    return Probe(reader, owner, right=True, bytes_per_second=rate)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]


class _Pair:
    """One device that reads and writes the memory of another."""

    def __init__(
        self,
        through: Through,
        reader: torch.device,
        owner: torch.device,
        seed: int,
        allocate: Callable[..., torch.Tensor],
    ) -> None:
        self.through, self.reader, self.owner, self.seed = through, reader, owner, seed
        self.allocate = allocate

    def wrong(self, size: int) -> str:
        """What is wrong with copies of so many bytes; empty where nothing is."""
        sent = _pattern(size, self.seed)
        for pattern in (sent, sent ^ 255):  # what lay there before is never what is expected
            mine = self._filled(self.reader, pattern ^ 85)
            theirs = self._filled(self.owner, pattern)
            self.through.read(mine, theirs)
            if differ := _differ(mine, pattern):
                return f"{differ} of {size} bytes are wrong that it read"
            back = pattern ^ 170
            mine = self._filled(self.reader, back)
            self.through.write(theirs, mine)
            if differ := _differ(theirs, back):
                return f"{differ} of {size} bytes are wrong that it wrote"
            if _differ(mine, back):
                return f"a copy of {size} bytes changed its source"
        return ""

    def rate(self, nbytes: int, repeats: int, clock: Callable[[], float]) -> float | None:
        """Bytes a second of reads, the median."""
        mine = self.allocate(nbytes, dtype=torch.uint8, device=self.reader)
        theirs = self.allocate(nbytes, dtype=torch.uint8, device=self.owner)
        seconds = []
        for number in range(max(1, repeats) + 2):
            start = clock()
            self.through.read(mine, theirs)
            if number >= 2:  # the first ones map memory and wake links
                seconds.append(clock() - start)
        return nbytes / median(seconds) if median(seconds) > 0 else None

    def _filled(self, device: torch.device, pattern: torch.Tensor) -> torch.Tensor:
        found = self.allocate(len(pattern), dtype=torch.uint8, device=device)
        found.copy_(pattern)
        _finish(device)
        return found


def _pattern(size: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)


def _differ(found: torch.Tensor, wanted: torch.Tensor) -> int:
    return int((found.to("cpu") != wanted).sum())


def _finish(device: torch.device) -> None:
    """Wait for everything that a device was given."""
    here = torch.accelerator.current_accelerator()
    if here is not None and here.type == device.type:
        torch.accelerator.synchronize(device)
