"""The tensors that describe one step to the operators."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import Any

import torch

from llm.schedule import Piece
from trivet.memory import KvBlocks


@dataclass(frozen=True)
class Inputs:
    """The tensors of one step; ``max_query`` and ``max_length`` are bounds over its sequences.

    ``ids, positions, slots``: [tokens]; ``table``: [sequences, blocks];
    ``starts``: [sequences + 1]; ``lengths``: [sequences];
    ``rows``: [samples], the token after which a new one is sampled.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    table: torch.Tensor
    starts: torch.Tensor
    lengths: torch.Tensor
    rows: torch.Tensor
    max_query: int
    max_length: int

    def to(self, device: torch.device) -> Inputs:
        """The same on a device."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: Any = {n: v.to(device) for n, v in found.items() if isinstance(v, torch.Tensor)}
        return replace(self, **moved)


def lay_out(pieces: list[Piece], pool: KvBlocks, *, blocks: int | None = None) -> Inputs:
    """Lays the pieces of a step one after the other, on the host; ``blocks``: of the table."""

    def tensor(values: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype)

    sizes = [len(piece.ids) for piece in pieces]
    starts = [0, *accumulate(sizes)]
    lengths = [piece.start + size for piece, size in zip(pieces, sizes, strict=True)]
    slots = [pool.slots(p.request.blocks, p.start, n) for p, n in zip(pieces, sizes, strict=True)]
    ends = zip(pieces, starts[1:], strict=True)
    return Inputs(
        ids=tensor([i for piece in pieces for i in piece.ids], torch.int64),
        positions=tensor(
            [i for p in pieces for i in range(p.start, p.start + len(p.ids))], torch.int64
        ),
        slots=torch.cat(slots),
        table=pool.table([p.request.blocks for p in pieces], max_blocks=blocks),
        starts=tensor(starts, torch.int32),
        lengths=tensor(lengths, torch.int32),
        rows=tensor([end - 1 for piece, end in ends if piece.samples], torch.int64),
        max_query=max(sizes),
        max_length=max(lengths),
    )
