from __future__ import annotations

import functools
import math

import pytest
import torch

from trivet.errors import DomainError
from trivet_cpu.compiled import activation

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16


def in_float64(x):
    gate, up = x.double().chunk(2, -1)
    return gate / (1 + torch.exp(-gate)) * up


@pytest.mark.parametrize("inter", [1, 5, 16, 31, 32, 100, 1536])
@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_values(level, randn, inter, dtype):
    x = (8 * randn(6, 2 * inter)).to(dtype)
    y = activation.silu_and_mul(x)
    tolerance = {F32: 1e-6, BF16: 2**-8, F16: 2**-11}[dtype]
    torch.testing.assert_close(y.double(), in_float64(x), rtol=tolerance, atol=1e-7)
    out = torch.empty_like(y)
    activation.silu_and_mul_out(x, out=out)
    assert torch.equal(out, y)


def test_the_whole_range_of_the_exponential(level):
    gate = torch.linspace(-110, 110, 100_001)
    y = activation.silu_and_mul(torch.cat((gate, torch.ones_like(gate))))
    expected = torch.nn.functional.silu(gate)
    # below -88 exp overflows in float32 and the result is -0, as torch's is
    torch.testing.assert_close(y, expected, rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_special_values_pass_as_in_torch(level, dtype):
    special = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 88.8, -88.8, 3e38, -3e38, 1e-40]
    gate = torch.tensor(special).to(dtype).repeat(4)
    for other in (1.0, 0.0, torch.inf, torch.nan):
        up = torch.full_like(gate, other)
        y = activation.silu_and_mul(torch.cat((gate, up)))
        expected = (torch.nn.functional.silu(gate.float()) * up.float()).to(dtype)
        torch.testing.assert_close(y, expected, rtol=1e-6, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_rows_are_independent_of_batch_threads_and_strides(level, randn, threads, dtype):
    wide = randn(300, 1200, dtype=dtype)
    x = wide[:, 100:1100]
    with threads(1):
        y = activation.silu_and_mul(x.contiguous())
        assert torch.equal(activation.silu_and_mul(x), y)
        assert torch.equal(activation.silu_and_mul(x[7:8]), y[7:8])
    for count in (2, 3):
        with threads(count):
            assert torch.equal(activation.silu_and_mul(x), y)


def test_empty():
    assert activation.silu_and_mul(torch.ones(0, 8)).shape == (0, 4)
    assert activation.silu_and_mul(torch.ones(3, 0)).shape == (3, 0)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.ones(2, 7), "even"),
        (torch.ones(2, 8, dtype=torch.float64), "dtype"),
        (torch.ones(8, 2).T, "dense"),
        (torch.ones(4, 3, 8).transpose(0, 1), "collapse"),
    ],
)
def test_refusals(x, words):
    with pytest.raises(DomainError, match=words):
        activation.silu_and_mul(x)


def test_refusals_of_out():
    with pytest.raises(DomainError, match="half"):
        activation.silu_and_mul_out(torch.ones(2, 8), out=torch.ones(2, 8))
    with pytest.raises(DomainError, match="dtype"):
        activation.silu_and_mul_out(torch.ones(2, 8), out=torch.ones(2, 4, dtype=BF16))


def gelu_in_float64(x, approximate):
    x = x.double()
    if approximate == "none":
        return x * torch.special.erfc(-x * math.sqrt(0.5)) / 2
    u = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return x * torch.sigmoid(2 * u)


