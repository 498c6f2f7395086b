"""A right vendor, slow and small: everything goes through the group's store."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from trivet.contracts import between, dtype, one_of
from trivet.contracts.collectives import Group, Message, Store, Work, provides
from trivet.errors import CommAborted, CommTimeout, GroupMismatch, PeerLost

MOST: Final = 8192
"""Bytes of the largest call."""

PAUSE: Final = 0.0005

DOMAIN: Final = [
    dtype("x", "float32", "bfloat16", "int32", "int64"), one_of("reduction", "sum", "max"),
    between("nbytes", 0, MOST),
]  # fmt: skip
SIZED: Final = [between("nbytes", 0, MOST)]


class Through:
    """The vendor; variants override a method.

    Args:
        group: the group.
        store: its part of the store.
    """

    def __init__(self, group: Group, store: Store) -> None:
        self.group = group
        self.store = store
        self.calls = 0
        self.sent: dict[tuple[int, int], int] = {}
        self.stopped = False

    def read(self, key: str, owner: int) -> bytes:
        """What another rank wrote, as soon as it has.

        Raises:
            CommAborted: ``abort`` was called meanwhile.
            PeerLost: the other process is gone.
            CommTimeout: it did not come in time.
        """
        until = time.monotonic() + self.group.timeout
        while not self.store.check([key]):
            if self.stopped:
                raise CommAborted("aborted")
            if not self.lives(owner):
                raise PeerLost(f"rank {owner} is gone", ranks=(owner,))
            if time.monotonic() > until:
                raise CommTimeout(f"rank {owner} did not come", ranks=(owner,))
            time.sleep(PAUSE)
        return bytes.fromhex(self.store.get(key).decode().partition(":")[2])

    def lives(self, owner: int) -> bool:
        """Whether the process of a rank is there."""
        try:
            os.kill(self.group.members[owner].pid, 0)
        except ProcessLookupError:
            return False
        return True

    def everybody(self, what: str, payload: bytes) -> list[bytes]:
        """What every rank brings to a call.

        Raises:
            GroupMismatch: they are not the same call.
        """
        self.calls += 1
        self.store.set(f"{self.calls}/{self.group.rank}", f"{what}:{payload.hex()}")
        found = []
        for rank in range(self.group.size):
            key = f"{self.calls}/{rank}"
            found.append(self.read(key, rank))
            other = self.store.get(key).decode().partition(":")[0]
            if other != what:
                raise GroupMismatch(f"rank {rank} calls {other}, this one {what}", ranks=(rank,))
        return found

    def rows(self, what: str, x: Tensor) -> list[Tensor]:
        """The tensors of all ranks."""
        raw = bytes(x.view(torch.uint8).numpy().tobytes())
        found = self.everybody(f"{what} {x.dtype} {len(x)}", raw)
        return [_tensor(one, x.dtype) for one in found]

    def combined(self, rows: Sequence[Tensor], reduction: str) -> Tensor:
        """The reduction of all ranks' tensors, in order of rank."""
        total = rows[0].to(_wide(rows[0].dtype))
        for row in rows[1:]:
            other = row.to(total.dtype)
            total = total + other if reduction == "sum" else torch.maximum(total, other)
        return total.to(rows[0].dtype)

    @provides("all_reduce", determinism=["order"], domain=DOMAIN, compares=True)
    def all_reduce(self, out: Tensor, inp: Tensor, reduction: str) -> None:
        """Everybody reduces everything."""
        out.copy_(self.combined(self.rows(f"all_reduce {reduction}", inp), reduction))

    @provides("reduce_scatter", determinism=["order"], domain=DOMAIN)
    def reduce_scatter(self, out: Tensor, inp: Tensor, reduction: str) -> None:
        """The same, of which each rank takes its part."""
        whole = self.combined(self.rows(f"reduce_scatter {reduction}", inp), reduction)
        n = len(out)
        out.copy_(whole[self.group.rank * n : (self.group.rank + 1) * n])

    @provides("all_gather", domain=SIZED)
    def all_gather(self, out: Tensor, inp: Tensor) -> Work | None:
        """One after the other."""
        out.copy_(torch.cat(self.rows("all_gather", inp)))
        return None

    @provides("broadcast", domain=SIZED)
    def broadcast(self, x: Tensor, root: int) -> Work | None:
        """The root writes, the others read."""
        mine = x if self.group.rank == root else x[:0]
        raw = bytes(mine.numpy().tobytes())
        x.copy_(_tensor(self.everybody(f"broadcast {root} {len(x)}", raw)[root], x.dtype))
        return None

    @provides("batch")
    def batch(self, messages: Sequence[Message]) -> Work:
        """Messages of a pair are numbered; what is to come is read when it is waited for."""
        me = self.group.rank
        for m in messages:
            if m.sends:
                key = self._number(me, m.peer)
                self.store.set(key, f":{bytes(m.x.numpy().tobytes()).hex()}")
        return Reading(self, [(m, self._number(m.peer, me)) for m in messages if not m.sends])

    @provides("barrier")
    def barrier(self) -> None:
        """Everybody says that it is there."""
        self.everybody("barrier", b"")

    def _number(self, source: int, to: int) -> str:
        pair = (source, to)
        self.sent[pair] = self.sent.get(pair, 0) + 1
        return f"{source}>{to}/{self.sent[pair]}"

    def abort(self) -> None:
        """Ends every wait of this rank."""
        self.stopped = True


class Reading(Work):
    """Messages that are read when they are waited for.

    Args:
        vendor: who reads.
        messages: what is to come, each with its key.
    """

    def __init__(self, vendor: Through, messages: Sequence[tuple[Message, str]]) -> None:
        self._vendor = vendor
        self._left = list(messages)

    def wait(self, timeout: float | None = None) -> None:
        """Read what is left."""
        del timeout
        while self._left:
            message, key = self._left.pop(0)
            raw = self._vendor.read(key, message.peer)
            message.x.copy_(_tensor(raw, message.x.dtype))

    def is_completed(self) -> bool:
        """True when everything is read, or could be."""
        return all(self._vendor.store.check([key]) for _, key in self._left)


def _wide(of: torch.dtype) -> torch.dtype:
    return torch.promote_types(of, torch.float32) if of.is_floating_point else of


def _tensor(raw: bytes, of: torch.dtype) -> Tensor:
    if not raw:
        return torch.empty(0, dtype=of)
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(of)
