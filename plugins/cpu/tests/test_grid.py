from __future__ import annotations

import pytest
import torch

import trivet
from trivet.errors import DomainError
from trivet_cpu import isa
from trivet_cpu.kernel_library import library
from trivet_cpu.on_torch import grid, linear

pytestmark = pytest.mark.skipif(bool(library().reason), reason=f"not_run: {library().reason}")


def on_a_grid(rows, columns, bits, seed=0):
    """A float32 weight as a quantised file gives it: float16 scales, one rounding a number."""
    rng = torch.Generator().manual_seed(seed)
    groups = rows * columns // 32
    d = (torch.rand(groups, 1, generator=rng) * 0.01 + 1e-4).half().float()
    if bits == 4:
        m = (torch.randn(groups, 1, generator=rng) * 0.1).half().float()
        q = torch.randint(0, 16, (groups, 32), generator=rng).float()
        q[:, 3] = 0  # a quantiser puts the smallest number at the low end
        return (q * d + m).view(rows, columns)
    q = torch.randint(-127, 128, (groups, 32), generator=rng).float()
    q[:, 5] = 127
    return (q * d).view(rows, columns)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_weight_on_a_grid_is_packed_and_comes_back_bit_by_bit(bits):
    weight = on_a_grid(40, 96, bits)
    numbers, scales = grid.pack(weight)
    assert numbers.nbytes == weight.nbytes * bits // 32
    assert torch.equal(grid.unpack(numbers, scales), weight)
    strided = torch.empty(96, 40).T.copy_(weight)
    assert torch.equal(grid.pack(strided)[0], numbers)


def test_special_groups_are_packed_too():
    weight = on_a_grid(8, 64, 4)
    weight[0] = 0.0
    weight[1] = 0.5  # one number only
    weight[2, :32] = torch.tensor([0.25, 0.5]).repeat(16)  # two of sixteen
    assert torch.equal(grid.unpack(*grid.pack(weight)), weight)


def _nudged(weight, row, column):
    spoilt = weight.clone()
    spoilt[row, column] = torch.nextafter(spoilt[row, column], torch.tensor(9.0))
    return spoilt


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("spoil", [(0, 0), (39, 95), (17, 40)])
def test_one_bit_off_the_grid_is_enough_to_refuse(bits, spoil):
    assert grid.pack(_nudged(on_a_grid(40, 96, bits), *spoil)) is None


@pytest.mark.parametrize(
    "weight",
    [
        torch.randn(40, 96, generator=torch.Generator().manual_seed(1)),
        torch.full((4, 32), torch.nan),
        torch.full((4, 32), torch.inf),
        torch.zeros(0, 32),
        torch.zeros(4, 33),
        torch.zeros(4, 32, dtype=torch.bfloat16),
    ],
)
def test_other_weights_are_on_no_grid(weight):
    assert grid.pack(weight) is None


@pytest.mark.parametrize("level", isa.LEVELS)
@pytest.mark.parametrize("shape", [(1, 32), (33, 64), (96, 576)])
@pytest.mark.parametrize("bits", [4, 8])
def test_products_are_right_on_every_level(randn, level, shape, bits):
    if level not in isa.levels():
        pytest.skip(f"not_run: no {level} here")
    weight = on_a_grid(*shape, bits)
    pack, bias = linear._reorder_float32({}, weight, None), randn(shape[0])
    assert len(pack) == 3
    assert torch.equal(linear._restore(pack), weight)
    with isa.using(level):
        for lead in ((1,), (2,), (3,), (7,), (12,), (3, 4)):
            x = randn(*lead, shape[1])
            for b in (None, bias):
                y = linear.linear_packed_grid(x, pack, shape[0], b)
                want = x.double() @ weight.double().T + (0 if b is None else b.double())
                torch.testing.assert_close(y.double(), want, rtol=1e-5, atol=1e-5)


def test_rows_give_the_same_bits_alone_and_together(randn):
    pack, x = linear._reorder_float32({}, on_a_grid(96, 576, 4), None), randn(12, 576)
    whole = linear.linear_packed_grid(x, pack, 96)
    for i in range(12):
        assert torch.equal(linear.linear_packed_grid(x[i : i + 1], pack, 96), whole[i : i + 1])


def test_threads_change_no_bit(randn):
    pack, x = linear._reorder_float32({}, on_a_grid(960, 576, 4), None), randn(5, 576)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = linear.linear_packed_grid(x, pack, 960)
        torch.set_num_threads(3)
        assert torch.equal(linear.linear_packed_grid(x, pack, 960), one)
    finally:
        torch.set_num_threads(before)


def test_strided_rows_and_strided_biases_are_read_right(randn):
    weight = on_a_grid(40, 64, 4)
    pack = linear._reorder_float32({}, weight, None)
    x, bias = randn(5, 200)[:, 64:128], randn(80)[::2]
    y = linear.linear_packed_grid(x, pack, 40, bias)
    assert torch.equal(y, linear.linear_packed_grid(x.clone(), pack, 40, bias.clone()))
    turned = randn(64, 5).T
    y = linear.linear_packed_grid(turned, pack, 40)
    assert torch.equal(y, linear.linear_packed_grid(turned.contiguous(), pack, 40))


def test_nan_and_infinity_spread_as_in_torch(randn):
    weight = on_a_grid(40, 64, 4)
    pack = linear._reorder_float32({}, weight, None)
    x = randn(3, 64)
    x[1, 7], x[2, 0] = torch.nan, torch.inf
    y, want = linear.linear_packed_grid(x, pack, 40), x @ weight.T
    assert torch.equal(y.isnan(), want.isnan())
    assert torch.equal(y.isinf(), want.isinf())


def test_a_weight_on_no_grid_takes_the_faster_of_the_others(randn):
    weight = randn(40, 64)
    pack = linear._reorder_float32({}, weight, None)
    assert len(pack) == 2
    few, more = randn(2, 64), randn(9, 64)
    assert torch.equal(linear.linear_packed_grid(few, pack, 40), linear.linear(few, weight))
    assert torch.equal(
        linear.linear_packed_grid(more, pack, 40), linear.linear_packed_float32(more, pack, 40)
    )


def test_what_is_wrong_is_refused(randn):
    pack = linear._reorder_float32({}, on_a_grid(40, 64, 4), None)
    x = randn(3, 64)
    for arguments in (
        (x, pack, 41),
        (randn(3, 96), pack, 40),
        (x.bfloat16(), pack, 40),
        (x, pack, 40, randn(39)),
        (x, pack, 40, randn(40).double()),
        (x, [pack[0], pack[1], pack[2][:, :2]], 40),
        (randn(300, 64), pack, 40),
    ):
        with pytest.raises(DomainError):
            linear.linear_packed_grid(*arguments)


def test_the_plan_shares_the_pack_between_decoding_and_prefill():
    if linear.FACTS.grid is None:
        pytest.skip("not_run: nobody measured this processor")
    weight = on_a_grid(96, 64, 4)
    facts = {"dtype": torch.float32, "in_features": 64, "out_features": 96, "bias": None}
    dev = trivet.device("cpu")
    plan = dev.plan({"up": ("linear_packed", facts)})
    handle = plan.prepare("up", weight, account=dev.memory.account)
    assert handle.packs["cpu/grid"] is handle.packs["cpu/onednn"]
    packed = 96 * 64 * 4 + sum(t.nbytes for t in grid.pack(weight))
    assert dev.memory.stats().by_tag == {"weights": weight.nbytes, "packs": packed}
