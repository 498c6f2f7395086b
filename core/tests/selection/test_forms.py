from __future__ import annotations

import itertools

import pytest
import torch

from stand_ins import OPS, make_device, norm_into, norm_over, verified
from trivet.binding.example_calls import arguments
from trivet.contracts import contiguous, dtype, equal, implements, offset_aligned, rank, rows
from trivet.selection.derive import derive

FORMS = ("functional", "inplace", "out")


def functional_of(op):
    return op.reference


def inplace_of(op):
    def over(*values):
        results = op.reference(*values)
        results = [results] if isinstance(results, torch.Tensor) else list(results)
        named = dict(zip(op.signature.names(), values, strict=True))
        targets = [named[a] for a in op.inplace if named[a] is not None]
        for target, result in zip(targets, results, strict=True):
            target.copy_(result)

    return over


def out_of(op):
    def into(*values, out):
        results = op.reference(*values)
        results = [results] if isinstance(results, torch.Tensor) else list(results)
        for target, result in zip(
            [out] if isinstance(out, torch.Tensor) else out, results, strict=True
        ):
            target.copy_(result)

    return into


SUPPLIED = {"functional": functional_of, "inplace": inplace_of, "out": out_of}
COPIES = {
    ("functional", "inplace"): 1,
    ("functional", "out"): 1,
    ("inplace", "functional"): 1,
    ("inplace", "out"): 2,
    ("out", "functional"): 0,
    ("out", "inplace"): 1,
}


def example(op, **changed):
    rng = torch.Generator().manual_seed(5)
    made = arguments(op, op.cases.sizes[0], torch.bfloat16, rng)
    return made | changed


def as_list(result):
    return [result] if isinstance(result, torch.Tensor) else list(result)


def run(op, form, function, given):
    """The results of a call in any form, and the arguments as it left them."""
    given = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in given.items()}
    if form == "functional":
        return as_list(function(*given.values())), given
    if form == "inplace":
        assert function(*given.values()) is None
        return [given[a] for a in op.inplace if given[a] is not None], given
    fresh = [torch.full(s, 7, dtype=d) for s, d in op.result_meta(given)]
    out = fresh[0] if op.signature.packing == "one" else fresh
    assert function(*given.values(), out=out) is None
    return fresh, given


@pytest.mark.parametrize("name", ["rms_norm", "fused_add_rms_norm", "rotary_embedding"])
@pytest.mark.parametrize(("have", "want"), list(itertools.permutations(FORMS, 2)))
def test_every_form_is_derived_from_every_other(name, have, want):
    op = OPS[name]
    optional = [{}, {"k": None}] if name == "rotary_embedding" else [{}]
    supplied = SUPPLIED[have](op)
    derived = derive(op, have, want, supplied)
    assert derived.copies == COPIES[have, want] * len(op.outputs)
    for changed in optional:
        given = example(op, **changed)
        expected = as_list(op.reference(*given.values()))
        results, left = run(op, want, derived.function, given)
        assert [torch.equal(r, e) for r, e in zip(results, expected, strict=True)] == [True] * len(
            expected
        )
        kept = set(given) - (set(op.inplace) if want == "inplace" else set())
        for n in kept:
            same = torch.equal(given[n], left[n]) if isinstance(given[n], torch.Tensor) else True
            assert same, f"{n} was written"


@pytest.mark.parametrize(
    "name", ["silu_and_mul", "linear", "linear_packed", "embedding", "sample_token"]
)
def test_allocation_follows_the_declared_results(name):
    op = OPS[name]
    for want, have in (("functional", "out"), ("out", "functional")):
        derived = derive(op, have, want, SUPPLIED[have](op))
        for sizes in op.cases.sizes:
            given = arguments(op, sizes, torch.bfloat16, torch.Generator().manual_seed(1))
            (result,), _ = run(op, want, derived.function, given)
            ((shape, kind),) = op.result_meta(given)
            assert (tuple(result.shape), result.dtype) == (shape, kind)
            assert torch.equal(result, op.reference(*given.values()))
    assert derive(op, "functional", "inplace", op.reference) == f"{name} has no in-place form"


@pytest.mark.parametrize("have", ["inplace", "out"])
@pytest.mark.parametrize("name", ["rms_norm", "fused_add_rms_norm", "rotary_embedding"])
def test_derived_results_are_fresh_and_contiguous(name, have):
    op = OPS[name]
    given = example(op)
    for n in op.inplace:
        wide = torch.randn(*given[n].shape[:-1], 2 * given[n].shape[-1]).to(given[n].dtype)
        given[n] = wide[..., : given[n].shape[-1]]
    results = as_list(derive(op, have, "functional", SUPPLIED[have](op)).function(*given.values()))
    storages = {r.untyped_storage().data_ptr() for r in results}
    assert len(storages) == len(results)
    assert storages.isdisjoint(
        t.untyped_storage().data_ptr() for t in given.values() if isinstance(t, torch.Tensor)
    )
    assert all(r.is_contiguous() for r in results)


