"""What the sampling kernels share: logits in an order of integers, and the noise of each token.

Integers have what floats lack here: one order for all values, a NaN first, and room beside them
for an id, so that the largest of many candidates with ties to the lowest id is one maximum.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl

LOWEST: Final = tl.constexpr(-(1 << 31))
"""Below the number of -inf: that of no token."""

NAN: Final = tl.constexpr((1 << 31) - 1)
_SIGN: Final = tl.constexpr((1 << 31) - 1)
_INF: Final = tl.constexpr(0x7F800000)

MOST_NOISE: Final = tl.constexpr(17.0)
"""No token's noise exceeds 16.64, that of the largest u, 1 - 2**-24."""

_M0: Final = tl.constexpr(0xD2511F53)
_M1: Final = tl.constexpr(0xCD9E8D57)
_W0: Final = tl.constexpr(0x9E3779B9)
_W1: Final = tl.constexpr(0xBB67AE85)


def low_bits(element: torch.dtype) -> int:
    """How many low bits of a float32 are 0 where it was one of a narrower dtype."""
    return {torch.bfloat16: 16, torch.float16: 13}.get(element, 0)


@triton.jit
def number_of(x: tl.tensor) -> Any:
    """Order-preserving int32 of float32; 0 and -0 are equal, each NaN is the largest."""
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)
    return tl.where(x == x, tl.where(bits < 0, bits ^ _SIGN, bits), NAN)  # noqa: PLR0124  # a NaN is not


@triton.jit
def value_of(number: tl.tensor) -> Any:
    """The float32 that has a number."""
    return tl.where(number < 0, number ^ _SIGN, number).to(tl.float32, bitcast=True)


@triton.jit
def is_finite(number: tl.tensor) -> Any:
    """Whether a number is that of a finite float32."""
    return (number < _INF) & (number > -_INF - 1)


@triton.jit
def with_id(number: tl.tensor, token: tl.tensor) -> Any:
    """Number and id in one int64: the largest is the largest number, then the lowest id."""
    return (number.to(tl.int64) << 32) | (token ^ NAN).to(tl.int64)


@triton.jit
def id_of(both: tl.tensor) -> Any:
    """The id beside a number."""
    return (both & NAN) ^ NAN


@triton.jit
def random_words(seed: tl.tensor, position: tl.tensor, block: tl.tensor) -> Any:
    """Philox4x32-10: four words for each block of four tokens, as core's ``philox`` defines."""
    x0 = block.to(tl.uint32)
    x1 = x0 & 0
    x2 = x1 + (position & 0xFFFFFFFF).to(tl.uint32)
    x3 = x1 + ((position >> 32) & 0xFFFFFFFF).to(tl.uint32)
    k0 = (seed & 0xFFFFFFFF).to(tl.uint32)
    k1 = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    m0, m1 = tl.full([1], _M0, tl.uint32), tl.full([1], _M1, tl.uint32)
    w0, w1 = tl.full([1], _W0, tl.uint32), tl.full([1], _W1, tl.uint32)
    k0, k1 = k0 + (w0 & 0), k1 + (w1 & 0)
    for _ in tl.static_range(10):
        high0, high1 = tl.umulhi(x0, x1 * 0 + m0), tl.umulhi(x2, x1 * 0 + m1)
        low0, low1 = x0 * m0, x2 * m1
        x0, x1, x2, x3 = high1 ^ x1 ^ k0, low1, high0 ^ x3 ^ k1, low0
        k0, k1 = k0 + w0, k1 + w1
    return x0, x1, x2, x3


@triton.jit
def noise_of(word: tl.tensor) -> Any:
    """Gumbel noise of a random word."""
    u = ((word >> 9).to(tl.int32).to(tl.float32) + 0.5) * 1.1920928955078125e-07
    return -tl.log(-tl.log(u))


@triton.jit
def noise_of_run(
    seed: tl.tensor, position: tl.tensor, block: tl.tensor, BLOCK: tl.constexpr
) -> Any:
    """Noise of ``BLOCK`` tokens that follow each other, from the block of four of the first."""
    i = block + tl.arange(0, BLOCK // 4)
    x0, x1, x2, x3 = random_words(seed, position, i)
    words = tl.join(tl.join(x0, x2), tl.join(x1, x3))
    return noise_of(tl.reshape(words, [BLOCK]))


@triton.jit
def noise_of_each(seed: tl.tensor, position: tl.tensor, token: tl.tensor) -> Any:
    """Noise of tokens in any order."""
    x0, x1, x2, x3 = random_words(seed, position, token // 4)
    odd = token % 2 == 1
    return noise_of(tl.where(token % 4 < 2, tl.where(odd, x1, x0), tl.where(odd, x3, x2)))
