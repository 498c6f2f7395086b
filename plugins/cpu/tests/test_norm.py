from __future__ import annotations

import itertools

import pytest
import torch

import trivet
from trivet.errors import DomainError
from trivet_cpu.compiled import norm

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
TYPES = list(itertools.product((F32, BF16, F16), repeat=2))
HALF_A_UNIT = {BF16: 2**-8, F16: 2**-11}
SCALARS = list(itertools.product((0.0, 1.0), (False, True)))


def in_float64(x, weight, eps, offset):
    f = x.double()
    return (
        f
        / torch.sqrt((f * f).sum(-1, keepdim=True) / f.shape[-1] + eps)
        * (weight.double() + offset)
    )


def rounded_as_declared(x, weight, eps, offset, in_float32):
    """The operator's order of rounding, written out step by step."""
    f = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
    if in_float32:
        return (f * (weight.float() + offset)).to(x.dtype)
    return (f.to(x.dtype) * (weight + offset)).to(x.dtype)


@pytest.mark.parametrize("hidden", [1, 7, 32, 33, 576, 4096, 4099])
@pytest.mark.parametrize(("xd", "wd"), TYPES)
def test_values_and_order_of_rounding(level, randn, hidden, xd, wd):
    x, weight = randn(5, hidden, dtype=xd), randn(hidden, dtype=wd)
    for offset, in_float32 in SCALARS:
        y = norm.rms_norm(x, weight, 1e-5, offset, in_float32)
        assert y.dtype == xd
        # w + offset is rounded to w's dtype where the operator says so: compare with that weight
        exact = in_float64(x, weight if in_float32 else weight + offset, 1e-5,
                           offset if in_float32 else 0.0)  # fmt: skip
        # float32: a few units; others: half a unit a rounding, of which there are up to two
        torch.testing.assert_close(
            y.double(), exact, rtol=2e-6 if xd == F32 else 2.01 * HALF_A_UNIT[xd], atol=1e-6
        )
        declared = rounded_as_declared(x, weight, 1e-5, offset, in_float32)
        if xd != F32:  # fp32 intermediate results differ in the last bit, which rarely shows
            assert (y != declared).float().mean() < 0.01


def test_the_two_orders_of_rounding_differ(level, randn):
    x, weight = randn(64, 576, dtype=BF16), randn(576, dtype=BF16)
    once = norm.rms_norm(x, weight, weight_in_float32=True)
    twice = norm.rms_norm(x, weight, weight_in_float32=False)
    differing = (once != twice).float().mean()
    assert 0.1 < differing < 0.9
    for mine, flag in ((once, True), (twice, False)):
        other = rounded_as_declared(x, weight, 1e-6, 0.0, flag)
        assert (mine != other).float().mean() < 0.01


@pytest.mark.parametrize(("hidden", "seen"), [(1, 1), (33, 7), (100, 64), (576, 100), (70, 70)])
@pytest.mark.parametrize(("xd", "wd"), TYPES)
def test_the_mean_square_of_a_prefix_scales_the_whole_row(level, randn, hidden, seen, xd, wd):
    x, residual = randn(5, hidden, dtype=xd), randn(5, hidden, dtype=xd)
    weight = randn(hidden, dtype=wd)
    for offset, in_float32 in SCALARS:
        scalars = (1e-5, offset, in_float32)
        y = norm.rms_norm(x, weight, *scalars, seen)
        # the prefix alone is a row whose mean square is the same
        first = norm.rms_norm(x[:, :seen].contiguous(), weight[:seen].contiguous(), *scalars)
        assert torch.equal(y[:, :seen], first)
        scale = torch.rsqrt(x[:, :seen].double().pow(2).mean(-1, keepdim=True) + 1e-5)
        exact = x.double() * scale * (weight.double() + offset)
        tolerance = 2e-6 if xd == F32 and wd == F32 else 2**-8 * 3.01
        torch.testing.assert_close(y.double(), exact, rtol=tolerance, atol=tolerance)
        if seen < hidden:
            assert not torch.equal(y, norm.rms_norm(x, weight, *scalars))
        out, mine = torch.empty_like(x), x.clone()
        norm.rms_norm_out(x, weight, *scalars, seen, out=out)
        norm.rms_norm_(mine, weight, *scalars, seen)
        assert torch.equal(out, y)
        assert torch.equal(mine, y)

        y, total = norm.fused_add_rms_norm(x, residual, weight, *scalars, seen)
        assert torch.equal(total, x + residual)
        assert torch.equal(y, norm.rms_norm(total, weight, *scalars, seen))
        outs, own = [torch.empty_like(x), torch.empty_like(x)], [x.clone(), residual.clone()]
        norm.fused_add_rms_norm_out(x, residual, weight, *scalars, seen, out=outs)
        norm.fused_add_rms_norm_(*own, weight, *scalars, seen)
        for pair in (outs, own):
            assert torch.equal(pair[0], y)
            assert torch.equal(pair[1], total)


