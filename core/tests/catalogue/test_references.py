from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from stand_ins import OPS
from trivet.binding.checks import Watch, check_inputs
from trivet.binding.example_calls import arguments
from trivet.contracts import Cases, operator
from trivet.contracts.declaration import ACTIVATION
from trivet.errors import DeclarationError, DomainError
from trivet.plugins.verification import reference

CASES = [
    pytest.param(op, sizes, scalars, id=f"{name}-{i}-{j}")
    for name, op in OPS.items()
    for (i, sizes), (j, scalars) in itertools.product(
        enumerate(op.cases.sizes), enumerate(op.cases.scalars)
    )
]
FIRST = [pytest.param(op, id=name) for name, op in OPS.items()]

# Recorded when an operator is released: from then on it is stable. A new one is provisional.
SCHEMAS = {
    "attention": "(Tensor q, Tensor k, Tensor v, Tensor? mask, float scale, bool causal=False, "
    "SymInt window=0, float soft_cap=0.0) -> Tensor",
    "silu_and_mul": "(Tensor x) -> Tensor",
    "gelu_and_mul": '(Tensor x, str approximate="none") -> Tensor',
    "silu": "(Tensor x) -> Tensor",
    "gelu": '(Tensor x, str approximate="none") -> Tensor',
    "layer_norm": "(Tensor x, Tensor? weight=None, Tensor? bias=None, float eps=1e-05) -> Tensor",
    "paged_attention": "(Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, "
    "Tensor query_start, Tensor seq_lens, SymInt max_query_len, SymInt max_seq_len, float scale, "
    'Tensor[] schedule, SymInt window=0, float soft_cap=0.0, str layout="NHD") -> Tensor',
    "embedding": "(Tensor ids, Tensor weight) -> Tensor",
    "kv_cache_write": "(Tensor k, Tensor v, Tensor(a2!) k_cache, Tensor(a3!) v_cache, "
    'Tensor slots, str layout="NHD") -> ()',
    "linear": "(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor",
    "linear_packed": "(Tensor x, Tensor[] packed, SymInt out_features, Tensor? bias=None) "
    "-> Tensor",
    "rms_norm": "(Tensor x, Tensor weight, float eps=1e-06, "
    "float weight_offset=0.0, bool weight_in_float32=False, SymInt variance_size=0) -> Tensor",
    "fused_add_rms_norm": "(Tensor x, Tensor residual, Tensor weight, "
    "float eps=1e-06, float weight_offset=0.0, bool weight_in_float32=False, "
    "SymInt variance_size=0) -> (Tensor, Tensor)",
    "qk_rms_norm": "(Tensor q, Tensor? k, Tensor q_weight, Tensor? k_weight, float eps=1e-06, "
    "float weight_offset=0.0, bool weight_in_float32=False) -> Tensor[]",
    "rotary_kv_cache_write": "(Tensor(a0!) q, Tensor k, Tensor v, Tensor cos, Tensor sin, "
    "Tensor(a5!) k_cache, Tensor(a6!) v_cache, Tensor slots, "
    'str pairing="neox", str layout="NHD") -> ()',
    "rotary_embedding": "(Tensor q, Tensor? k, Tensor cos, Tensor sin, "
    'str pairing="neox") -> Tensor[]',
    "sample_token": "(Tensor logits, Tensor? temperature=None, Tensor? top_k=None, "
    "Tensor? top_p=None, Tensor? min_p=None, Tensor? seed=None, Tensor? position=None) -> Tensor",
    "sample_token_part": "(Tensor logits, SymInt first, Tensor? temperature=None, "
    "Tensor? seed=None, Tensor? position=None) -> (Tensor, Tensor)",
    "penalize_logits": "(Tensor logits, Tensor tokens, Tensor prompt_lens, Tensor repetition, "
    "Tensor presence, Tensor frequency) -> Tensor",
}


def make(op, dtype, sizes=None, seed=3, **scalars):
    rng = torch.Generator().manual_seed(seed)
    return arguments(op, sizes or op.cases.sizes[0], dtype, rng, scalars=scalars)


def clones(given):
    return {
        n: v.clone()
        if isinstance(v, torch.Tensor)
        else ([t.clone() for t in v] if isinstance(v, list) else v)
        for n, v in given.items()
    }


