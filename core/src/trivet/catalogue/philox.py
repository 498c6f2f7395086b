"""Random bits that a counter decides: Philox4x32-10 (Salmon et al. 2011, Random123)."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

ROUNDS: Final = 10
MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
WEYL: Final = (0x9E3779B9, 0xBB67AE85)
"""What the two words of the key grow by, round by round."""

_WORD: Final = 0xFFFFFFFF


def _product(a: Tensor, b: int) -> tuple[Tensor, Tensor]:
    """Upper and lower word of a product of two words; int64 holds no whole product."""
    low, high = a * (b & 0xFFFF), a * (b >> 16)
    middle = high + (low >> 16)
    return middle >> 16, ((middle & 0xFFFF) << 16) | (low & 0xFFFF)


def philox(counter: tuple[Tensor, ...], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Four random words for each counter.

    Args:
        counter: four words, int64 tensors of numbers in [0, 2**32) that broadcast.
        key: two words, likewise.
    """
    x0, x1, x2, x3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        high0, low0 = _product(x0, MULTIPLIERS[0])
        high1, low1 = _product(x2, MULTIPLIERS[1])
        x0, x1, x2, x3 = high1 ^ x1 ^ k0, low1, high0 ^ x3 ^ k1, low0
        k0, k1 = (k0 + WEYL[0]) & _WORD, (k1 + WEYL[1]) & _WORD
    return x0, x1, x2, x3


def words(value: Tensor) -> tuple[Tensor, Tensor]:
    """Lower and upper word of int64 numbers, as if they had no sign."""
    return value & _WORD, (value >> 32) & _WORD


def gumbel(seed: Tensor, position: Tensor, first: int, count: int, dtype: torch.dtype) -> Tensor:
    """Gumbel noise of the tokens ``first ... first + count - 1``, ``[seqs, count]``.

    A token's noise depends on seed, position and id alone: the bits are word ``id % 4`` of
    Philox4x32-10 at the counter ``(id // 4, 0, position low, position high)`` under the key
    ``(seed low, seed high)``; with ``u = ((bits >> 9) + 0.5) / 2**23`` it is
    ``-log(-log(u))``. ``u`` is exact in float32 and neither 0 nor 1.

    Args:
        seed: int64 ``[seqs]``.
        position: int64 ``[seqs]``.
        first: id of the first token.
        count: how many tokens.
        dtype: what the logarithms are computed in, float32 or float64.
    """
    start = first // 4
    blocks = torch.arange(start, (first + count + 3) // 4, device=seed.device)
    low, high = words(position.unsqueeze(-1))
    zero = torch.zeros_like(low)
    four = philox((blocks, zero, low, high), words(seed.unsqueeze(-1)))
    bits = torch.stack(four, -1).flatten(-2)
    bits = bits[:, first - 4 * start :][:, :count]
    u = ((bits >> 9).to(dtype) + 0.5) * 2.0**-23
    return -(-u.log()).log()
