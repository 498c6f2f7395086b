"""What ranks tell each other on the host: orders with a step's tensors, and texts.

A message is numbers in a tensor: how many, which order, the shape of each part, then the parts.
The first block has a fixed size, so that whoever waits for it knows how much to expect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Final

import torch

from llm.inputs import Inputs
from trivet.collectives import DeviceGroup

BLOCK: Final = 512
"""Numbers in the first block of a message; most steps fit it."""

PATIENCE: Final = 1e9
"""Seconds that a rank waits for its next order; nobody knows when the next request comes."""

_LONGS: Final = {"ids", "positions", "slots", "rows"}
_SHAPE = [field.name for field in fields(Inputs)]


class Channel:
    """Messages over a group of the ranks' hosts.

    Args:
        group: That group.
        orders: What the first rank may say; both ends number them alike.
    """

    def __init__(self, group: DeviceGroup, orders: Sequence[str]) -> None:
        self.group, self._orders = group, list(orders)
        self._forgotten: list[int] = []

    def forget(self, number: int) -> None:
        """Notes, from any thread, that something with a number is not needed any more."""
        self._forgotten.append(number)

    def tell_all(self, order: str, said: Inputs | Sequence[torch.Tensor] = ()) -> None:
        """Tells every other rank an order with what belongs to it."""
        while self._forgotten:
            self.tell_all("forget", [torch.tensor([self._forgotten.pop()])])
        body = _packed(self._orders.index(order), said)
        first = body.new_zeros(BLOCK)
        first[: len(body)].copy_(body[:BLOCK])
        blocks = [first] if len(body) <= BLOCK else [first, body[BLOCK:]]
        peers = [rank for rank in range(self.group.size) if rank != self.group.rank]
        for work in [self.group.start.send(b, peer) for b in blocks for peer in peers]:
            work.wait()

    def hear(self) -> tuple[str, list[torch.Tensor]]:
        """The next order of the first rank, and its parts."""
        first = torch.empty(BLOCK, dtype=torch.int64)
        self.group.start.recv_(first, 0).wait(PATIENCE)
        count, number, several = first[:3].tolist()
        body = first
        if count > BLOCK:
            rest = self.group.recv(torch.empty(count - BLOCK, dtype=torch.int64), 0)
            body = torch.cat([first, rest])
        sizes = body[3 : 3 + 2 * several].view(several, 2).tolist()
        parts, low = [], 3 + 2 * several
        for rows, columns in sizes:
            numbers = body[low : low + rows * max(1, columns)]
            parts.append(numbers.view(rows, columns) if columns else numbers)
            low += len(numbers)
        return self._orders[number], parts

    def say(self, text: str) -> None:
        """Sends a text to the first rank, which waits for it."""
        raw = torch.frombuffer(bytearray(text.encode()) or bytearray(1), dtype=torch.uint8)
        self.group.send(torch.tensor([len(raw)]), 0)
        self.group.send(raw, 0)

    def listen(self) -> list[str]:
        """The text of every other rank, in order."""
        texts = []
        for rank in range(1, self.group.size):
            (count,) = self.group.recv(torch.empty(1, dtype=torch.int64), rank).tolist()
            raw = self.group.recv(torch.empty(count, dtype=torch.uint8), rank)
            texts.append(bytes(raw.tolist()).strip(b"\0").decode())
        return texts


def _packed(number: int, said: Inputs | Sequence[torch.Tensor]) -> torch.Tensor:
    parts = said
    if isinstance(said, Inputs):
        values = [getattr(said, name) for name in _SHAPE]
        parts = [v if isinstance(v, torch.Tensor) else torch.tensor([v]) for v in values]
    assert not isinstance(parts, Inputs)  # noqa: S101  (taken apart above)
    sizes = [n for p in parts for n in (len(p), p.shape[1] if p.dim() == 2 else 0)]
    numbers = [p.reshape(-1).to(torch.int64) for p in parts]
    count = 3 + len(sizes) + sum(map(len, numbers))
    return torch.cat([torch.tensor([count, number, len(parts), *sizes]), *numbers])


def inputs(parts: Sequence[torch.Tensor]) -> Inputs:
    """A step as it was laid out on the first rank."""
    given = dict(zip(_SHAPE, parts, strict=True))
    most = [int(given.pop(name)) for name in ("max_query", "max_length")]
    tensors = {n: t if n in _LONGS else t.to(torch.int32) for n, t in given.items()}
    return Inputs(**tensors, max_query=most[0], max_length=most[1])