def effects(op, function, given):
    """Everything that a call gives: its results, or what it wrote."""
    given = clones(given)
    result = function(**given)
    if op.inplace_only:
        assert result is None
        return [given[n] for n in op.writes]
    return [result] if isinstance(result, torch.Tensor) else list(result)


def equal(a, b):
    return len(a) == len(b) and all(
        x.dtype == y.dtype and x.shape == y.shape and torch.equal(x, y)
        for x, y in zip(a, b, strict=True)
    )


@pytest.mark.parametrize(("op", "sizes", "scalars"), CASES)
def test_reference_and_oracle_agree_in_fp64(op, sizes, scalars):
    given = make(op, torch.float64, sizes, **scalars)
    for have, want in zip(
        effects(op, op.reference, given), effects(op, op.oracle, given), strict=True
    ):
        if op.budget.kind == "statistical":
            torch.testing.assert_close(have, want, rtol=1e-11, atol=1e-11, equal_nan=True)
        else:
            assert torch.equal(have, want)


@pytest.mark.parametrize(("op", "sizes", "scalars"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_are_as_declared_fresh_and_nothing_is_written(op, sizes, scalars, dtype):
    given = make(op, dtype, sizes, **scalars)
    form = reference(op).form
    check_inputs(op, form, given)
    watch = Watch(op, form, "reference", given, sample=False)
    assert [str(p) for p in watch.judge(op.reference(**given))] == []
    assert op.bytes_moved(given) >= 0


@pytest.mark.parametrize("name", SCHEMAS)
def test_recorded_schemas_are_frozen(name):
    assert OPS[name].schema == SCHEMAS[name]


@pytest.fixture
def library():
    made = torch.library.Library("trivet_catalogue_test", "FRAGMENT")
    yield made
    made._destroy()


@pytest.mark.parametrize("op", FIRST)
def test_every_operator_can_be_registered_with_torch(op, library):
    library.define(op.name + op.schema)
    library.impl(op.name, op.reference, "CPU")

    def fake(*values, **named):
        given = dict(zip(op.signature.names(), values, strict=False)) | named
        given = {p.name: given.get(p.name, p.default) for p in op.signature.parameters}
        like = next(v for v in given.values() if isinstance(v, torch.Tensor))
        made = [like.new_empty(s, dtype=d) for s, d in op.result_meta(given)]
        packed = {"none": lambda: None, "one": lambda: made[0], "tuple": lambda: tuple(made)}
        return packed.get(op.signature.packing, lambda: made)()

    torch.library.register_fake(f"trivet_catalogue_test::{op.name}", fake, lib=library)
    overload = getattr(torch.ops.trivet_catalogue_test, op.name).default
    given = make(op, torch.float32, op.cases.sizes[-1])
    torch.library.opcheck(
        overload, tuple(given.values()), test_utils=("test_schema", "test_faketensor")
    )


@pytest.mark.parametrize("op", [p for p in FIRST if p.values[0].traceable])
def test_a_traceable_reference_runs_on_fake_tensors(op):
    given = make(op, torch.bfloat16)
    mode = FakeTensorMode()
    fake = {
        n: mode.from_tensor(v)
        if isinstance(v, torch.Tensor)
        else ([mode.from_tensor(t) for t in v] if isinstance(v, list) else v)
        for n, v in given.items()
    }
    with mode:
        result = op.reference(**fake)
    results = [] if result is None else [result] if isinstance(result, torch.Tensor) else result
    assert [(tuple(r.shape), r.dtype) for r in results] == op.result_meta(given)
    assert all(r.is_contiguous() for r in results)


@pytest.mark.parametrize("op", FIRST)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_autocast_default_dtype_and_default_device_change_nothing(op, dtype):
    given = make(op, dtype)
    expected = effects(op, op.reference, given)
    for kind in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", kind):
            assert equal(effects(op, op.reference, given), expected)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert equal(effects(op, op.reference, given), expected)
    finally:
        torch.set_default_dtype(before)
    with torch.device("meta"):
        assert equal(effects(op, op.reference, given), expected)
    with torch.inference_mode():
        assert equal(effects(op, op.reference, given), expected)


@pytest.mark.parametrize("op", [p for p in FIRST if p.values[0].stars])
@pytest.mark.parametrize("lead", [(), (6,), (2, 3), (1, 2, 3)])
def test_leading_dims_are_rows(op, lead):
    tokens = math.prod(lead)
    sizes = op.cases.sizes["seqs" in op.where and -1] | {"tokens": tokens}
    flat = make(op, torch.float32, sizes)

    def with_lead(arg, tensor):
        shape = op.shapes.get(arg)
        if tensor is None or shape is None or not shape.star:
            return tensor
        return tensor.reshape((*lead, *tensor.shape[1:]))

    given = {n: with_lead(n, v) for n, v in flat.items()}
    assert op.dims(given)["tokens"] == tokens
    results = effects(op, op.reference, given)
    if not op.inplace_only:
        assert [tuple(r.shape) for r in results] == [s for s, _ in op.result_meta(given)]
    for have, want in zip(results, effects(op, op.reference, flat), strict=True):
        torch.testing.assert_close(have.reshape(want.shape), want)
    oracle = effects(op, op.oracle, clones(given))
    assert [r.shape for r in oracle] == [r.shape for r in results]


@pytest.mark.parametrize("op", FIRST)
def test_positions_and_keywords_are_the_same_call(op):
    given = make(op, torch.float32)
    by_position = effects(op, lambda **named: op.reference(*named.values()), given)
    assert equal(by_position, effects(op, op.reference, given))


def test_strided_inputs_give_the_same_rows():
    for name in ("rms_norm", "silu_and_mul", "linear"):
        op = OPS[name]
        given = make(op, torch.float32)
        wide = torch.randn(*given["x"].shape[:-1], 3 * given["x"].shape[-1])
        view = wide[..., : given["x"].shape[-1]]
        dense = effects(op, op.reference, given | {"x": view.contiguous()})
        strided = op.reference(**(given | {"x": view}))
        torch.testing.assert_close(strided, dense[0])
        assert strided.is_contiguous()


def test_the_rounding_order_of_the_weight_is_an_argument():
    op = OPS["rms_norm"]
    rng = torch.Generator().manual_seed(1)
    x, weight = torch.randn(1, 64, generator=rng).bfloat16(), torch.randn(64, generator=rng)
    f = x.float() * torch.rsqrt(x.float().pow(2).mean() + 1e-6)
    one = (f * (weight + 1.0)).bfloat16()
    two = (f.bfloat16().float() * (weight + 1.0)).bfloat16()
    assert not torch.equal(one, two), "the case must tell the two orders apart"
    assert torch.equal(op.reference(x, weight, weight_offset=1.0, weight_in_float32=True), one)
    assert torch.equal(op.reference(x, weight, weight_offset=1.0), two)


def test_the_mean_square_of_a_prefix_scales_the_whole_row():
    op, fused = OPS["rms_norm"], OPS["fused_add_rms_norm"]
    x, weight = torch.tensor([[3.0, 4.0, 100.0]]), torch.tensor([1.0, 2.0, 3.0])
    scale = 12.5**-0.5
    want = torch.tensor([[3 * scale, 8 * scale, 300 * scale]])
    torch.testing.assert_close(op.reference(x, weight, 0.0, variance_size=2), want)
    y, _ = fused.reference(x - 1, torch.ones(1, 3), weight, 0.0, variance_size=2)
    torch.testing.assert_close(y, want)
    for size in (-1, 4):
        with pytest.raises(DomainError, match=f"variance_size={size} in rows of 3"):
            op.reference(x, weight, variance_size=size)


def test_the_weights_of_a_head_norm_come_with_their_parts():
    op = OPS["qk_rms_norm"]
    q, weight = torch.ones(2, 3, 4), torch.ones(4)
    assert len(op.reference(q, None, weight, None)) == 1
    for k, k_weight, lone in ((q, None, "k is given"), (None, weight, "k_weight is given")):
        with pytest.raises(DomainError, match=lone):
            op.reference(q, k, weight, k_weight)


def test_a_sum_is_rounded_before_it_is_normalised():
    op, norm = OPS["fused_add_rms_norm"], OPS["rms_norm"]
    x, residual = torch.randn(2, 5, 64).bfloat16()
    weight = torch.randn(64).bfloat16()
    y, total = op.reference(x, residual, weight)
    assert torch.equal(total, x + residual)
    assert torch.equal(y, norm.reference(total, weight))


@pytest.mark.parametrize(
    ("row", "token"),
    [
        ([1.0, 3.0, 3.0, 2.0], 1),
        ([0.0, 0.0], 0),
        ([-math.inf, -math.inf], 0),
        ([math.inf, 1.0, math.inf], 0),
        ([5.0, math.nan, 9.0, math.nan], 1),
        ([math.nan, math.inf], 0),
        ([math.inf, math.nan], 1),
        ([-0.0, 0.0], 0),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ties_go_to_the_lowest_id_and_nan_is_seen(row, token, dtype):
    op = OPS["sample_token"]
    logits = torch.tensor([row, [0.0] * (len(row) - 1) + [1.0]], dtype=dtype)
    assert op.reference(logits).tolist() == [token, len(row) - 1]
    assert op.oracle(logits).tolist() == [token, len(row) - 1]


def test_the_width_of_a_pack_is_the_operators_width():
    op = OPS["linear_packed"]
    x, weight = torch.randn(3, 4), torch.randn(8, 4)
    torch.testing.assert_close(op.reference(x, [weight], 8), x @ weight.T)
    for width in (5, 9, -1):
        with pytest.raises(DomainError, match=rf"out_features is {width}, the pack is \[8, 4\]"):
            op.reference(x, [weight], width)


def test_a_choice_that_is_not_declared_never_means_another():
    given = make(OPS["rotary_embedding"], torch.float32)
    with pytest.raises(DomainError, match="pairing='nonsense'"):
        OPS["rotary_embedding"].reference(**given | {"pairing": "nonsense"})
    for name in ("kv_cache_write", "paged_attention"):
        with pytest.raises(DomainError, match="layout='HND'"):
            OPS[name].reference(**make(OPS[name], torch.float32) | {"layout": "HND"})


@pytest.mark.parametrize("op", [p for p in FIRST if not p.values[0].takes(torch.int32)])
@pytest.mark.parametrize("dtype", [torch.int32, torch.bool])
def test_a_reference_refuses_activations_that_are_not_floating(op, dtype):
    given = make(op, torch.float32)
    for arg, declared in op.dtypes.items():
        if declared == ACTIVATION and given[arg] is not None:
            given[arg] = given[arg].to(dtype)
    with pytest.raises(DomainError, match=f"a tensor of {dtype} is given"):
        op.reference(**given)
    with pytest.raises(DomainError, match="declared floating"):
        check_inputs(op, reference(op).form, given)


def test_what_copies_takes_integers():
    rows = torch.arange(12, dtype=torch.int8).view(4, 3)
    assert torch.equal(OPS["embedding"].reference(torch.tensor([2, 0]), rows), rows[[2, 0]])
    write = OPS["kv_cache_write"]
    given = make(write, torch.int16)
    assert equal(effects(write, write.reference, given), effects(write, write.oracle, given))


def softmax(**cases):
    """An operator whose scale has no default."""

    def scaled_softmax(x: torch.Tensor, scale: float) -> torch.Tensor:
        """Scales, then takes the softmax."""
        return (x * scale).softmax(-1)

    declare = operator(
        name="acme.scaled_softmax",
        shapes={"x": "*tokens hidden"},
        returns=[("*tokens hidden", "x")],
        cases=Cases(sizes=({"tokens": 2, "hidden": 4},), **cases),
        oracle=scaled_softmax,
    )
    return declare(scaled_softmax)


def test_a_scalar_without_default_comes_from_the_cases():
    op = softmax(scalars=({"scale": 0.5}, {"scale": 2.0}))
    assert make(op, torch.float32)["scale"] == 0.5
    assert make(op, torch.float32, scale=2.0)["scale"] == 2.0
    own = softmax(inputs=lambda *_: {"scale": 3.0})
    assert make(own, torch.float32)["scale"] == 3.0


def test_a_scalar_that_no_case_gives_is_told_by_name():
    op = softmax()
    with pytest.raises(DeclarationError, match="scale has no default") as caught:
        make(op, torch.float32)
    assert "Cases(inputs=...)" in caught.value.fix
    assert make(op, torch.float32, scale=1.0)["scale"] == 1.0
