"""A plain loop over the sequences of a paged call, with the places where mutants go wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Softmax = Callable[[Tensor, Tensor], Tensor]


def softmax(scores: Tensor, hidden: Tensor) -> Tensor:
    """Weights of visible keys; rows that see none are zeros."""
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return weights.masked_fill(hidden.all(-1, keepdim=True), 0.0)


def in_base_two(scores: Tensor, hidden: Tensor) -> Tensor:
    """The same weights through powers of two, normalised by a multiplication."""
    scores = (scores * 1.4426950408889634).masked_fill(hidden, -torch.inf)
    top = torch.nn.functional.pad(scores, (0, 1), value=-torch.inf).amax(-1, keepdim=True)
    weights = torch.exp2(scores - top.masked_fill(top == -torch.inf, 0.0))
    total = weights.sum(-1, keepdim=True)
    return (weights * (1 / total)).masked_fill(hidden.all(-1, keepdim=True), 0.0)


@dataclass(frozen=True)
class Loop:
    """Attention, one sequence and head at a time.

    Args:
        window_shift: added to the window.
        interleaved: whether query heads are dealt out to the key heads in turn.
        capped: whether the soft cap is applied.
        causal_shift: how many later keys a query sees.
        softmax: how scores become weights.
        mix: how weights and values become a result.
    """

    window_shift: int = 0
    interleaved: bool = False
    capped: bool = True
    causal_shift: int = 0
    softmax: Softmax = softmax
    mix: Callable[[Tensor, Tensor], Tensor] = torch.matmul

    def __call__(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_table: Tensor,
        query_start: Tensor,
        seq_lens: Tensor,
        scale: float,
        window: int,
        soft_cap: float,
    ) -> Tensor:
        """The result for a batch."""
        out = torch.zeros_like(q, memory_format=torch.contiguous_format)
        rows, results = (t.reshape(-1, *q.shape[-2:]) for t in (q, out))
        size, kv_heads = k_cache.shape[1:3]
        for s, length in enumerate(seq_lens.tolist()):
            start, end = int(query_start[s]), int(query_start[s + 1])
            if start == end or not length:
                continue
            pages = block_table[s, : -(-length // size)].long()
            keys, values = (c[pages].flatten(0, 1)[:length] for c in (k_cache, v_cache))
            hidden = self._hidden(length, end - start, window)
            for head in range(q.shape[-2]):
                own = head % kv_heads if self.interleaved else head * kv_heads // q.shape[-2]
                scores = rows[start:end, head].float() @ keys[:, own].float().T * scale
                if soft_cap and self.capped:
                    scores = soft_cap * torch.tanh(scores / soft_cap)
                mixed = self.mix(self.softmax(scores, hidden), values[:, own].float())
                results[start:end, head] = mixed.to(q.dtype)
        return results.view(q.shape)

    def _hidden(self, length: int, queries: int, window: int) -> Tensor:
        own = torch.arange(length - queries, length)[:, None]
        key = torch.arange(length)[None]
        hidden = key > own + self.causal_shift
        return hidden | (key <= own - window - self.window_shift) if window else hidden
