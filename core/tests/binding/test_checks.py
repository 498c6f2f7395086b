from __future__ import annotations

import random

import pytest
import torch

from stand_ins import OPS, make_device, norm_over, silu_into
from trivet.binding.checks import SMALL_ELEMENTS, Watch
from trivet.contracts import implements
from trivet.errors import ContractBroken, DomainError

SILU, FUSED = OPS["silu_and_mul"].reference, OPS["fused_add_rms_norm"].reference


class Sub(torch.Tensor):
    """A subclass that does nothing."""


@pytest.fixture(autouse=True)
def check(monkeypatch):
    monkeypatch.setenv("TRIVET_CHECK", "1")


def silu(name):
    return implements("silu_and_mul@1", name=name)


@silu("dtype")
def silu_dtype(x):
    return SILU(x).double()


@silu("shape")
def silu_shape(x):
    return SILU(x)[:1].contiguous()


@silu("stride")
def silu_stride(x):
    return SILU(x).t().contiguous().t()


@silu("nothing")
def silu_nothing(x):
    SILU(x)


@silu("extra")
def silu_extra(x):
    return SILU(x), SILU(x)


@silu("alias")
def silu_alias(x):
    x[:, : x.shape[1] // 2] = SILU(x)
    return x[:, : x.shape[1] // 2].contiguous() if x.shape[0] > 1 else x[:, : x.shape[1] // 2]


@silu("mutation")
def silu_mutation(x):
    result = SILU(x)
    x[-1, -1] += 1
    return result


@silu("zeroes")
def silu_zeroes(x):
    result = SILU(x)
    x[0].mul_(-1.0).mul_(-1.0).mul_(-0.0 if not x.any() else 1.0)
    return result


@silu("subclass")
def silu_subclass(x):
    return SILU(x).as_subclass(Sub)


@silu("device")
def silu_device(x):
    return SILU(x).to("meta")


@silu("good")
def silu_good(x):
    return SILU(x)


BROKEN = [
    (silu_dtype, "meta", "result 0 is float64[4, 3], not float32[4, 3]"),
    (silu_shape, "meta", "result 0 is float32[1, 3], not float32[4, 3]"),
    (silu_stride, "meta", "result 0 has strides (1, 4): not contiguous"),
    (silu_nothing, "meta", "returned a NoneType, not a Tensor"),
    (silu_extra, "meta", "returned a tuple, not a Tensor"),
    (silu_mutation, "mutation", "changed its input 'x'"),
    (silu_subclass, "meta", "result 0 is a Sub, no plain Tensor"),
    (silu_device, "meta", "result 0 is on meta, not cpu"),
]


@pytest.mark.parametrize(("function", "kind", "problem"), BROKEN)
def test_a_broken_kernel_is_told_by_operator_provider_and_place(function, kind, problem):
    provider = f"acme/{function.__trivet__[0].name}"
    dev = make_device(function)
    bounds = [(dev.ops.silu_and_mul, ""), (dev.bind("silu_and_mul", {"inter": 3}), "")]
    bounds.append((dev.plan({"gate": ("silu_and_mul", {})}).gate, ", site 'gate'"))
    for bound, site in bounds:
        with pytest.raises(ContractBroken) as caught:
            bound(torch.randn(4, 6))
        assert caught.value.kind == kind
        assert caught.value.what == f"silu_and_mul ({provider}{site}): {problem}"
        assert "'acme'" in caught.value.fix


def test_a_kernel_that_keeps_the_contract_is_let_through():
    dev = make_device(silu_good)
    for shape in ((4, 6), (0, 6), (6,), (2, 3, 6)):
        x = torch.randn(shape)
        assert torch.equal(dev.ops.silu_and_mul(x), SILU(x))
        assert torch.equal(dev.ops.silu_and_mul(x=x), SILU(x))
    assert dev.ops.silu_and_mul is not silu_good
    assert dev.bind("silu_and_mul", {"inter": 3}) is dev.bind("silu_and_mul", {"inter": 3})


def test_a_result_that_lies_in_an_input_is_an_alias():
    with pytest.raises(ContractBroken) as caught:
        make_device(silu_alias).ops.silu_and_mul(torch.randn(1, 6))
    assert caught.value.kind == "mutation"
    with pytest.raises(ContractBroken, match="result 0 shares memory with x") as caught:
        make_device(linear_same).ops.linear(torch.randn(2, 2), torch.eye(2))
    assert caught.value.kind == "alias"
    with pytest.raises(ContractBroken, match="result 1 shares memory with result 0"):
        make_device(fused_shared).ops.fused_add_rms_norm(*torch.randn(2, 2, 4), torch.ones(4))


@implements("linear@1", name="same")
def linear_same(x, weight, bias=None):
    return x


@implements("fused_add_rms_norm@1", name="shared")
def fused_shared(
    x, residual, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0
):
    y, total = FUSED(x, residual, weight, eps, weight_offset, weight_in_float32, variance_size)
    both = torch.stack((y, total))
    return both[0], both[1]


@implements("fused_add_rms_norm@1", name="one")
def fused_one(
    x, residual, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0
):
    return FUSED(x, residual, weight)[:1]


@implements("rms_norm_@1", name="returns")
def norm_returns(x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0):
    return x


@implements("rms_norm_@1", name="scales")
def norm_scales(x, weight, eps=1e-6, weight_offset=0.0, weight_in_float32=False, variance_size=0):
    weight.mul_(2)


def test_too_few_results_and_results_of_a_writer():
    with pytest.raises(ContractBroken, match=r"\(acme/one\): returned 1 results, not 2"):
        make_device(fused_one).ops.fused_add_rms_norm(*torch.randn(2, 2, 4), torch.ones(4))
    with pytest.raises(ContractBroken, match="returned Tensor, not None"):
        make_device(norm_returns).ops.rms_norm_(torch.randn(2, 4), torch.ones(4))
    with pytest.raises(ContractBroken, match="changed its input 'weight'"):
        make_device(norm_scales).ops.rms_norm_(torch.randn(2, 4), torch.ones(4))


@implements("linear_packed@1", name="eats")
def linear_eats(x, packed, out_features, bias=None):
    result = x @ packed[1].t()
    packed[1].zero_()
    return result


def test_members_of_a_list_are_watched_too():
    packed = [torch.ones(1), torch.randn(3, 4)]
    with pytest.raises(ContractBroken, match=r"changed its input 'packed\[1\]'"):
        make_device(linear_eats).ops.linear_packed(torch.randn(2, 4), packed, 3)


WHERE = {"first": 0, "last": -1}


def spoil(row):
    @silu(f"spoils_{row}")
    def spoils(x):
        result = SILU(x)
        x[WHERE[row], 7] = 5.0
        return result

    spoils.__qualname__ = "spoils"
    return spoils


@pytest.mark.parametrize("row", WHERE)
def test_the_ends_of_large_arguments_are_always_looked_at(row):
    x = torch.randn(2 * SMALL_ELEMENTS // 64, 64)
    with pytest.raises(ContractBroken, match="changed its input 'x'"):
        make_device(spoil(row)).ops.silu_and_mul(x)


@silu("everywhere")
def silu_everywhere(x):
    result = SILU(x)
    x.add_(1)
    return result


def test_a_large_argument_is_sampled_by_rows_without_growing():
    op = OPS["silu_and_mul"]
    tall, flat = torch.randn(SMALL_ELEMENTS, 2), torch.randn(1, 2 * SMALL_ELEMENTS)
    watch = Watch(op, "functional", "a/b", {"x": tall}, sample=True)
    assert watch.before["x"].shape[0] <= 66
    assert Watch(op, "functional", "a/b", {"x": flat}, sample=True).before["x"].shape[0] == 1
    assert Watch(op, "functional", "a/b", {"x": tall}, sample=False).before["x"].shape == tall.shape
    with pytest.raises(ContractBroken, match="changed its input 'x'"):
        make_device(silu_everywhere).ops.silu_and_mul(tall)


def test_random_numbers_of_the_program_are_not_disturbed():
    bound = make_device(silu_good).ops.silu_and_mul
    x = torch.randn(2 * SMALL_ELEMENTS, 4)
    torch.manual_seed(3)
    random.seed(3)
    states = torch.get_rng_state(), random.getstate()
    bound(x)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]


def test_nan_equals_itself_and_minus_zero_is_not_zero():
    x = torch.full((2, 6), torch.nan)
    assert make_device(silu_good).ops.silu_and_mul(x).isnan().all()
    zeros = torch.zeros(2, 6)
    with pytest.raises(ContractBroken, match="changed its input 'x'"):
        make_device(silu_zeroes).ops.silu_and_mul(zeros)
    for dtype in (torch.bool, torch.complex128, torch.float8_e4m3fn, torch.int8):
        watch = Watch(OPS["silu_and_mul"], "functional", "a/b",
                      {"x": torch.zeros(2, 4, dtype=dtype)}, sample=True)  # fmt: skip
        assert list(watch._mutations()) == []


def test_checks_work_under_another_default_device_and_dtype():
    bound = make_device(silu_good).ops.silu_and_mul
    x = torch.randn(2 * SMALL_ELEMENTS, 4)
    in_place = make_device(norm_over).ops.rms_norm_
    packed = torch.randn(4, 2, 8)
    with torch.device("meta"), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(bound(x), SILU(x))
        in_place(packed[:, 0], packed[0, 1].contiguous())


# --- what no implementation may be given ---


def call(op, **changed):
    base = {
        "rms_norm_": {"x": torch.randn(4, 8), "weight": torch.ones(8)},
        "silu_and_mul_out": {"x": torch.randn(4, 6), "out": torch.zeros(4, 3)},
        "fused_add_rms_norm_": {
            "x": torch.randn(4, 8),
            "residual": torch.randn(4, 8),
            "weight": torch.ones(8),
        },
        "rotary_embedding": {
            "q": torch.randn(4, 2, 8),
            "k": torch.randn(4, 1, 8),
            "cos": torch.rand(4, 4),
            "sin": torch.rand(4, 4),
        },
        "rotary_embedding_out": {
            "q": torch.randn(4, 2, 8),
            "k": torch.randn(4, 1, 8),
            "cos": torch.rand(4, 4),
            "sin": torch.rand(4, 4),
            "out": [torch.zeros(4, 2, 8), torch.zeros(4, 1, 8)],
        },
        "kv_cache_write": {
            "k": torch.randn(2, 1, 8),
            "v": torch.randn(2, 1, 8),
            "k_cache": torch.zeros(3, 4, 1, 8),
            "v_cache": torch.zeros(3, 4, 1, 8),
            "slots": torch.tensor([1, 2]),
        },
        "linear_packed": {
            "x": torch.randn(4, 8),
            "packed": [torch.randn(3, 8)],
            "out_features": 3,
        },
        "embedding": {"ids": torch.tensor([1]), "weight": torch.randn(5, 3)},
    }
    return base[op] | changed


SAME = torch.randn(4, 8)
BASE = torch.randn(4, 3, 8)

REFUSED = [
    ("rms_norm_", {"weight": torch.ones(7)}, "'hidden' of weight is 7, but x gives hidden = 8"),
    ("rms_norm_", {"weight": torch.ones(1, 8)}, "weight has shape [1, 8], declared 'hidden'"),
    ("rms_norm_", {"eps": "small"}, "argument 'eps' is a str, declared float"),
    ("rms_norm_", {"weight_in_float32": 1}, "argument 'weight_in_float32' is a int, declared bool"),
    ("rms_norm_", {"weight": None}, "argument 'weight' is a NoneType, declared Tensor"),
    ("rms_norm_", {"weight": [1.0]}, "argument 'weight' is a list, declared Tensor"),
    (
        "rms_norm_",
        {"x": torch.randn(1, 8).expand(4, 8)},
        "written argument 'x' has a dim of stride 0",
    ),
    (
        "rms_norm_",
        {"x": torch.randn(4, 6, 8)[:, :3]},
        "the leading dims of written argument 'x' do not collapse",
    ),
    ("rms_norm_", {"x": SAME, "weight": SAME[0]}, "written argument 'x' overlaps 'weight'"),
    ("fused_add_rms_norm_", {"x": SAME, "residual": SAME}, "argument 'x' overlaps 'residual'"),
    (
        "fused_add_rms_norm_",
        {"x": BASE.view(-1, 8)[:4], "residual": BASE.view(-1, 8)[3:7]},
        "written argument 'x' overlaps 'residual'",
    ),
    ("silu_and_mul_out", {"out": torch.zeros(4, 6)}, "'out' is float32[4, 6], the result is"),
    ("silu_and_mul_out", {"out": torch.zeros(4, 3).double()}, "'out' is float64[4, 3]"),
    ("silu_and_mul_out", {"out": None}, "'out' is a NoneType, not a tensor"),
    ("silu_and_mul_out", {"x": SAME, "out": SAME[:, :4]}, "written argument 'out' overlaps 'x'"),
    ("rotary_embedding", {"pairing": "gptj"}, "pairing='gptj', declared neox, interleaved"),
    ("rotary_embedding", {"cos": torch.rand(4, 4).double()}, "cos is float64, declared float32"),
    ("rotary_embedding", {"cos": torch.rand(3, 4)}, "'*tokens' of cos is 3, but q gives tokens"),
    ("rotary_embedding_out", {"out": []}, "out holds 0 tensors, the call has 2 results"),
    (
        "rotary_embedding_out",
        {"out": [torch.zeros(4, 2, 8), torch.zeros(4, 2, 8)]},
        "'out[1]' is float32[4, 2, 8], the result is float32[4, 1, 8]",
    ),
    ("kv_cache_write", {"slots": torch.tensor([1, 2]).int()}, "slots is int32, declared int64"),
    (
        "kv_cache_write",
        {"k_cache": BASE[:3, :, None], "v_cache": BASE[1:, :, None]},
        "written argument 'k_cache' overlaps 'v_cache'",
    ),
    ("linear_packed", {"packed": torch.ones(3, 8)}, "argument 'packed' is a Tensor, declared Ten"),
    ("linear_packed", {"packed": [None]}, "argument 'packed' is a list, declared Tensor[]"),
    ("linear_packed", {"out_features": True}, "argument 'out_features' is a bool, declared int"),
    ("linear_packed", {"out_features": 3, "bias": torch.ones(4)}, "'out_features' of bias is 4"),
    ("embedding", {"ids": torch.tensor([1]).int()}, "ids is int32, declared int64"),
    ("silu_and_mul_out", {"x": torch.ones(4, 6).int()}, "x is int32, declared floating"),
]


@pytest.mark.parametrize(("target", "changed", "problem"), REFUSED)
def test_a_wrong_call_is_told_by_operator_provider_and_argument(target, changed, problem):
    op, _ = make_device()._binder.target(target)
    bound = make_device().ops.__getattr__(target)
    with pytest.raises(DomainError) as caught:
        bound(**call(target, **changed))
    assert caught.value.what.startswith(f"{op.name} (reference): ")
    assert problem in caught.value.what


@pytest.mark.parametrize("target", sorted({row[0] for row in REFUSED}))
def test_the_unchanged_call_is_right(target):
    given = call(target)
    make_device(norm_over, silu_into).ops.__getattr__(target)(**given)