@pytest.mark.parametrize(("xd", "wd"), TYPES)
def test_forms_agree_bit_by_bit(level, randn, xd, wd):
    x, residual = randn(3, 7, 100, dtype=xd), randn(3, 7, 100, dtype=xd)
    weight = randn(100, dtype=wd)
    y = norm.rms_norm(x, weight, 1e-6, 1.0)
    out, mine = torch.empty_like(x), x.clone()
    norm.rms_norm_out(x, weight, 1e-6, 1.0, out=out)
    norm.rms_norm_(mine, weight, 1e-6, 1.0)
    assert torch.equal(out, y)
    assert torch.equal(mine, y)

    y, total = norm.fused_add_rms_norm(x, residual, weight, 1e-6, 1.0)
    assert torch.equal(total, x + residual)
    assert torch.equal(y, norm.rms_norm(total, weight, 1e-6, 1.0))
    outs = [torch.empty_like(x), torch.empty_like(x)]
    norm.fused_add_rms_norm_out(x, residual, weight, 1e-6, 1.0, out=outs)
    a, b = x.clone(), residual.clone()
    norm.fused_add_rms_norm_(a, b, weight, 1e-6, 1.0)
    assert torch.equal(outs[0], y)
    assert torch.equal(outs[1], total)
    assert torch.equal(a, y)
    assert torch.equal(b, total)


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_a_row_depends_on_no_other_row_and_on_no_thread(level, randn, threads, dtype):
    x, residual = randn(257, 1030, dtype=dtype), randn(257, 1030, dtype=dtype)
    weight = randn(1030, dtype=dtype)
    with threads(1):
        y, total = norm.fused_add_rms_norm(x, residual, weight)
        plain = norm.rms_norm(x, weight)
        for row in (0, 1, 128, 256):
            one = slice(row, row + 1)
            alone = norm.fused_add_rms_norm(x[one], residual[one], weight)
            assert torch.equal(alone[0], y[one])
            assert torch.equal(norm.rms_norm(x[one], weight), plain[one])
    for count in (2, 5):
        with threads(count):
            again = norm.fused_add_rms_norm(x, residual, weight)
            assert torch.equal(again[0], y)
            assert torch.equal(again[1], total)
            assert torch.equal(norm.rms_norm(x, weight), plain)


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_strided_rows(level, randn, dtype):
    wide = randn(6, 3, 200, dtype=dtype)
    x, weight = wide[..., 10:110], randn(100, dtype=dtype)
    expected = norm.rms_norm(x.contiguous(), weight)
    assert torch.equal(norm.rms_norm(x, weight), expected)
    assert norm.rms_norm(x, weight).is_contiguous()
    before = wide.clone()
    norm.rms_norm_(x, weight)
    assert torch.equal(x, expected)
    assert torch.equal(wide[..., :10], before[..., :10])
    assert torch.equal(wide[..., 110:], before[..., 110:])
    spread = randn(200, dtype=dtype)[::2]
    assert torch.equal(norm.rms_norm(expected, spread), norm.rms_norm(expected, spread.clone()))


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_special_values_pass_as_in_the_formula(level, randn, dtype):
    x, weight = randn(6, 70, dtype=dtype), randn(70, dtype=dtype)
    x[1, 3], x[2, 69], x[3, 0] = torch.nan, torch.inf, -torch.inf
    x[4] = 0.0
    x[5] = 1e-30
    weight[5] = torch.nan
    y = norm.rms_norm(x, weight)
    expected = rounded_as_declared(x, weight, 1e-6, 0.0, in_float32=False)
    torch.testing.assert_close(y, expected, equal_nan=True)
    assert y[1].isnan().all()
    assert y[0].isnan().sum() == 1
    if dtype == F16:  # no float16 has a square that float32 does not hold
        return
    big = torch.full((1, 64), 3e38, dtype=dtype)
    assert torch.equal(norm.rms_norm(big, torch.ones(64, dtype=dtype)), torch.zeros_like(big))


def test_every_nan_stays_a_nan_when_narrowed(level):
    payloads = torch.tensor([0x7F800001, 0x7FFFFFFF, -1, -0x7FFFFF], dtype=torch.int32)
    weight = payloads.view(F32).repeat(16)
    assert weight.isnan().all()
    for dtype in (BF16, F16):
        x = torch.ones(2, 64, dtype=dtype)
        assert norm.rms_norm(x, weight, weight_in_float32=True).isnan().all()
        half = torch.tensor([0x7C01, 0x7FFF, -1], dtype=torch.int16).view(F16).repeat(22)[:64]
        assert norm.rms_norm(x, half).isnan().all()


def every_float16():
    return torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(F16)


def the_same(found, expected):
    number = ~expected.isnan()
    assert torch.equal(found.isnan(), ~number)
    assert torch.equal(found.view(torch.int16)[number], expected.view(torch.int16)[number])


