"""A tuned kernel in Triton, which tests interpret; imported only where Triton is installed."""

from __future__ import annotations

from math import inf
from pathlib import Path

import torch
import triton
import triton.language as tl

from trivet.kernels.triton import Kernel, Tuned


@triton.jit
def double(x, y, WIDTH: tl.constexpr, BLOCK: tl.constexpr, STRIDE: tl.constexpr):
    row = tl.program_id(0)
    for start in tl.static_range(0, WIDTH, STRIDE):
        i = start + tl.arange(0, BLOCK)
        tl.store(y + row * WIDTH + i, 2 * tl.load(x + row * WIDTH + i, i < WIDTH), i < WIDTH)


KERNEL = Kernel(double, x="*fp32", y="*fp32")


def trial(key, rows, config, device):
    x, y = torch.randn(rows, key["width"], device=device), torch.full((rows, key["width"]), -1.0)
    launch = KERNEL.launch(device, {}, {"WIDTH": key["width"], **config})

    def call():
        launch(rows, 1, 1, x, y)
        return y

    return call, 2 * x.numel() * 4


TUNED = Tuned(
    "double",
    Path("nowhere"),
    # the third leaves every other piece as it was
    space=lambda key, rows: [{"BLOCK": b, "STRIDE": s} for b, s in ((8, 8), (16, 16), (4, 8))],
    default=lambda key: ((inf, {"BLOCK": 4, "STRIDE": 4}),),
    trial=trial,
)
