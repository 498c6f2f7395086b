"""The three statistics, their budget, and kinds of numbers."""

from __future__ import annotations

import pytest
import torch

from trivet.judging.statistics import (
    BIAS_ELEMENTS,
    NAN,
    NEGATIVE,
    POSITIVE,
    Allowance,
    Errors,
    errors,
    errors_of_several,
    judged_elements,
    kinds,
    rounding,
    row_errors,
    same_bits,
)


def everything(t):
    return torch.ones_like(t, dtype=torch.bool)


def oracle(rows=40, width=64, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(rows, width, generator=rng, dtype=torch.float64)


@pytest.mark.parametrize(
    ("dtype", "power"), [(torch.float32, -25), (torch.float16, -12), (torch.bfloat16, -9)]
)
def test_the_rounding_unit_is_half_the_smallest_relative_step(dtype, power):
    assert rounding(dtype) == 2.0**power


def test_an_exact_result_has_no_error():
    right = oracle().float()
    assert errors(right, right.double(), everything(right)) == Errors(0.0, 0.0, 0.0)


def test_a_rounded_result_stays_within_the_floor_of_the_maximum():
    right = oracle()
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        found = errors(right.to(dtype), right, everything(right))
        assert 0 < found.maximum <= 2 * rounding(dtype)
        assert found.bias <= rounding(dtype) / 4


def test_a_gain_is_a_bias_of_its_size():
    right = oracle()
    found = errors((right * 1.002).float(), right, everything(right))
    assert found.bias == pytest.approx(0.002, rel=1e-3)
    assert found.root_mean_square == pytest.approx(0.002, rel=1e-3)


def test_errors_count_by_the_scale_of_their_row():
    right = torch.tensor([[1e-6, 2e-6], [1000.0, 2000.0]], dtype=torch.float64)
    wrong = right.clone()
    wrong[0, 0] += 1e-6
    assert errors(wrong.float(), right, everything(right)).maximum == pytest.approx(0.5, rel=1e-3)


def test_zeros_are_never_near_a_small_result():
    right = oracle() * 1e-30
    found = errors(torch.zeros_like(right, dtype=torch.float32), right, everything(right))
    assert found.maximum == 1.0


def test_errors_of_opposite_sign_cancel_in_the_bias_only():
    right = torch.ones(2, 600, dtype=torch.float64)
    wrong = right.clone()
    wrong[0] *= 1.01
    wrong[1] *= 0.99
    found = errors(wrong.float(), right, everything(right))
    assert found.bias < 1e-6
    assert found.maximum == pytest.approx(0.01, rel=1e-3)


def test_elements_that_are_not_judged_do_not_count():
    right = oracle()
    wrong = right.float()
    wrong[3, 5] = torch.nan
    judged = everything(right)
    judged[3, 5] = False
    assert errors(wrong, right, judged).maximum < 1e-6


def test_below_the_normal_range_distances_are_absolute():
    smallest = torch.finfo(torch.float16).tiny
    right = torch.full((1, 8), smallest / 1024, dtype=torch.float64)
    assert errors(torch.zeros(1, 8, dtype=torch.float16), right, everything(right)).maximum < 1e-3


def test_huge_rows_do_not_overflow_in_the_statistics():
    right = torch.full((2, 4), 1e200, dtype=torch.float64)
    found = errors(right.clone(), right, everything(right))
    assert found == Errors(0.0, 0.0, 0.0)


def test_an_empty_result_has_no_error():
    empty = torch.empty(0, 8, dtype=torch.float64)
    assert errors(empty.float(), empty, everything(empty)) == Errors()
    assert row_errors(empty.float(), empty, everything(empty)).shape == (0, 8)


def test_the_budget_is_twice_the_native_error_and_a_floor():
    u = rounding(torch.float32)
    made = Allowance.from_native(Errors(1e-6, 1e-7, 1e-8), torch.float32, 2.0)
    assert made == Allowance(2e-6 + 2 * u, 2e-7 + u, 2e-8 + u)


def test_the_worst_of_several_is_taken_statistic_by_statistic():
    assert Errors.worst([Errors(1, 5, 2), Errors(4, 3, 1)]) == Errors(4, 5, 2)
    assert Errors.worst([]) == Errors(0.0, 0.0, 0.0)


def test_a_bias_needs_many_elements():
    made = Allowance(1.0, 1.0, 1.0)
    biased = Errors(0.5, 0.5, 3.0)
    assert made.used(biased, BIAS_ELEMENTS - 1) == (0.5, "maximum")
    assert made.used(biased, BIAS_ELEMENTS) == (3.0, "bias")


def test_kinds_tell_nan_and_the_two_infinities_apart():
    t = torch.tensor([0.0, torch.nan, torch.inf, -torch.inf])
    assert kinds(t).tolist() == [0, NAN, POSITIVE, NEGATIVE]
    assert kinds(torch.tensor([1, 2])).tolist() == [0, 0]
    largest = torch.finfo(torch.float32).max
    assert kinds(torch.tensor([largest, largest])).tolist() == [0, 0]  # their sum overflows
    assert kinds(torch.tensor([torch.inf, -torch.inf])).tolist() == [POSITIVE, NEGATIVE]


def test_results_that_are_measured_together_have_the_errors_that_each_has_alone():
    rng = torch.Generator().manual_seed(0)
    pairs = [(x.float(), x) for x in torch.randn(5, 6, 7, dtype=torch.float64, generator=rng)]
    pairs[1][0][2, 3] = torch.nan  # is not judged
    pairs[2][0][4] *= 2  # too far off to judge
    pairs[3][0][:] = torch.inf  # nothing is
    together = errors_of_several(pairs)
    for (near, right), found in zip(pairs, together, strict=True):
        alone = errors(near, right, judged_elements(near, right))
        assert found.maximum == alone.maximum
        assert found.root_mean_square == alone.root_mean_square
        assert found.bias == pytest.approx(alone.bias, rel=1e-9)
    assert errors_of_several([(torch.ones(0, 3), torch.ones(0, 3).double())]) == [Errors()]


def test_bits_differ_where_values_are_equal_and_nan_is_nan():
    a = torch.tensor([0.0, torch.nan, 1.0])
    b = torch.tensor([-0.0, torch.nan, 1.0])
    b.view(torch.int32)[1] += 1  # another payload
    assert same_bits(a, b).tolist() == [False, False, True]
    assert same_bits(a, b, any_nan=True).tolist() == [False, True, True]
