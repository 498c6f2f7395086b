from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from trivet.errors import DomainError
from trivet_cpu.machine import this_machine
from trivet_cpu.on_torch import linear, linear_facts

F32, BF16 = torch.float32, torch.bfloat16
PACKED = {F32: linear.linear_packed_float32}
if linear.FACTS.bfloat16:  # oneDNN packs bfloat16 on processors that multiply it
    PACKED[BF16] = linear.linear_packed_bfloat16
LOW, HIGH = linear.FACTS.float32 or (0, 256)


def exact(x, weight, bias):
    result = x.double() @ weight.double().T
    return result if bias is None else result + bias.double()


def tolerance(dtype):
    return {"rtol": 2**-8, "atol": 1e-2} if dtype == BF16 else {"rtol": 1e-4, "atol": 1e-4}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 5, 64, 300])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_torch_products(randn, dtype, rows, bias):
    x, weight = randn(rows, 96, dtype=dtype), randn(33, 96, dtype=dtype)
    b = randn(33, dtype=dtype) if bias else None
    y = linear.linear(x, weight, b)
    torch.testing.assert_close(y.double(), exact(x, weight, b), **tolerance(dtype))
    assert torch.equal(linear.linear_packed(x, [weight], 33, b), y)


@pytest.mark.parametrize("shape", [(960, 576), (33, 127), (1, 8)])
@pytest.mark.parametrize("dtype", PACKED)
def test_onednn_products_over_a_reordered_weight(randn, dtype, shape):
    weight, bias = randn(*shape, dtype=dtype), randn(shape[0], dtype=dtype)
    (pack,) = linear._reorder({}, weight, None)
    assert pack.is_mkldnn
    assert torch.equal(linear._restore([pack]), weight)
    assert linear._restore([pack]).dtype == dtype
    for lead in ((4,), (65,), (256,), (3, 7)):
        x = randn(*lead, shape[1], dtype=dtype)
        for b in (None, bias):
            y = PACKED[dtype](x, [pack], shape[0], b)
            assert y.dtype == dtype
            torch.testing.assert_close(y.double(), exact(x, weight, b), **tolerance(dtype))


def test_a_strided_weight_and_a_strided_input_are_packed_and_read_right(randn):
    weight, x = randn(48, 64).T, randn(9, 96)[:, 24:72]
    assert torch.equal(linear._restore(linear._reorder({}, weight, None)), weight)
    y = linear.linear_packed_float32(x, linear._reorder({}, weight, None), 64)
    torch.testing.assert_close(y.double(), exact(x, weight, None), rtol=1e-4, atol=1e-4)


def test_parameters_can_be_packed(randn):
    weight = torch.nn.Parameter(randn(16, 8))
    (pack,) = linear._reorder({}, weight, None)
    assert not pack.requires_grad


def test_a_pack_of_another_provider_is_refused(randn):
    x, weight = randn(4, 8), randn(16, 8)
    pack = linear._reorder({}, weight, None)
    with pytest.raises(DomainError, match=r"made by torch's prepare.*oneDNN's") as raised:
        linear.linear_packed_float32(x, [weight], 16)
    assert "plan.prepare" in raised.value.fix
    with pytest.raises(DomainError, match=r"made by oneDNN's prepare.*torch's"):
        linear.linear_packed(x, pack, 16)


def test_a_pack_of_another_dtype_is_refused(randn):
    x, weight = randn(4, 8), randn(16, 8, dtype=BF16)
    with pytest.raises(DomainError, match=r"the pack holds torch\.bfloat16"):
        linear.linear_packed(x, [weight], 16)
    if BF16 not in PACKED:
        return
    with pytest.raises(DomainError, match=r"the pack holds torch\.bfloat16"):
        linear.linear_packed_float32(x, linear._reorder({}, weight, None), 16)
    with pytest.raises(DomainError, match=r"the pack holds torch\.float32"):
        linear.linear_packed_bfloat16(x.bfloat16(), linear._reorder({}, weight.float(), None), 16)


