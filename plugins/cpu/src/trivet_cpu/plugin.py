"""The hooks of the CPU plugin; the entry point names this module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trivet.contracts import DeviceInfo
from trivet_cpu._library import library
from trivet_cpu.machine import this_machine


def trivet_probe() -> bool | str:
    """The CPU is always here."""
    return True


def trivet_devices() -> Sequence[DeviceInfo]:
    """One device: the machine that runs this process."""
    return [this_machine()]


def trivet_implementations(device: DeviceInfo) -> Sequence[Callable[..., Any]]:
    """The kernels where they were built, then oneDNN, then torch."""
    del device
    from trivet_cpu import linear, selection

    found: list[Callable[..., Any]] = []
    if not library().reason:
        from trivet_cpu import (
            activation,
            attention,
            kv_cache,
            norm,
            qk_norm,
            rotary,
            rotary_kv_cache,
        )

        found += [
            norm.rms_norm,
            norm.rms_norm_,
            norm.rms_norm_out,
            norm.fused_add_rms_norm,
            norm.fused_add_rms_norm_,
            norm.fused_add_rms_norm_out,
            qk_norm.qk_rms_norm,
            qk_norm.qk_rms_norm_,
            activation.silu_and_mul,
            activation.silu_and_mul_out,
            rotary.rotary_embedding,
            rotary.rotary_embedding_,
            kv_cache.kv_cache_write,
            rotary_kv_cache.rotary_kv_cache_write,
            attention.paged_attention,
            attention.paged_attention_out,
        ]
    return [
        *found,
        *linear.measured(),
        linear.linear_packed,
        linear.linear,
        selection.embedding,
        selection.sample_token,
    ]


def trivet_defaults(device: DeviceInfo) -> Mapping[str, tuple[object, str]]:
    """What an engine should use here unless it knows better."""
    fast = "amx_bf16" in device.features
    return {
        "block_size": (16, "keys are read in runs of 64, which 16 divides; little is left unused"),
        "layout": ("NHD", "a token's keys lie together, so that writing them is one copy"),
        "dtype": (
            "float32",
            "exact on every machine"
            + ("; bfloat16 is faster here, its products have instructions" if fast else ""),
        ),
    }
