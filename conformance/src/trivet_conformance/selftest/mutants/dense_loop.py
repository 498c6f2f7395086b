"""Attention over dense keys in a few lines, with the places where variants differ."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trivet_conformance.selftest.mutants.attention_loop import Softmax, softmax


@dataclass(frozen=True)
class Dense:
    """Dense attention.

    Args:
        from_start: whether positions are aligned at the start.
        window_shift: added to the window.
        interleaved: whether query heads are dealt out to the key heads in turn.
        unmasked_head: whether the last head sees past the mask.
        capped_last: whether a floating mask is added before the soft cap.
        softmax: how scores become weights.
    """

    from_start: bool = False
    window_shift: int = 0
    interleaved: bool = False
    unmasked_head: bool = False
    capped_last: bool = False
    softmax: Softmax = softmax

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        scale: float,
        causal: bool,
        window: int,
        soft_cap: float,
    ) -> Tensor:
        """The result of a call."""
        heads, kv_heads = q.shape[2], k.shape[2]
        own = torch.arange(heads)
        own = own % kv_heads if self.interleaved else own // (heads // kv_heads)
        turned, keys, values = (t.float().transpose(1, 2) for t in (q, k, v))
        scores = turned @ keys[:, own].mT * scale
        bias, hidden = self._masked(scores, mask)
        if self.capped_last:
            scores = scores + bias
        if soft_cap:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        if not self.capped_last:
            scores = scores + bias
        hidden = hidden | self._far(q.shape[1], k.shape[1], causal, window)
        mixed = self.softmax(scores, hidden) @ values[:, own]
        return mixed.transpose(1, 2).to(q.dtype).contiguous()

    def _masked(self, scores: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """What a mask adds, and what it hides."""
        bias, hidden = torch.zeros_like(scores), torch.zeros_like(scores, dtype=torch.bool)
        if mask is not None and mask.dtype.is_floating_point:
            bias = bias + mask.float()
            hidden = bias == -torch.inf
        elif mask is not None:
            hidden = hidden | ~mask
        if self.unmasked_head:
            bias[:, -1:], hidden[:, -1:] = 0.0, False
        return bias, hidden

    def _far(self, queries: int, keys: int, causal: bool, window: int) -> Tensor:
        first = 0 if self.from_start else keys - queries
        ahead = torch.arange(keys) - torch.arange(first, first + queries)[:, None]
        hidden = ahead > 0 if causal else torch.zeros_like(ahead, dtype=torch.bool)
        wide = window + self.window_shift
        return hidden | (ahead <= -wide) | (ahead >= wide) if window else hidden