def test_equal_inputs_of_a_functional_call_are_two_inputs():
    op = OPS["fused_add_rms_norm"]
    x, weight = torch.randn(4, 8), torch.ones(8)
    y, total = derive(op, "inplace", "functional", inplace_of(op)).function(x, x, weight)
    expected = op.reference(x.clone(), x.clone(), weight)
    assert torch.equal(y, expected[0])
    assert torch.equal(total, expected[1])
    assert y.data_ptr() != total.data_ptr()


def test_derived_functions_are_interned_and_show_their_text():
    op, function = OPS["rms_norm"], norm_over
    one = derive(op, "inplace", "functional", function).function
    assert one is derive(op, "inplace", "functional", function).function
    assert one is not derive(op, "inplace", "out", function).function
    assert one.__trivet_source__ == (
        "def rms_norm(x, weight, eps=1e-06, weight_offset=0.0, weight_in_float32=False, "
        "variance_size=0):\n"
        "    x = x.clone(memory_format=_cf)\n"
        "    _f(x, weight, eps, weight_offset, weight_in_float32, variance_size)\n"
        "    return x\n"
    )


def test_an_operator_that_only_writes_has_no_other_form():
    op = OPS["kv_cache_write"]
    problem = "kv_cache_write has no functional form, it writes its arguments"
    assert derive(op, "inplace", "functional", op.reference) == problem
    assert derive(op, "inplace", "inplace", op.reference).function is op.reference


def test_copies_are_shown_by_explain():
    dev = make_device(norm_over, norm_into)
    rows_ = {r.provider: str(r) for r in dev.explain("rms_norm_")}
    assert "copies" not in rows_["acme/over"]
    assert "derived from the out form, 1 copies a call" in rows_["acme/into"]
    assert "derived from the functional form, 1 copies a call" in rows_["reference"]


@implements("silu_and_mul_out@1", name="strict_out", domain=[rows("out", 8), contiguous("out")])
def silu_rows(x, *, out):
    assert out.stride(0) % 8 == 0 or out.shape[0] < 2
    out.copy_(OPS["silu_and_mul"].reference(x))


@implements(
    "rms_norm_out@1",
    name="typed_out",
    domain=[
        dtype("out", "float32"),
        equal("out.dtype", "x.dtype"),
        rank("out", 2),
        offset_aligned("out", 16),
    ],
)
def norm_typed(
    x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0, *, out
):
    norm_into(x, weight, eps, weight_offset, weight_in_float32, out=out)


@implements("rms_norm_@1", name="strict_rows", domain=[rows("x", 8)])
def norm_rows(x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0):
    assert x.stride(0) % 8 == 0 or x.shape[0] < 2
    norm_over(x, weight, eps, weight_offset, weight_in_float32, variance_size)


def test_terms_on_out_are_kept_by_what_core_allocates():
    dev = make_device(silu_rows)
    assert dev.explain("silu_and_mul", {"inter": 16})[0].verdict == "yes"
    for facts in ({}, {"inter": 12}):
        row = dev.explain("silu_and_mul", facts)[0]
        assert (row.verdict, row.reason) == (
            "no",
            "rows(out, 8) is not certain of a result that core allocates",
        )
    assert dev.explain("silu_and_mul_out", {})[0].verdict == "guarded"


def test_terms_on_the_dtype_of_out_become_terms_on_what_it_is_like():
    dev = make_device(norm_typed)
    row = dev.explain("rms_norm", {})[0]
    assert row.reason == "dtype(x, float32) and rank(x, 2)"
    x, weight = torch.randn(3, 8), torch.ones(8)
    runs = [r.provider for r in dev.explain("rms_norm", arguments={"x": x, "weight": weight})]
    assert runs == ["acme/typed_out", "reference"]
    assert dev.explain("rms_norm", {"dtype": "float32", "x.rank": 2})[0].verdict == "yes"


def test_rows_of_a_contiguous_copy_need_a_width_that_is_a_multiple():
    dev = make_device(norm_rows)
    wide = torch.randn(4, 16)[:, :12]
    expected = OPS["rms_norm"].reference(wide, torch.ones(12))
    assert torch.equal(dev.ops.rms_norm(wide, torch.ones(12)), expected)
    assert "divisible(hidden, 8)" in str(dev.explain("rms_norm")[0])
    assert dev.explain("rms_norm", {"hidden": 12})[0].reason.startswith("core would pass a")
    dev.ops.rms_norm_(wide, torch.ones(12))
    assert torch.equal(wide, expected)
    assert verified(norm_rows).form == "inplace"
