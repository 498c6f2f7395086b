"""Buffers that a check holds: each has a pattern of its own, and is judged when it comes."""

from __future__ import annotations

import contextlib
import ctypes
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import torch

from trivet_conformance.memory.judged import Wrong, asked
from trivet_conformance.subject.leg import Leg

TAG: Final = "conformance"
_PERIOD: Final = 251  # no power of two: what is moved by a page or a word is not the same


class Held:
    """Buffers of one allocator, straight from it: no front of core is between.

    Left without an error, it looks at the contents once more and gives everything back.

    Args:
        leg: the memory under test.
        seed: decides the order in which buffers are given back.
    """

    def __init__(self, leg: Leg, seed: int = 0) -> None:
        self.allocator = leg.allocator
        self.traits = leg.allocator.traits()
        self.random = random.Random(seed)  # noqa: S311 - an order, no secret
        self._live: dict[int, tuple[torch.Tensor, int, bool]] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._live))

    def tensor(self, key: int) -> torch.Tensor:
        """The buffer as it came."""
        return self._live[key][0]

    def take(self, nbytes: int) -> int:
        """One more buffer, judged, with its pattern in it.

        Raises:
            OutOfMemoryError: there is no room.
            Wrong: what came is no such buffer.
        """
        raw = asked(self.allocator.allocate, nbytes, tag=TAG)
        if problem := self.problem(raw, nbytes):
            raise Wrong(problem)
        self._number += 1
        if self.traits.zeroed and bool(raw.any()):
            msg = f"a new buffer of {nbytes} bytes is not all zeros, though the traits say zeroed"
            raise Wrong(msg)
        self._live[self._number] = raw, self._number, True
        raw.copy_(pattern(nbytes, self._number))
        return self._number

    def problem(self, raw: object, nbytes: int) -> str:
        """What is wrong with something that came for a size; empty where nothing is."""
        if not isinstance(raw, torch.Tensor):
            return f"allocate({nbytes}) returns {type(raw).__name__}, no tensor"
        if raw.dtype != torch.uint8 or tuple(raw.shape) != (nbytes,) or not raw.is_contiguous():
            shape = f"{raw.dtype} {list(raw.shape)}"
            return f"allocate({nbytes}) returns {shape}, not contiguous uint8 [{nbytes}]"
        if raw.device.type != self.traits.device.type:
            return f"a buffer lies on {raw.device}, the traits say {self.traits.device}"
        start = raw.data_ptr()
        if self.traits.start_of(raw) % self.traits.alignment:
            return f"a buffer of {nbytes} bytes lies at {start:#x}, not at a multiple of " + str(
                self.traits.alignment
            )
        own = nbytes if self.traits.addressed else 1
        for other, _, _ in self._live.values():
            # handles are of whole buffers: two of them are equal, or do not meet
            begin = other.data_ptr()
            end = begin + (other.numel() if self.traits.addressed else 1)
            if raw is other or (start < end and begin < start + own):
                return (
                    f"a buffer of {nbytes} bytes at {start:#x} overlaps a live one of "
                    f"{other.numel()} bytes at {begin:#x}"
                )
        return ""

    def lost(self, key: int) -> None:
        """From now on a buffer has no contents: it is suspended."""
        raw, number, _ = self._live[key]
        self._live[key] = raw, number, False

    def write(self, key: int) -> None:
        """Writes another pattern into all of a buffer."""
        self._number += 1
        raw = self._live[key][0]
        raw.copy_(pattern(raw.numel(), self._number))
        self._live[key] = raw, self._number, True

    def verify(self, key: int | None = None) -> None:
        """Looks at the contents of one buffer, or of all.

        Raises:
            Wrong: they are not what was written.
        """
        for one in self if key is None else [key]:
            raw, number, known = self._live[one]
            if known and not torch.equal(raw.cpu(), pattern(raw.numel(), number)):
                msg = f"a live buffer of {raw.numel()} bytes has not what was written into it"
                raise Wrong(msg)

    def give(self, key: int) -> None:
        """Looks at the contents of a buffer and gives it back.

        Raises:
            Wrong: they are not what was written, or it is not taken back.
        """
        self.verify(key)
        raw, _, _ = self._live.pop(key)
        asked(self.allocator.deallocate, raw)

    def give_all(self) -> None:
        """Gives everything back, in a random order."""
        keys = list(self)
        self.random.shuffle(keys)
        for key in keys:
            self.give(key)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.give_all()
        else:
            self.drop_all()

    def drop_all(self) -> None:
        """Gives everything back; what that breaks further is not told: the first problem is."""
        for key in self:
            with contextlib.suppress(Exception):
                self.allocator.deallocate(self._live.pop(key)[0])


def pattern(nbytes: int, number: int) -> torch.Tensor:
    """Bytes that no other number has at the same place, on the host."""
    start = number * 7 % _PERIOD
    one = torch.arange(start, start + _PERIOD, dtype=torch.int16).remainder_(_PERIOD) + 1
    return one.to(torch.uint8).repeat(-(-nbytes // _PERIOD) or 1)[:nbytes]


def seen_by_host(raw: torch.Tensor) -> bytes:
    """What the processor reads at the address of a tensor."""
    return ctypes.string_at(raw.data_ptr(), raw.numel())


def resident_bytes() -> int | None:
    """Memory of this process that is really there; None where the system does not say."""
    path = Path("/proc/self/statm")
    if not sys.platform.startswith("linux") or not path.exists():
        return None
    import resource

    return int(path.read_text(encoding="ascii").split()[1]) * resource.getpagesize()
