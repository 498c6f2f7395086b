"""Variants with a fault each, and sound ones beside; processes of the tests import this module."""

from __future__ import annotations

import torch

from trivet_triton.kernels import attention_host, attention_prefill, quantise

BF16, FNUZ, OCP = torch.bfloat16, torch.float8_e4m3fnuz, torch.float8_e4m3fn


def variants(arch):
    del arch
    yield "sound", quantise.variant(BF16, FNUZ, 64, aligned=True)
    yield "wavefront_of_32", quantise.variant(BF16, FNUZ, 32, aligned=True)
    yield "wrong_format", quantise.variant(BF16, OCP, 64, aligned=True)
    shape = attention_host.Shape(0, BF16, 8, 4, 128, 16)
    config = {"BLOCK_M": 128, "BLOCK_N": 128, "num_warps": 8, "num_stages": 2}
    yield "too_much_shared", attention_prefill.tiles_variant(shape, config)