def test_every_float16_is_read_and_written(level):
    x = every_float16().view(64, 1024)
    zero = torch.full_like(x, -0.0)
    _, total = norm.fused_add_rms_norm(x, zero, torch.ones(1024))
    the_same(total, x)  # x - 0 is x
    odd = x[:, :1019].contiguous()
    _, total = norm.fused_add_rms_norm(odd, zero[:, :1019].contiguous(), torch.ones(1019))
    the_same(total, odd)


def test_sums_are_rounded_to_the_nearest_float16(level):
    x = every_float16()
    for shift in (1, 777, 0x3FFF, 0x8000):
        other = x.roll(shift)
        pair = x.view(64, 1024), other.view(64, 1024)
        _, total = norm.fused_add_rms_norm(*pair, torch.ones(1024))
        the_same(total, (x.float() + other.float()).half().view(64, 1024))


def test_floats_between_two_float16_are_rounded_to_nearest_even(level):
    low = every_float16().float()
    low = low[low.isfinite()]
    steps = torch.tensor([-1, 0, 1], dtype=torch.int32)  # half way, and beside it
    middle = (low + torch.roll(low, -1)) / 2
    exact = (middle.view(torch.int32)[:, None] + steps).flatten().view(F32)
    edge = torch.tensor([65504.0, 65519.99, 65520.0, 65536.0, 1e6, 3e38, 2**-25, 1e-40, 1.0])
    weight = torch.cat((exact, edge, -edge))
    y = norm.rms_norm(torch.ones(1, len(weight), dtype=F16), weight, 0.0, weight_in_float32=True)
    the_same(y[0], weight.half())


def test_shapes_without_rows_and_without_lead(level):
    weight = torch.ones(8)
    assert norm.rms_norm(torch.ones(0, 8), weight).shape == (0, 8)
    assert norm.rms_norm(torch.ones(2, 0, 8), weight).shape == (2, 0, 8)
    assert torch.equal(norm.rms_norm(torch.ones(8), weight, 0.0), torch.ones(8))
    y, total = norm.fused_add_rms_norm(torch.ones(0, 8), torch.ones(0, 8), weight)
    assert y.shape == total.shape == (0, 8)


@pytest.mark.parametrize(
    ("x", "weight", "words"),
    [
        (torch.ones(2, 8, dtype=torch.float64), torch.ones(8), "activation dtype"),
        (torch.ones(2, 8), torch.ones(8, dtype=torch.float64), "weight must be"),
        (torch.ones(2, 8), torch.ones(7), "as long as"),
        (torch.ones(2, 8), torch.ones(1, 8), "one dim"),
        (torch.tensor(1.0), torch.ones(1), "at least one dim"),
        (torch.ones(8, 2).T, torch.ones(8), "last dim must be dense"),
        (torch.ones(4, 3, 8).transpose(0, 1), torch.ones(8), "collapse"),
        (torch.ones(2, 8, device="meta"), torch.ones(8, device="meta"), "Meta"),
    ],
)
def test_refusals_name_the_reason(x, weight, words):
    with pytest.raises(DomainError, match=words):
        norm.rms_norm(x, weight)
    with pytest.raises(DomainError, match=words):
        norm.fused_add_rms_norm(x, x, weight)


def test_a_refusal_of_a_bound_function_points_at_the_facts():
    facts = {"dtype": "float32", "weight.dtype": "float32", "contiguous": True}
    bound = trivet.device("cpu").bind("rms_norm", facts)
    with pytest.raises(DomainError) as caught:
        bound(torch.ones(2, 8, dtype=torch.float64), torch.ones(8))
    assert "a promised fact is not true of this call: TRIVET_CHECK=1" in caught.value.fix
    assert "more: trivet explain rms_norm]" in str(caught.value)


def test_refusals_of_the_written_arguments():
    x, weight = torch.ones(2, 8), torch.ones(8)
    with pytest.raises(DomainError, match="one shape"):
        norm.rms_norm_out(x, weight, out=torch.ones(3, 8))
    with pytest.raises(DomainError, match="one dtype"):
        norm.rms_norm_out(x, weight, out=torch.ones(2, 8, dtype=BF16))
    with pytest.raises(DomainError, match="one dtype"):
        norm.fused_add_rms_norm(x, x.bfloat16(), weight)
    with pytest.raises(DomainError, match="one shape"):
        norm.fused_add_rms_norm(x, torch.ones(1, 8), weight)


@pytest.mark.parametrize("seen", [-1, 9])
def test_a_prefix_that_no_row_has_is_refused(seen):
    x, weight, scalars = torch.ones(2, 8), torch.ones(8), (1e-6, 0.0, False, seen)
    calls = [
        lambda: norm.rms_norm(x, weight, *scalars),
        lambda: norm.rms_norm_(x, weight, *scalars),
        lambda: norm.rms_norm_out(x, weight, *scalars, out=torch.ones(2, 8)),
        lambda: norm.fused_add_rms_norm(x, x.clone(), weight, *scalars),
        lambda: norm.fused_add_rms_norm_(x, x.clone(), weight, *scalars),
    ]
    for call in calls:
        with pytest.raises(DomainError, match="variance_size must be"):
            call()
    assert torch.equal(x, torch.ones(2, 8))
