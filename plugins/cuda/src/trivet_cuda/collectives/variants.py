"""Typical variants of the kernels between GPUs, for compilers without one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from trivet.kernels.triton import Kernel
from trivet.kernels.triton.kernel import Variant
from trivet_cuda.collectives import plan
from trivet_cuda.collectives.fused_norm import FUSED_NORM
from trivet_cuda.collectives.gather import GATHER
from trivet_cuda.collectives.in_place import IN_PLACE
from trivet_cuda.collectives.one_shot import ONE_SHOT
from trivet_cuda.collectives.two_shot import TWO_SHOT
from trivet_cuda.collectives.words import DIVISIBLE

_HALF = {"T": torch.bfloat16}


def variants(arch: str) -> Iterator[tuple[str, Variant]]:
    """Named variants: two ranks, aligned tensors of bfloat16 unless the name says otherwise."""
    capability = int(arch.removeprefix("sm"))

    def one(
        kernel: Kernel, way: str, words: int, dtypes: Mapping[str, torch.dtype], world: int = 2,
        wide: tuple[str, ...] = ("x", "out"), whole: tuple[str, ...] = ("words",), **more: Any,
    ) -> Variant:  # fmt: skip
        shape = plan.shape(way, words, capability)
        constants = {"OVERLAP": shape.overlap, "WORLD": world, "CHANNELS": plan.CHANNELS,
                     "BLOCK": shape.block, "ALIGNED": True, **more}  # fmt: skip
        divisible = {**DIVISIBLE, **dict.fromkeys(wide, 16), **dict.fromkeys(whole, 4)}
        if kernel is IN_PLACE:
            divisible |= {f"x{step}": 8 for step in range(1, 8)}
        return kernel.variant(dtypes, constants, divisible=divisible, **shape.options())

    slot: dict[int, dict[str, Any]] = {size: {"SLOT": plan.slot(size)} for size in (2, 8)}
    pair: dict[str, Any] = {"PAIRED": True, **slot[2]}
    yield "one_shot_64KiB", one(ONE_SHOT, "one_shot", 1 << 14, _HALF, SINGLE=True, **pair)
    yield "one_shot_1MiB", one(ONE_SHOT, "one_shot", 1 << 18, _HALF, SINGLE=True, **pair)
    yield "one_shot_4MiB", one(ONE_SHOT, "one_shot", 1 << 20, _HALF, SINGLE=False, **pair)
    yield (
        "one_shot_fp32",
        one(
            ONE_SHOT,
            "one_shot",
            1 << 14,
            {"T": torch.float32},
            SINGLE=True,
            PAIRED=False,
            **slot[2],
        ),
    )
    yield "one_shot_odd", one(
        ONE_SHOT, "one_shot", 4097, _HALF, wide=(), whole=(), SINGLE=True, PAIRED=False,
        **slot[2] | {"ALIGNED": False},
    )  # fmt: skip
    both: dict[str, Any] = {"whole": ("words", "part"), "PAIRED": True}
    yield (
        "two_shot_8_ranks",
        one(TWO_SHOT, "two_shot", 1 << 15, _HALF, 8, GATHER=True, **both, **slot[8]),
    )
    yield (
        "reduce_scatter",
        one(TWO_SHOT, "two_shot", 1 << 15, _HALF, GATHER=False, **both, **slot[2]),
    )
    single: dict[str, Any] = both | {"PAIRED": False}
    fp32 = {"T": torch.float32}
    made = one(TWO_SHOT, "two_shot", 1 << 15, fp32, GATHER=True, **single, **slot[2])
    yield "all_reduce_two_shot_fp32", made
    yield (
        "in_place_fp16",
        one(IN_PLACE, "in_place", 4097, {"T": torch.float16}, 4, wide=(), FLAGS=0, **both),
    )
    yield (
        "all_gather_bytes",
        one(GATHER, "gather", 4097, {}, wide=(), WIDE=True, **slot[2] | {"ALIGNED": False}),
    )
    yield "all_gather", one(GATHER, "gather", 1 << 14, {}, WIDE=True, **slot[2])
    yield "in_place", one(IN_PLACE, "in_place", 1 << 22, _HALF, wide=("x",), FLAGS=0, **both)
    yield from _norms(capability)


def _norms(capability: int) -> Iterator[tuple[str, Variant]]:
    """Rows of 4096 words."""
    fp32, bf16 = torch.float32, torch.bfloat16
    shape = plan.row_shape(4096, capability)
    row = {"OVERLAP": shape.overlap, "WORLD": 2, "CHANNELS": plan.CHANNELS, "BLOCK": shape.block,
           "SLOT": plan.slot(2), "WORDS": 4096, "ALIGNED": True}  # fmt: skip
    wide = dict.fromkeys(("x", "residual", "weight", "out"), 16)
    for name, add, kind, weights in (
        ("fused_norm", True, bf16, bf16), ("fused_norm_first", False, bf16, bf16),
        ("fused_norm_wide_weights", True, bf16, fp32), ("fused_norm_fp32", True, fp32, fp32),
    ):  # fmt: skip
        constants = row | {"ADD": add, "PAIRED": kind is bf16}
        made = FUSED_NORM.variant(
            {"T": kind, "W": weights}, constants, divisible=DIVISIBLE | wide, **shape.options()
        )
        yield name, made