@pytest.mark.parametrize("wrong", [15, 17, 0, -1])
def test_out_features_are_those_of_the_pack(randn, wrong):
    weight = randn(16, 8)
    with pytest.raises(DomainError, match=f"out_features is {wrong}, .*16, 8"):
        linear.linear_packed(randn(4, 8), [weight], wrong)
    for dtype, product in PACKED.items():
        pack = linear._reorder({}, weight.to(dtype), None)
        with pytest.raises(DomainError, match=f"out_features is {wrong}, .*16, 8"):
            product(randn(4, 8, dtype=dtype), pack, wrong)


@pytest.mark.parametrize("dtype", PACKED)
def test_strided_biases_are_read_right(randn, dtype):
    x, weight = randn(4, 64, dtype=dtype), randn(32, 64, dtype=dtype)
    pack = linear._reorder({}, weight, None)
    for bias in (randn(64, dtype=dtype)[::2], randn(1, dtype=dtype).expand(32)):
        y = PACKED[dtype](x, pack, 32, bias)
        assert torch.equal(y, PACKED[dtype](x, pack, 32, bias.clone()))
        torch.testing.assert_close(y.double(), exact(x, weight, bias), **tolerance(dtype))


def test_what_is_outside_of_the_domain_is_refused(randn):
    pack = linear._reorder({}, randn(16, 8), None)
    for x in (randn(LOW - 1, 8), randn(HIGH + 1, 8), randn(0, 8), randn(8)):
        with pytest.raises(DomainError, match=f"outside of {LOW} to {HIGH} rows"):
            linear.linear_packed_float32(x, pack, 16)
    with pytest.raises(DomainError, match="float64"):
        linear.linear_packed_float32(randn(4, 8).double(), pack, 16)
    for product in (linear.linear_packed_bfloat16, linear.linear_packed_widened):
        with pytest.raises(DomainError, match="float32"):
            product(randn(4, 8), pack, 16)


@pytest.mark.parametrize("dtype", PACKED)
def test_autocast_changes_nothing(randn, dtype):
    x, weight = randn(8, 64, dtype=dtype), randn(32, 64, dtype=dtype)
    pack = linear._reorder({}, weight, None)
    plain, packed = linear.linear(x, weight), PACKED[dtype](x, pack, 32)
    other = BF16 if dtype == F32 else torch.float16
    with torch.autocast("cpu", other):
        assert torch.equal(linear.linear(x, weight), plain)
        assert torch.equal(linear.linear_packed(x, [weight], 32), plain)
        assert torch.equal(PACKED[dtype](x, pack, 32), packed)


def test_the_order_of_sums_depends_on_the_number_of_rows(randn):
    """Why no product here declares batch_invariant: if this passes one day, look again."""
    x, weight = randn(256, 576), randn(960, 576)
    (pack,) = linear._reorder({}, weight, None)
    pairs = [
        (linear.linear(x, weight), lambda rows: linear.linear(rows, weight)),
        (
            linear.linear_packed_float32(x, [pack], 960),
            lambda rows: linear.linear_packed_float32(rows, [pack], 960),
        ),
    ]
    differ = [
        any(not torch.equal(product(x[:n]), whole[:n]) for n in (4, 5, 33, 255))
        for whole, product in pairs
    ]
    claims = [linear.linear, linear.linear_packed_float32]
    for depends, function in zip(differ, claims, strict=True):
        (claim,) = function.__trivet__
        assert "batch_invariant" not in claim.properties or not depends


@pytest.mark.parametrize("bias", [torch.tensor(7.0), torch.ones(3), torch.ones(1, 4)])
def test_a_bias_of_another_shape_is_refused_not_left_out(randn, bias):
    (pack,) = linear._reorder({}, randn(4, 8), None)
    with pytest.raises(DomainError, match="bias has shape"):
        linear.linear_packed_float32(randn(4, 8), [pack], 4, bias)