PLAIN = {
    "silu": (activation.silu, activation.silu_, activation.silu_out, activation.silu_and_mul,
             activation.silu_and_mul_out, lambda x: x.double() * torch.sigmoid(x.double())),
    **{
        kind: (*(functools.partial(f, approximate=kind)
                 for f in (activation.gelu, activation.gelu_, activation.gelu_out,
                           activation.gelu_and_mul, activation.gelu_and_mul_out)),
               functools.partial(gelu_in_float64, approximate=kind))
        for kind in ("none", "tanh")
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_every_form_of_every_activation(level, randn, threads, kind, dtype):
    plain, inplace, into, gate, gate_into, exact = PLAIN[kind]
    for width in (1, 5, 31, 32, 100, 257, 1536):
        x, up = (2 * randn(5, width)).to(dtype), randn(5, width, dtype=dtype)
        y = plain(x)
        tolerance = {"rtol": {F32: 2e-6, BF16: 2**-8, F16: 1.01 * 2**-11}[dtype], "atol": 1e-7}
        torch.testing.assert_close(y.double(), exact(x), **tolerance)
        out, mine = torch.empty_like(x), x.clone()
        into(x, out=out)
        inplace(mine)
        assert torch.equal(out, y)
        assert torch.equal(mine, y)
        both = torch.cat((x, up), -1)
        gated = gate(both)
        torch.testing.assert_close(gated.double(), exact(x) * up.double(), **tolerance)
        gate_into(both, out=out)
        assert torch.equal(out, gated)
        gate_into(both, out=both[:, :width])
        assert torch.equal(both[:, :width], gated)
    wide = randn(300, 1200, dtype=dtype)
    x = wide[:, 100:1101]
    with threads(1):
        y = plain(x.contiguous())
        assert torch.equal(plain(x[7:8]), y[7:8])
    for count in (1, 2, 3):
        with threads(count):
            assert torch.equal(plain(x), y)
    before = wide.clone()
    inplace(x)
    assert torch.equal(x, y)
    assert torch.equal(wide[:, :100], before[:, :100])
    assert torch.equal(wide[:, 1101:], before[:, 1101:])


@pytest.mark.parametrize("kind", ["none", "tanh"])
def test_gelu_is_accurate_relative_to_small_results_too(level, kind):
    """Where erf and tanh are close to -1, and next to zero, no digits are lost."""
    near_zero = torch.logspace(-30, 0, 10_001)
    x = torch.cat((torch.linspace(-9.9, 10, 100_001), near_zero, -near_zero))
    y, exact = activation.gelu(x, kind).double(), gelu_in_float64(x, kind)
    relative = ((y - exact) / exact).abs().where(x != 0, 0.0)
    assert relative[x > -2].max() < 6e-7
    assert relative.max() < 2e-5  # exp of a rounded argument of up to 88


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_special_values_of_each_activation_as_in_its_formula(level, kind, dtype):
    special = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 3e38, -3e38, 1e20, -1e20, 1e-40,
               -1e-40, 16.0, -16.0, -100.0]  # fmt: skip
    x = torch.tensor(special).to(dtype).repeat(5)
    f = x.float()
    written_out = {
        "silu": f / (1 + torch.exp(-f)),
        "none": f * 0.5 * (1 + torch.erf(f * math.sqrt(0.5))),
        "tanh": f * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (f + 0.044715 * f**3))),
    }
    theirs = written_out[kind]
    y = PLAIN[kind][0](x)
    torch.testing.assert_close(y, theirs.to(dtype), rtol=1e-6, atol=1e-37, equal_nan=True)
    number = ~y.isnan()
    assert torch.equal(y.signbit()[number], theirs.signbit()[number])
    ones = torch.ones_like(x)
    assert torch.equal(PLAIN[kind][3](torch.cat((x, ones)))[number], y[number])


def test_refusals_of_plain_activations():
    flat = torch.ones(100)
    x = flat[:64].view(8, 8)
    for plain, inplace, into, gate, gate_into, _ in PLAIN.values():
        for function, given, words in (
            (plain, torch.ones(2, 8, dtype=torch.float64), "dtype"),
            (plain, torch.ones(8, 2).T, "dense"),
            (plain, torch.tensor(1.0), "at least one dim"),
            (inplace, torch.ones(4, 3, 8).transpose(0, 1), "collapse"),
            (inplace, torch.ones(8).expand(8, 8), "expanded"),
            (gate, torch.ones(2, 7), "even"),
        ):
            with pytest.raises(DomainError, match=words):
                function(given)
        for out, words in (
            (torch.ones(8, 7), "shape of x"),
            (torch.ones(8, 8, dtype=BF16), "dtype of x"),
            (flat[4:68].view(8, 8), "overlaps x without being it"),
        ):
            with pytest.raises(DomainError, match=words):
                into(x, out=out)
        with pytest.raises(DomainError, match="one of its halves"):
            gate_into(x, out=flat[2:66].view(8, 8)[:, :4])
    for function in (activation.gelu, activation.gelu_, activation.gelu_and_mul):
        with pytest.raises(DomainError, match="approximate is 'erf'"):
            function(x, "erf")
