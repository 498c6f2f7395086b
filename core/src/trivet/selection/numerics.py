"""Numerics modes of torch that change results: facts of every plan and lock."""

from __future__ import annotations

import torch


def modes() -> dict[str, object]:
    """The modes of this moment as plain values."""
    matmul = getattr(torch.backends.mkldnn, "matmul", None)
    return {
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "onednn_enabled": torch.backends.mkldnn.enabled,
        "onednn_matmul_fp32": getattr(matmul, "fp32_precision", "unknown"),
    }
