"""Kernels whose compiled code is known; processes of the tests import this module."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from trivet.kernels.triton import Kernel


@triton.jit
def scale(x, y, factor, ROW: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * ROW + tl.arange(0, ROW)
    tl.store(y + i, tl.load(x + i) * factor)


@triton.jit
def product(a, b, c, depth, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :], tl.arange(0, K)
    total = tl.zeros([M, N], tl.float32)
    for at in tl.range(0, depth, K, num_stages=3):
        left = tl.load(a + m * depth + at + k[None, :])
        right = tl.load(b + (at + k)[:, None] * N + n)
        total = tl.dot(left, right, total)
    tl.store(c + m * N + n, total.to(tl.bfloat16))


SCALE = Kernel(scale, x="*T", y="*T", factor="fp32")
PRODUCT = Kernel(product, a="*bf16", b="*bf16", c="*bf16", depth="i32")


def variants(arch):
    bf16, wide = {"T": torch.bfloat16}, {"x": 16, "y": 16}
    yield "scale_wide", SCALE.variant(bf16, {"ROW": 2048}, divisible=wide, num_warps=4)
    yield "scale_narrow", SCALE.variant(bf16, {"ROW": 2048}, num_warps=4)
    tile, aligned = {"M": 128, "N": 128, "K": 64}, {"a": 16, "b": 16, "c": 16, "depth": 64}
    yield "product", PRODUCT.variant({}, tile, divisible=aligned, num_warps=8)
    if arch == "sm80":  # the instructions of the others do not compile with so few registers
        yield "crowded", PRODUCT.variant({}, tile, divisible=aligned, num_warps=8, maxnreg=64)
