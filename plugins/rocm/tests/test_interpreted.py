"""The kernels whose constants are AMD's own, interpreted, beside the operators' references.

The kernels' indices and masks are tested with other constants in the tests of the CUDA package;
here those of wavefronts of 64 and of RDNA's small tiles run.
"""

from __future__ import annotations

import pytest
import torch

import required

required.triton()

from trivet.catalogue import operators
from trivet.contracts import Execution
from trivet.kernels.triton.tuning.trials import forget
from trivet_rocm import interpreted, target
from trivet_triton import hardware
from trivet_triton.constants import Constants
from trivet_triton.kernels import (
    activation,
    attention,
    dense_attention,
    norm,
    norm_invariant,
    qk_norm,
    sampling,
)
from trivet_triton.kernels.rows import VECTOR

OPS = operators()
BF16, F32 = torch.bfloat16, torch.float32


@pytest.fixture(params=["gfx942", "gfx1100"])
def arch(request):
    """Constants of one architecture hold; nothing that was chosen before is kept."""
    assert target.described(request.param).lanes in {32, 64}
    forget("trivet_triton.kernels")
    with hardware.interpreted_as(request.param):
        yield request.param
    forget("trivet_triton.kernels")


def randn(*sizes, dtype=BF16, seed=1):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)).to(dtype)


def near(found, wanted):
    torch.testing.assert_close(found.double(), wanted.double(), rtol=2**-6, atol=2**-6)


@pytest.mark.parametrize(("head_dim", "dtype"), [(64, BF16), (144, BF16), (64, F32)])
@pytest.mark.parametrize("queries", [[1, 1], [5, 1]])
def test_paged_attention(arch, head_dim, dtype, queries):
    lens = torch.tensor([37, 20]).int()
    table = torch.randperm(8, generator=torch.Generator().manual_seed(2)).view(2, 4).int()
    k, v = (randn(8, 16, 1, head_dim, dtype=dtype, seed=s) for s in (3, 4))
    start = torch.tensor([0, *queries]).cumsum(0).int()
    q = randn(sum(queries), 3, head_dim, dtype=dtype)
    given = q, k, v, table, start, lens, max(queries), 37, head_dim**-0.5, []
    wanted = OPS["paged_attention"].reference(*given)
    near(attention.paged_attention(*given), wanted)
    if queries == [5, 1]:
        near(attention.paged_attention_invariant(*given), wanted)


def test_dense_attention_with_and_without_a_mask(arch):
    q, k, v = (randn(1, 19, heads, 64, seed=heads) for heads in (2, 1, 1))
    mask = torch.rand(1, 1, 19, 19) < 0.8
    mask[..., 0] = True
    for given in (None, mask):
        wanted = OPS["attention"].reference(q, k, v, given, 0.125)
        near(dense_attention.attention(q, k, v, given, 0.125), wanted)


def test_limits_of_sampling_with_the_blocks_of_wide_wavefronts(arch):
    logits = randn(2, 4500, dtype=F32)
    given = {
        "top_k": torch.tensor([40, 0]).int(), "top_p": torch.tensor([1.0, 0.7]),
        "min_p": torch.tensor([0.0, 0.001]), "temperature": torch.ones(2),
        "seed": torch.arange(2), "position": torch.arange(2),
    }  # fmt: skip
    wide = {n: v.double() if v.is_floating_point() else v for n, v in given.items()}
    scores = OPS["sample_token"].budget.scores(logits.double(), **wide)
    chosen = sampling.sample_token(logits, **given)
    own = scores.upper.gather(1, chosen.unsqueeze(1)).squeeze(1)
    assert (own >= scores.lower.amax(1)).all()


def test_norms_and_gates(arch):
    x, weight = randn(3, 136), randn(136, seed=2)
    near(norm.rms_norm(x, weight), OPS["rms_norm"].reference(x, weight))
    near(norm_invariant.rms_norm(x, weight), OPS["rms_norm"].reference(x, weight))
    near(activation.silu_and_mul(x), OPS["silu_and_mul"].reference(x))
    near(activation.silu(x), OPS["silu"].reference(x))
    q, k = randn(3, 4, 64), randn(3, 2, 64)
    found = qk_norm.qk_rms_norm(q, k, weight[:64], weight[:64])
    for mine, its in zip(
        found, OPS["qk_rms_norm"].reference(q, k, weight[:64], weight[:64]), strict=True
    ):
        near(mine, its)


@pytest.mark.parametrize("lanes", [32, 64])
@pytest.mark.parametrize("dim", [16, 64, 128, 256, 512, 2048])
@pytest.mark.parametrize("heads", [1, 3, 40])
def test_a_thread_has_a_whole_vector_of_a_head_on_any_width_of_warp(lanes, dim, heads):
    """Else the order of a head's sum would depend on how many tokens there are."""
    key = {"heads": heads, "head_dim": dim, "lanes": lanes}
    for _, made in qk_norm.default(key):
        elements = made["TOKENS"] * made["SPAN"] * made["BLOCK"]
        assert elements >= made["num_warps"] * lanes * VECTOR or dim > lanes * VECTOR


@pytest.mark.parametrize("name", target.TARGETS)
def test_no_program_has_more_threads_than_a_workgroup(name):
    lanes = hardware.architecture(name).lanes
    every = {n: c for m in (norm, attention, dense_attention, activation, qk_norm)
             for n, c in vars(m).items() if isinstance(c, Constants)}  # fmt: skip
    keys = {"hidden": 8192, "width": 14336, "heads": 32, "kv_heads": 8, "head_dim": 128,
            "group": 4, "page": 16, "mask": 0, "dtype": "bfloat16", "shared": 64}  # fmt: skip
    assert every
    for one in every.values():
        for config in (*(c for _, c in one.defaults(name, keys)), *one.candidates(name, keys, 64)):
            assert config["num_warps"] * lanes <= 1024, (one.name, config)


def test_the_interpreted_device_offers_every_operator_in_triton(monkeypatch):
    monkeypatch.setattr(hardware, "_interpreted", [hardware.INTERPRETED.name])
    (info,) = interpreted.trivet_devices()
    assert info.execution is Execution.INTERPRETED
    offered = {c.target.partition("@")[0] for f in interpreted.trivet_implementations(info)
               for c in f.__trivet__}  # fmt: skip
    assert hardware.arch_at(-1) == "gfx942"
    assert {"rms_norm", "paged_attention", "attention", "sample_token", "kv_cache_write",
            "rotary_embedding", "layer_norm", "penalize_logits"} <= offered  # fmt: skip
    hardware.arch_at.cache_clear()