@pytest.mark.parametrize("rows", [4, 64, 300])
@pytest.mark.parametrize("bias", [False, True])
def test_a_widened_weight_multiplies_as_well_and_comes_back(randn, rows, bias):
    x, weight = randn(rows, 96, dtype=BF16), randn(33, 96, dtype=BF16)
    b = randn(33, dtype=BF16) if bias else None
    pack = linear._widen({}, weight, None)
    assert pack[0].nbytes == 2 * weight.nbytes
    assert torch.equal(linear._narrow(pack), weight)
    y = linear.linear_packed_widened(x, pack, 33, b)
    assert y.dtype == BF16
    torch.testing.assert_close(y.double(), exact(x, weight, b), **tolerance(BF16))


CHOICES = """
import os, sys, torch, trivet
def choose(dtype):
    facts = {"dtype": dtype, "in_features": 64, "out_features": 96, "bias": None}
    plan = trivet.device("cpu").plan({"up": ("linear_packed", facts)})
    sizes = (1, 4, 48, 49, 300)
    said = [plan.at(tokens=n).providers()["up"].removeprefix("cpu/") for n in sizes]
    handle = plan.prepare("up", torch.randn(96, 64, dtype=dtype))
    x = torch.randn(300, 64, dtype=dtype)
    for n in (1, 4, 49, 300):
        step = plan.at(tokens=n)
        got = step.up(x[:n], step.use(handle), 96)
        want = x[:n].double() @ handle.weight().double().T
        torch.testing.assert_close(got.double(), want, rtol=2**-7, atol=2**-4)
    print(limit, name, *said, flush=True)
for case in sys.argv[1:]:
    limit, name = case.split("/")
    child = os.fork()
    if not child:
        os.environ["ONEDNN_MAX_CPU_ISA"] = limit  # oneDNN reads it when it is first used
        choose(getattr(torch, name))
        os._exit(0)
    os.waitpid(child, 0)
"""
CHOSEN = [
    ("AVX2", "bfloat16", "torch onednn-widened onednn-widened onednn-widened onednn-widened"),
    ("AVX2", "float32", "grid grid onednn onednn torch"),
    ("AVX512_CORE", "bfloat16", "torch" + 4 * " onednn-widened"),
    ("AVX512_CORE", "float32", "grid grid onednn onednn torch"),
    ("AVX512_CORE_BF16", "bfloat16", 3 * "onednn-bf16 " + "onednn-widened onednn-widened"),
    ("SSE41", "float32", "torch torch torch torch torch"),
]


def lacks(limit):
    """The feature that a limit needs and this processor does not have."""
    need = {"AVX2": "avx2", "SSE41": "avx2", "AVX512_CORE": "avx512f"}.get(limit, "avx512_bf16")
    return "" if need in this_machine().features else need


@pytest.fixture(scope="module")
def chosen():
    """What is chosen under every limit, each in a process in which oneDNN was not used before."""
    cases = [f"{limit}/{dtype}" for limit, dtype, _ in CHOSEN if not lacks(limit)]
    words = [sys.executable, "-c", CHOICES, *cases]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    rows = [line.split(" ", 2) for line in done.stdout.splitlines()]
    return {(limit, dtype): said for limit, dtype, said in rows}, done.stderr


@pytest.mark.parametrize(("limit", "dtype", "expected"), CHOSEN)
def test_rows_choose_the_product_that_was_measured(chosen, limit, dtype, expected):
    """oneDNN is held to an instruction set, so that one machine shows what others choose."""
    if feature := lacks(limit):
        pytest.skip(f"not_run: this processor has no {feature}")
    said, errors = chosen
    assert said.get((limit, dtype)) == expected, errors


def test_an_instruction_set_that_nobody_measured_gets_torch():
    assert linear_facts.facts_for({"asimd", "bf16"}) == linear_facts.Facts()
    assert linear_facts.instruction_set({"avx2", "avx512f", "fma"}) in {"avx512f", "avx2"}
