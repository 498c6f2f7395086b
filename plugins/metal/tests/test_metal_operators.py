"""Operators on the emulator against core's references: every dtype and form, ragged sizes.

The kit asks much more of them; ``.ci/run`` has it do so.
"""

from __future__ import annotations

import pytest
import torch

from trivet.catalogue import operators
from trivet_metal import operators as package
from trivet_metal import plugin

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
NEAR = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
OPERATORS = operators()
GUARD = 64

pytestmark = pytest.mark.usefixtures("emulator")


def function(name):
    """The implementation of a form, by the target that it was marked with."""
    for module in plugin.modules(package):
        for made in plugin.offered(module):
            if any(claim.target == f"{name}@1" for claim in made.__trivet__):
                return made
    raise AssertionError(name)


def lying(t):
    """The same numbers as rows of a wider tensor, at an offset, with NaN around and between."""
    inner = t.shape[1:].numel()
    wide = torch.full((GUARD + t.shape[0] * (inner + 7) + GUARD,), torch.nan, dtype=t.dtype)
    strides = (inner + 7, *t.stride()[1:])
    view = torch.as_strided(wide, t.shape, strides, GUARD)
    view.copy_(t)
    return view, wide


def guarded(view, wide):
    """Whether what lies around a view is still NaN."""
    left = wide.clone()
    torch.as_strided(left, view.shape, view.stride(), view.storage_offset()).fill_(torch.nan)
    return bool(left.isnan().all())


def close(got, wanted):
    got, wanted = ([t] if isinstance(t, torch.Tensor) else list(t) for t in (got, wanted))
    for a, b in zip(got, wanted, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        torch.testing.assert_close(a, b, rtol=NEAR[a.dtype], atol=NEAR[a.dtype])


def rand(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("hidden", [1, 31, 33, 1023, 1025])
def test_norms_of_ragged_rows_that_lie_apart(dtype, hidden):
    x, residual, weight = rand(3, hidden, dtype=dtype), rand(3, hidden, dtype=dtype), rand(hidden)
    scalars = (1e-5, 1.0, True, min(hidden, 5))
    view, wide = lying(x)
    out, around = lying(torch.full_like(x, torch.nan))
    close(function("rms_norm")(view, weight, *scalars), OPERATORS["rms_norm"].reference(
        x, weight, *scalars))  # fmt: skip
    function("rms_norm_out")(view, weight.to(dtype), out=out)
    close(out, OPERATORS["rms_norm"].reference(x, weight.to(dtype)))
    assert guarded(out, around)
    total, kept = lying(residual)
    function("fused_add_rms_norm_")(view, total, weight, *scalars)
    close((view, total), OPERATORS["fused_add_rms_norm"].reference(x, residual, weight, *scalars))
    assert guarded(view, wide)
    assert guarded(total, kept)
    close(function("layer_norm")(x, weight, None), OPERATORS["layer_norm"].reference(x, weight))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_heads_of_one_projection_are_normalised_and_rotated_in_place(dtype):
    wide = rand(5, 4 * 20 + 2 * 20 + 7, dtype=dtype)
    before = wide.clone()
    q, k = (
        torch.as_strided(t, (5, n, 20), (wide.shape[1], 20, 1), at)
        for t in (wide,) for n, at in ((4, 0), (2, 80))
    )  # fmt: skip
    weights = rand(20, dtype=dtype), rand(20, dtype=dtype) + 1
    wanted = OPERATORS["qk_rms_norm"].reference(q.clone(), k.clone(), *weights)
    function("qk_rms_norm_")(q, k, *weights)
    close((q, k), wanted)
    angle = rand(5, 5)
    for pairing in ("neox", "interleaved"):
        wanted = OPERATORS["rotary_embedding"].reference(
            q.clone(), k.clone(), angle.cos(), angle.sin(), pairing
        )
        function("rotary_embedding_")(q, k, angle.cos(), angle.sin(), pairing)
        close((q, k), wanted)
    assert torch.equal(wide[:, 120:], before[:, 120:])
    only = function("rotary_embedding")(q, None, angle.cos(), angle.sin())
    close(only, OPERATORS["rotary_embedding"].reference(q, None, angle.cos(), angle.sin()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_activations_and_gates(dtype):
    x = rand(3, 66, dtype=dtype) * 4
    view, _ = lying(x)
    for name, scalars in (("silu", ()), ("gelu", ("none",)), ("gelu", ("tanh",))):
        close(function(name)(view, *scalars), OPERATORS[name].reference(x, *scalars))
        gate = f"{name}_and_mul"
        close(function(gate)(view, *scalars), OPERATORS[gate].reference(x, *scalars))
    function("silu_")(view)
    close(view, OPERATORS["silu"].reference(x))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cache", [torch.float16, None], ids=["half", "same"])
def test_writes_into_caches_skip_what_is_in_no_slot(dtype, cache):
    q, k, v = (rand(4, n, 12, dtype=dtype) for n in (4, 2, 2))
    slots = torch.tensor([7, -1, 2, 3])
    caches = [torch.zeros(3, 4, 2, 12, dtype=cache or dtype) for _ in range(2)]
    wanted = [c.clone() for c in caches]
    function("kv_cache_write")(k, v, *caches, slots)
    OPERATORS["kv_cache_write"].reference(k, v, *wanted, slots)
    assert all(torch.equal(a, b) for a, b in zip(caches, wanted, strict=True))
    angle, turned = rand(4, 4), q.clone()
    given = (angle.cos(), angle.sin())
    function("rotary_kv_cache_write")(q, k, v, *given, *caches, slots, "interleaved")
    OPERATORS["rotary_kv_cache_write"].reference(
        turned, k, v, *given, *wanted, slots, "interleaved"
    )
    close((q, *caches), (turned, *wanted))
    untouched = [c.clone() for c in caches]
    function("kv_cache_write")(k, v, *caches, torch.full((4,), 12))  # behind the cache
    assert all(torch.equal(a, b) for a, b in zip(caches, untouched, strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_embedding_reads_rows_and_gives_nan_for_what_is_none(dtype):
    table, ids = rand(5, 33, dtype=dtype), torch.tensor([[4, 0], [5, -1]])
    found = function("embedding")(ids, table)
    assert torch.equal(found[0], table[ids[0]])
    assert bool(found[1].isnan().all())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_tokens_launch_nothing(dtype):
    none = torch.empty(0, 8, dtype=dtype)
    assert function("rms_norm")(none, torch.ones(8)).shape == (0, 8)
    assert function("silu_and_mul")(none).shape == (0, 4)
    heads = torch.empty(0, 2, 4, dtype=dtype)
    angle = torch.empty(0, 2)
    assert function("rotary_embedding")(heads, heads, angle, angle)[1].shape == (0, 2, 4)
    assert function("linear")(none, torch.ones(3, 8, dtype=dtype)).shape == (0, 3)


def test_equal_calls_are_equal_in_any_order_of_threads():
    x, weight = rand(3, 1025, dtype=torch.float16), rand(1025)
    results = [function("rms_norm")(x, weight) for _ in range(3)]  # three seeds, in turn
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
