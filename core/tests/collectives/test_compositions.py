from __future__ import annotations

import pytest
import torch

from trivet.collectives.arithmetic import divide, reduce_in_order


@pytest.mark.parametrize("size", [2, 4])
def test_compositions(world, size):
    world("compositions.py", "each_is_as_the_backends_own everything_of_messages bits", size)


def test_what_is_forbidden_is_made_by_nobody(world):
    forbidden = "comm.all_gather=torch/gloo,composed/messages"
    world("compositions.py", "nobody_may", 2, environ={"TRIVET_FORBID": forbidden})


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min", "band", "bor", "bxor"])
@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.int8])
def test_integers_wrap_and_compare_as_what_they_are(dtype, op):
    most = torch.iinfo(dtype).max
    rows = [[most, 0, 5, most // 2 + 1], [most - 1, most, 7, 1], [3, 1, 2, most]]
    out = torch.empty(4, dtype=dtype)
    reduce_in_order(torch.tensor(rows, dtype=dtype), out, op)
    low, bits = torch.iinfo(dtype).min, torch.iinfo(dtype).bits
    step = {
        "sum": int.__add__, "prod": int.__mul__, "max": max, "min": min, "band": int.__and__,
        "bor": int.__or__, "bxor": int.__xor__,
    }[op]  # fmt: skip
    expected = []
    for column in zip(*rows, strict=True):
        total = step(step(column[0], column[1]), column[2])
        expected.append((total - low) % 2**bits + low)
    assert out.tolist() == expected


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_averages_of_unsigned_numbers_are_exact(dtype, size):
    numbers = [0, 1, 6, torch.iinfo(dtype).max, torch.iinfo(dtype).max // 2 + 1]
    x = torch.tensor(numbers, dtype=dtype)
    divide(x, size)
    assert x.tolist() == [n // size for n in numbers]
