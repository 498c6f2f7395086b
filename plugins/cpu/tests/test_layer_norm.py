from __future__ import annotations

import pytest
import torch

from trivet.errors import DomainError
from trivet_cpu.compiled import layer_norm

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16


def in_float64(x, weight=None, bias=None, eps=1e-5):
    d = x.double() - x.double().mean(-1, keepdim=True)
    y = d / torch.sqrt((d * d).mean(-1, keepdim=True) + eps)
    y = y if weight is None else y * weight.double()
    return y if bias is None else y + bias.double()


@pytest.mark.parametrize("hidden", [1, 7, 32, 33, 576, 4099])
@pytest.mark.parametrize("xd", [F32, BF16, F16])
@pytest.mark.parametrize("wd", [F32, BF16, F16])
def test_values_with_and_without_weight_and_bias(level, randn, hidden, xd, wd):
    x = (2 * randn(5, hidden) + 0.5).to(xd)
    weight, bias = randn(hidden, dtype=wd), randn(hidden, dtype=wd)
    for w, b in ((None, None), (weight, None), (None, bias), (weight, bias)):
        y = layer_norm.layer_norm(x, w, b, 1e-3)
        assert y.dtype == xd
        unit = {F32: 2e-6, BF16: 2**-8, F16: 2**-11}[xd]
        tolerance = {"rtol": unit, "atol": 4e-6 if xd == F32 else 1e-5}
        torch.testing.assert_close(y.double(), in_float64(x, w, b, 1e-3), **tolerance)


@pytest.mark.parametrize("mean", [1.0, 30.0, 1000.0, -1e5])
def test_a_large_mean_does_not_cancel(level, randn, mean):
    x = randn(4, 1000) + mean
    y = layer_norm.layer_norm(x)
    torch.testing.assert_close(y.double(), in_float64(x), rtol=1e-5, atol=2e-7 * abs(mean) + 1e-6)
    x[:, 0] = 1e4 * mean  # one outlier
    torch.testing.assert_close(layer_norm.layer_norm(x).double(), in_float64(x), rtol=1e-5,
                               atol=1e-5)  # fmt: skip


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_forms_strides_batch_and_threads_give_the_same_bits(level, randn, threads, dtype):
    wide = randn(257, 1300, dtype=dtype)
    x, weight, bias = wide[:, 100:1130], randn(1030, dtype=dtype), randn(1030, dtype=dtype)
    with threads(1):
        y = layer_norm.layer_norm(x.contiguous(), weight, bias)
        assert torch.equal(layer_norm.layer_norm(x[7:8], weight, bias), y[7:8])
        spread = torch.stack((weight, bias), 1)
        assert torch.equal(layer_norm.layer_norm(x, spread[:, 0], spread[:, 1]), y)
    for count in (1, 2, 3):
        with threads(count):
            assert torch.equal(layer_norm.layer_norm(x, weight, bias), y)
    out, before = torch.empty_like(y), wide.clone()
    layer_norm.layer_norm_out(x, weight, bias, out=out)
    layer_norm.layer_norm_(x, weight, bias)
    assert torch.equal(out, y)
    assert torch.equal(x, y)
    assert torch.equal(wide[:, :100], before[:, :100])
    assert torch.equal(wide[:, 1130:], before[:, 1130:])


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_special_values(level, randn, dtype):
    x, weight = randn(5, 70, dtype=dtype), randn(70, dtype=dtype)
    x[1, 3], x[2, 69], x[3, 0] = torch.nan, torch.inf, -torch.inf
    x[4] = 0.75
    weight[5] = torch.nan
    y = layer_norm.layer_norm(x, weight)
    assert y[1:4].isnan().all()
    assert y[0].isnan().sum() == 1
    assert (y[4].nan_to_num() == 0).all()
    if dtype == F16:  # no float16 has a square that float32 does not hold
        return
    huge = randn(1, 70, dtype=dtype)
    huge[0, 3] = torch.finfo(dtype).max  # its square is infinite, and the row a zero
    assert (layer_norm.layer_norm(huge) == 0).all()
    payloads = torch.tensor([0x7F800001, 0x7FFFFFFF, -1], dtype=torch.int32).view(F32)
    y = layer_norm.layer_norm(torch.ones(2, 3, dtype=BF16), None, payloads)
    assert y.isnan().all()


def test_shapes_without_elements():
    assert layer_norm.layer_norm(torch.ones(0, 8), torch.ones(8)).shape == (0, 8)
    assert layer_norm.layer_norm(torch.ones(2, 0)).shape == (2, 0)
    assert layer_norm.layer_norm(torch.ones(8)).abs().max() == 0


@pytest.mark.parametrize(
    ("x", "weight", "bias", "words"),
    [
        (torch.ones(2, 8, dtype=torch.float64), None, None, "activation dtype"),
        (torch.ones(2, 8), torch.ones(7), None, "as long as"),
        (torch.ones(2, 8), None, torch.ones(1, 8), "one dim"),
        (torch.ones(2, 8), None, torch.ones(8).double(), "must be float32, bfloat16 or"),
        (torch.ones(2, 8), torch.ones(8), torch.ones(8, dtype=BF16), "one dtype"),
        (torch.tensor(1.0), None, None, "at least one dim"),
        (torch.ones(8, 2).T, None, None, "last dim must be dense"),
        (torch.ones(4, 3, 8).transpose(0, 1), None, None, "collapse"),
    ],
)
def test_refusals_name_the_reason(x, weight, bias, words):
    for function in (layer_norm.layer_norm, layer_norm.layer_norm_):
        with pytest.raises(DomainError, match=words):
            function(x, weight, bias)


def test_refusals_of_the_written_arguments():
    flat = torch.ones(100)
    x, weight = flat[:64].view(8, 8), torch.ones(8)
    with pytest.raises(DomainError, match="shape of x"):
        layer_norm.layer_norm_out(x, out=torch.ones(3, 8))
    with pytest.raises(DomainError, match="dtype of x"):
        layer_norm.layer_norm_out(x, out=torch.ones(8, 8, dtype=BF16))
    with pytest.raises(DomainError, match="overlaps x"):
        layer_norm.layer_norm_out(x, out=flat[4:68].view(8, 8))
    with pytest.raises(DomainError, match="expanded"):
        layer_norm.layer_norm_out(x, out=torch.ones(8).expand(8, 8))
    with pytest.raises(DomainError, match="the weight or the bias"):
        layer_norm.layer_norm_out(x, weight, x[1], out=x)
    with pytest.raises(DomainError, match="the weight or the bias"):
        layer_norm.layer_norm_(x, x[0], weight)
    with pytest.raises(DomainError, match="expanded"):
        layer_norm.layer_norm_(torch.ones(8).expand(8, 8))
