"""Wrong migrators and exporters: each is a right one with one thing changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import torch

from trivet.contracts.memory import Copy, Traits
from trivet.errors import MemoryFault
from trivet_conformance.selftest.memory.moving import KIND, Mover, Moving, Shared, copied
from trivet_conformance.selftest.memory.pool import Bare, Pool


class no_copy(Mover):
    """Says that it is done, and moved nothing."""

    def post(self, copies: Sequence[Copy]) -> Moving:
        self.check(copies)
        return Moving(copies, lambda _: None)


class offsets_of_the_first_run(Mover):
    """Every run goes where the first one goes."""

    def post(self, copies: Sequence[Copy]) -> Moving:
        self.check(copies)
        first = copies[0] if copies else None
        own = [replace(c, target_offset=first.target_offset) for c in copies if first]
        return Moving(own, copied)


class source_lost_when_refused(Mover):
    """Empties the sources before it finds that a run is wrong."""

    def check(self, copies: Sequence[Copy]) -> None:
        try:
            super().check(copies)
        except MemoryFault:
            copies[0].source.zero_()
            raise


class half_done_when_refused(Mover):
    """Copies run by run until one is wrong."""

    def check(self, copies: Sequence[Copy]) -> None:
        for one in copies:
            super().check([one])
            copied(one)


class source_kept(Mover):
    """Remembers every batch."""

    def __init__(self) -> None:
        self.seen: list[Copy] = []

    def post(self, copies: Sequence[Copy]) -> Moving:
        self.seen += copies
        return super().post(copies)


class _Late(Moving):
    """Done as soon as it is asked; the copy itself follows."""

    def __init__(self, copies: Sequence[Copy]) -> None:
        super().__init__((), copied)
        self.left = list(copies)

    def release(self) -> None:
        """The copy itself."""
        for one in self.left:
            copied(one)


class done_before_it_is(Mover):
    """Copies at release."""

    def post(self, copies: Sequence[Copy]) -> Moving:
        self.check(copies)
        return _Late(copies)


class _Unstopped(Moving):
    """Goes on after release."""

    def release(self) -> None:
        """Nothing is given up."""


class writes_after_release(Mover):
    """Copies slowly, whatever is released meanwhile."""

    def post(self, copies: Sequence[Copy]) -> Moving:
        self.check(copies)
        return _Unstopped(copies, _slowly)


def _slowly(one: Copy) -> None:
    time.sleep(0.01)
    copied(one)


class clipped_outside(Mover):
    """A run that ends outside is cut instead of refused."""

    def post(self, copies: Sequence[Copy]) -> Moving:
        return Moving([_clipped(one) for one in copies], copied)


def _clipped(one: Copy) -> Copy:
    source, target = max(one.source_offset, 0), max(one.target_offset, 0)
    room = min(one.source.numel() - source, one.target.numel() - target)
    nbytes = max(min(one.nbytes, room), 0)
    return replace(one, source_offset=source, target_offset=target, nbytes=nbytes)


class exports_a_copy(Shared):
    """What another process opens is what was there when it was exported."""

    def export(self, buffer: torch.Tensor, kind: str) -> bytes:
        made = self.allocate(buffer.numel(), tag="copy")
        made.copy_(buffer)
        return super().export(made, kind)


class opens_anything(Shared):
    """Bytes that are no export open as an empty buffer."""

    def open(self, exported: bytes, kind: str) -> torch.Tensor:
        try:
            return super().open(exported, kind)
        except MemoryFault:
            return torch.empty(0, dtype=torch.uint8)


class another_error_for_no_export(Shared):
    """Raises what it meets while it looks at bytes that are no export."""

    def open(self, exported: bytes, kind: str) -> torch.Tensor:
        if kind == KIND and not exported.startswith(b"variant"):
            msg = "cannot parse"
            raise ValueError(msg)
        return super().open(exported, kind)


class promises_without_an_exporter(Bare):
    """Its traits name a way of export, and nothing exports."""

    def __init__(self) -> None:
        super().__init__(Pool())

    def traits(self) -> Traits:
        return replace(super().traits(), exportable=frozenset({KIND}))


BROKEN: Final[Mapping[str, tuple[Callable[[], Any], ...]]] = MappingProxyType(
    {
        "memory.migrate": (
            no_copy, offsets_of_the_first_run, source_lost_when_refused, half_done_when_refused,
            source_kept, done_before_it_is, writes_after_release, clipped_outside,
        ),
        "memory.export": (
            exports_a_copy, opens_anything, another_error_for_no_export,
            promises_without_an_exporter,
        ),
    }
)  # fmt: skip
"""Family -> the variants that it must kill."""
