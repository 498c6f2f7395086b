"""Kernels of an invented vendor, for tests of everything above the contracts.

Each computes with the operator's reference, so that results are right and tests can look at
which function ran, under which domain, and in which form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from trivet.binding.binder import Binder
from trivet.catalogue import operators
from trivet.contracts import (
    DeviceInfo,
    between,
    contiguous,
    divisible,
    dtype,
    equal,
    implements,
    one_of,
    rank,
    rows,
)
from trivet.contracts.implementation import claims_of
from trivet.devices import Device
from trivet.plugins.metadata import candidates
from trivet.plugins.offer import Offer
from trivet.plugins.resolve import Resolved
from trivet.plugins.verification import verify
from trivet.selection.choose import Row

OPS = operators()
GEMMA_LIKE = {"weight_in_float32": True}


@implements(
    "rms_norm@1",
    name="vec",
    graph_safe=True,
    deterministic=True,
    domain=[
        dtype("x", "bfloat16", "float32"),
        equal("weight.dtype", "x.dtype"),
        divisible("hidden", 8),
        rows("x", 8),
        one_of("weight_offset", 0.0),
        one_of("weight_in_float32", True),
    ],
)
def norm_vec(x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0):
    return OPS["rms_norm"].reference(
        x, weight, eps, weight_offset, weight_in_float32, variance_size
    )


@implements("rms_norm@1", name="small", batch_invariant=True, domain=[between("tokens", 1, 16)])
def norm_small(x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0):
    return OPS["rms_norm"].reference(
        x, weight, eps, weight_offset, weight_in_float32, variance_size
    )


@implements("rms_norm@1", name="big", graph_safe=True, domain=[between("tokens", 65, None)])
def norm_big(x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0):
    return OPS["rms_norm"].reference(
        x, weight, eps, weight_offset, weight_in_float32, variance_size
    )


@implements("rms_norm_@1", name="over", domain=[rank("x", 2)])
def norm_over(x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0):
    x.copy_(
        OPS["rms_norm"].reference(x, weight, eps, weight_offset, weight_in_float32, variance_size)
    )


@implements("rms_norm_out@1", name="into", domain=[contiguous("x"), contiguous("out")])
def norm_into(
    x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0, *, out
):
    out.copy_(
        OPS["rms_norm"].reference(x, weight, eps, weight_offset, weight_in_float32, variance_size)
    )


@implements("fused_add_rms_norm_@1", name="over", domain=[contiguous("x"), contiguous("residual")])
def fused_over(
    x, residual, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0
):
    y, total = OPS["fused_add_rms_norm"].reference(
        x, residual, weight, eps, weight_offset, weight_in_float32
    )
    x.copy_(y)
    residual.copy_(total)


@implements("silu_and_mul_out@1", name="into", domain=[divisible("inter", 4)])
def silu_into(x, *, out):
    out.copy_(OPS["silu_and_mul"].reference(x))


@implements("rotary_embedding_@1", name="over", domain=[rows("q"), rows("k")])
def rotary_over(q, k, cos, sin, pairing="neox"):
    results = OPS["rotary_embedding"].reference(q, k, cos, sin, pairing)
    for tensor, result in zip([t for t in (q, k) if t is not None], results, strict=True):
        tensor.copy_(result)


@implements("rotary_embedding_out@1", name="into")
def rotary_into(q, k, cos, sin, pairing="neox", *, out):
    for tensor, result in zip(
        out, OPS["rotary_embedding"].reference(q, k, cos, sin, pairing), strict=True
    ):
        tensor.copy_(result)


@implements("kv_cache_write@1", name="scatter", domain=[one_of("layout", "NHD")])
def scatter(k, v, k_cache, v_cache, slots, layout="NHD"):
    OPS["kv_cache_write"].reference(k, v, k_cache, v_cache, slots, layout)


def steps_of(facts, block_table, query_start, seq_lens, max_query_len, max_seq_len, out=None):
    made = out if out is not None else [torch.zeros(2, dtype=torch.int64)]
    made[0].copy_(torch.tensor([max_query_len, facts["heads"]]))
    return made


@implements(
    "paged_attention@1",
    name="decode",
    prepare_step=steps_of,
    domain=[between("max_query_len", 1, 1), rows("q")],
)
def attend_one(
    q,
    k_cache,
    v_cache,
    block_table,
    query_start,
    seq_lens,
    max_query_len,
    max_seq_len,
    scale,
    schedule,
    window=0,
    soft_cap=0.0,
    layout="NHD",
):
    return OPS["paged_attention"].reference(
        q,
        k_cache,
        v_cache,
        block_table,
        query_start,
        seq_lens,
        max_query_len,
        max_seq_len,
        scale,
        schedule,
        window,
        soft_cap,
        layout,
    )


def turn(facts, weight, bias):
    return [weight.t().contiguous()]


def turn_back(packed):
    return packed[0].t().contiguous()


def halve(facts, weight, bias):
    return [part.clone() for part in weight.chunk(2, -1)]


@implements(
    "linear_packed@1", name="turned", prepare=turn, unpack=turn_back, domain=[contiguous("x")]
)
def linear_turned(x, packed, out_features, bias=None):
    result = x @ packed[0]
    return result if bias is None else result + bias


@implements(
    "linear_packed@1",
    name="halves",
    prepare=halve,
    domain=[between("tokens", 1, 8), divisible("in_features", 2)],
)
def linear_halves(x, packed, out_features, bias=None):
    left, right = x.chunk(2, -1)
    result = left @ packed[0].t() + right @ packed[1].t()
    return result if bias is None else result + bias


@implements("sample_token@1", name="top", deterministic=True, batch_invariant=True)
def sample_top(
    logits, temperature=None, top_k=None, top_p=None, min_p=None, seed=None, position=None
):
    rest = (temperature, top_k, top_p, min_p, seed, position)
    return OPS["sample_token"].reference(logits, *rest)


ALL = (
    norm_vec,
    norm_small,
    norm_big,
    norm_over,
    norm_into,
    fused_over,
    silu_into,
    rotary_over,
    rotary_into,
    scatter,
    attend_one,
    linear_turned,
    linear_halves,
    sample_top,
)


def verified(function: Callable[..., Any], known: Mapping[str, Any] = OPS) -> Any:
    """The one implementation that a stand-in claims."""
    (claim,) = claims_of(function)
    return verify(claim, "acme", known)


def make_device(
    *functions: Callable[..., Any],
    known: Mapping[str, Any] = OPS,
    unmet: tuple[tuple[str, Row], ...] = (),
    **kwargs: Any,
) -> Device:
    """A device on which these functions may run, in this order."""
    return device_of(*(verified(f, known) for f in functions), known=known, unmet=unmet, **kwargs)


def device_of(
    *implementations: Any,
    known: Mapping[str, Any] = OPS,
    unmet: tuple[tuple[str, Row], ...] = (),
    **kwargs: Any,
) -> Device:
    """A device on which these implementations may run, in this order."""
    info = DeviceInfo("acme", name="stand-in", arch=("acme-1",))
    plugins = {c.name: c.home for c in candidates()}
    binder = Binder(info, known, implementations, unmet=unmet, plugins=plugins, **kwargs)
    nothing = MappingProxyType({})
    offer = Offer(known, implementations, (), (), nothing, nothing, nothing)
    return Device(Resolved(info, "acme", "a test asked for it"), offer, binder)
