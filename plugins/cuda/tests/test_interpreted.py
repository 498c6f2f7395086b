"""The Triton kernels as a device whose word is interpreted, through the kit: a thrifty slice of it.

``make soak`` runs all families of the operators whose programs are few.
"""

from __future__ import annotations

import pytest
import torch

from trivet.contracts import Execution
from trivet.kernels import triton as interpreter
from trivet_conformance import from_functions, run
from trivet_conformance.result import BAD
from trivet_cuda import interpreted
from trivet_triton.kernels import best_candidate, norm_invariant
from trivet_triton.kernels.activation import silu, silu_and_mul

pytestmark = pytest.mark.skipif(
    interpreter.available() is not True, reason=str(interpreter.available())
)
QUICK = ("silu", "kv_cache_write")
MOST = (
    "rotary_kv_cache_write",
    "rms_norm",
    "layer_norm",
    "qk_rms_norm",
    "silu_and_mul",
    "gelu",
    "rotary_embedding",
    "attention",
)


def judged(op, families):
    (info,) = interpreted.trivet_devices()
    every = from_functions(interpreted.trivet_implementations(info), info.kind, info=info)
    results = list(run(every.only([op]), families=families, quick=True))
    assert {r.execution for r in results} == {"interpreted"}
    bad = [(r.id, r.finding) for r in results if r.finding.status in BAD]
    assert not bad, bad[:3]
    return {r.family for r in results if r.finding.status == "pass"}


def test_the_device_says_what_it_is_and_offers_what_is_written_in_triton():
    (info,) = interpreted.trivet_devices()
    assert info.execution is Execution.INTERPRETED
    assert interpreter.NOT_VERIFIED in info.notes
    offered = {f.__module__.split(".")[1] for f in interpreted.trivet_implementations(info)}
    assert offered == {"kernels"}
    assert interpreted.trivet_probe() is True


@pytest.mark.parametrize("op", QUICK)
def test_the_kit_passes_kernels_whose_programs_are_few(op):
    assert judged(op, ("alias",)) == {"alias"}


@pytest.mark.soak
@pytest.mark.parametrize("op", [*QUICK, *MOST])
def test_the_kit_passes_them_in_most_families(op):
    families = ("value", "meta", "alias", "layout", "special", "poison", "repeat", "metamorphic")
    assert judged(op, families) >= {"value", "meta", "alias", "layout", "poison", "repeat"}


@pytest.mark.parametrize("run_one", [silu, lambda x: silu_and_mul(torch.cat((x, x * 0 + 1), -1))])
def test_float32_has_no_bias_near_zero(run_one):
    x = torch.rand(4, 512) * 1e-3
    error = run_one(x).double() / (x.double() / (1 + (-x.double()).exp())) - 1
    assert error.mean().abs() < 1e-8


def test_a_norm_that_is_the_same_in_any_batch_is_so_in_results_off_its_alignment():
    x, weight = torch.randn(3, 64), torch.ones(64)
    made = norm_invariant.fused_add_rms_norm(x, x, weight)
    wide, places = torch.empty(3, 65), torch.empty(3 * 64 + 1)
    for out in (wide[:, :64], places[1:].view(3, 64), torch.empty(3, 72)[:, :64]):
        outs = [torch.empty_like(x), out]
        norm_invariant.fused_add_rms_norm_out(x, x, weight, out=outs)
        assert all(torch.equal(a, b) for a, b in zip(outs, made, strict=True))
    (claim,) = norm_invariant.rms_norm_out.__trivet__
    assert {"rows(out, 8)", "offset_aligned(out, 16)"} <= {str(t) for t in claim.domain}


def test_rows_of_logits_are_in_the_dim_of_a_grid_that_has_no_limit(monkeypatch):
    grids = []
    monkeypatch.setattr(
        best_candidate, "_launches", lambda *_: [lambda *given: grids.append(given[:3])] * 2
    )
    logits = torch.empty(1, 4096).expand(70_000, 4096)
    best_candidate.best(logits, 0, None, torch.empty(70_000, dtype=torch.int64), None)
    best_candidate.best(logits[:2], 0, None, torch.empty(2, dtype=torch.int64), None)
    assert [g for g in grids if g[1] > 1] == [(2, 2, 1)]
    assert grids[0][0] == 70_000
