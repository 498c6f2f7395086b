"""Numerics modes of torch that change results: facts of every plan and lock."""

from __future__ import annotations

import torch


def modes() -> dict[str, object]:
    """The modes of this moment as plain values; what is not stated is inherited."""
    mkldnn = torch.backends.mkldnn
    stated = [
        getattr(place, "fp32_precision", "none")
        for place in (getattr(mkldnn, "matmul", None), mkldnn, torch.backends)
    ]
    return {
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "onednn_enabled": mkldnn.enabled,
        "onednn_matmul_fp32": next((s for s in stated if s != "none"), "ieee"),
    }
