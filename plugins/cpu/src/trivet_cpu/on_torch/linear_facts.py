"""Which product of one weight is the fastest for how many rows: measured, by instruction set.

Time of torch's product over time of oneDNN's, one thread of a Xeon with AMX whose oneDNN and torch
were held to each instruction set; torch 2.13, oneDNN 3.12, weights from 576x576 to 4096x4096,
medians (``benchmarks/linear_rows.py`` measures them again on any machine):

=============================== ======== ======== ========= ========== ========
weight as packed                1 row    2 rows   4-8       16-64      128-512
=============================== ======== ======== ========= ========== ========
AVX-512: float32                0.7-0.9  0.7-0.9  1.0-1.6   1.0-1.3    0.9-1.1
AVX2: float32                   0.6-0.8  0.9-1.3  0.9-1.3   0.9-1.1    0.9-1.1
AMX: bfloat16                   1.2-2.1  1.2-2.6  1.3-2.4   1.3-1.9    1.0-1.4
AVX512_BF16: bfloat16           1.4      1.1-1.5  1.2-1.6   1.1-1.3    1.0-1.1
AVX512_BF16: widened to float32 0.7-0.8  0.9-1.3  0.8-1.0   0.9-1.3    1.2-1.5
AVX-512: widened                0.5-0.8  0.9-1.3  1.2-1.9   2.0-3.5    3.5-4.1
AVX2: widened                   0.5-0.7  0.7-1.0  0.9-1.7   2.2-4.8    5.0-6.0
=============================== ======== ======== ========= ========== ========

A float32 weight on a grid (``grid``) against the faster of both others: with AVX-512 1.9-2.9 times
as fast at one row, 1.6-2.7 at 4 and 8, 1.3-1.5 at 16, 1.0-1.2 at 24; with AVX2 1.8-2.5, 1.3-2.2,
0.97-1.2, 0.8-0.96; baseline 0.6-0.8 at one row.

An instruction set that nobody measured (aarch64, or x86-64 without AVX2) gets torch's product.
"""

from __future__ import annotations

import os
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

Rows = tuple[int, int | None]
"""From how many rows to how many (None: any)."""


@dataclass(frozen=True)
class Facts:
    """For which rows a pack of oneDNN is faster than torch's product of the weight as it came.

    Args:
        float32: a reordered float32 weight.
        bfloat16: a reordered bfloat16 weight; None where the processor cannot multiply it.
        grid: a float32 weight whose numbers lie on a grid; other weights take the faster product.
        widened: a bfloat16 weight reordered as float32; None where nothing is left for it.
    """

    float32: Rows | None = None
    grid: Rows | None = None
    bfloat16: Rows | None = None
    widened: Rows | None = None


MEASURED: Final = {
    "amx_bf16": Facts(float32=(4, 256), grid=(1, 16), bfloat16=(0, None)),
    "avx512_bf16": Facts(float32=(4, 256), grid=(1, 16), bfloat16=(0, 48), widened=(49, None)),
    "avx512f": Facts(float32=(4, 256), grid=(1, 16), widened=(4, None)),
    "avx2": Facts(float32=(4, 64), grid=(1, 12), widened=(4, None)),
}
"""By the widest instruction set that counts for products, widest first."""

_LIMITS: Final = {
    "AVX2": 3,
    "AVX2_VNNI": 3,
    "AVX2_VNNI_2": 3,
    "AVX512_CORE": 2,
    "AVX512_CORE_VNNI": 2,
    "AVX512_CORE_BF16": 1,
    "AVX10_1_512": 1,
    "AVX512_CORE_FP16": 1,
}
"""What oneDNN's own ``ONEDNN_MAX_CPU_ISA`` leaves: so many of the sets above do not count."""


def instruction_set(features: AbstractSet[str]) -> str:
    """The measured instruction set that products run on here; empty when there is none."""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
    skipped = len(MEASURED) if limit in {"SSE41", "AVX"} else _LIMITS.get(limit, 0)
    return next((name for name in list(MEASURED)[skipped:] if name in features), "")


def facts_for(features: AbstractSet[str]) -> Facts:
    """What was measured for a processor with these features."""
    return MEASURED.get(instruction_set(features), Facts())
