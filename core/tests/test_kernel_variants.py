"""Kernels and their variants, interpreted here; what launches them on a device has a test there."""

from __future__ import annotations

import json
from math import inf

import pytest
import torch
import triton
import triton.language as tl

from trivet.errors import ConfigError, DeclarationError, DomainError
from trivet.kernels.triton import Kernel, Tuned


@triton.jit
def scaled(x, out, n, factor, BLOCK: tl.constexpr, TWICE: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n) * factor
    tl.store(out + at, (value * 2 if TWICE else value).to(out.dtype.element_ty), mask=at < n)


KERNEL = Kernel(scaled, x="*T", out="*T", n="i32", factor="fp32")
CPU = torch.device("cpu")
BF16 = {"T": torch.bfloat16}
PLAIN = {"BLOCK": 32, "TWICE": False}


def test_a_variant_runs_interpreted_with_its_constants():
    x = torch.arange(40, dtype=torch.bfloat16)
    out = torch.full_like(x, -1)
    KERNEL.launch(CPU, BF16, PLAIN | {"TWICE": True})(2, 1, 1, x, out, 39, 0.5)
    assert torch.equal(out[:39], x[:39])
    assert out[39] == -1
    KERNEL.launch(CPU, BF16, PLAIN)(0, 1, 1, x, out, 39, 0.5)  # no program, nothing happens


def test_equal_variants_are_one_and_others_are_not():
    one = KERNEL.variant(BF16, PLAIN, divisible={"x": 16, "n": 1}, num_warps=4)
    assert one == KERNEL.variant(BF16, PLAIN, divisible={"x": 16}, num_warps=4)
    assert len({one, KERNEL.variant(BF16, PLAIN), KERNEL.variant({"T": torch.float32}, PLAIN)}) == 3
    assert dict(one.types) == {"x": "*bf16", "out": "*bf16", "n": "i32", "factor": "fp32"}


def test_a_promise_that_does_not_hold_is_refused_where_it_is_interpreted():
    x = torch.zeros(64, dtype=torch.bfloat16)
    launch = KERNEL.launch(CPU, BF16, PLAIN, divisible={"x": 16, "n": 8})
    launch(1, 1, 1, x, x, 32, 1.0)
    with pytest.raises(DomainError, match=r"x is \d+, promised to be a multiple of 16"):
        launch(1, 1, 1, x[1:], x, 32, 1.0)
    with pytest.raises(DomainError, match="n is 31, promised to be a multiple of 8"):
        launch(1, 1, 1, x, x, 31, 1.0)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((torch.zeros(4), None, 4, 1.0), r"x is torch\.float32, compiled for \*bf16"),
        ((torch.zeros(4).bfloat16(), None, 4, 1.0), r"out is NoneType, compiled for \*bf16"),
        ((*[torch.zeros(4).bfloat16()] * 2, 1 << 31, 1.0), "n is 2147483648, compiled for i32"),
        ((*[torch.zeros(4).bfloat16()] * 2, 4, "a"), "factor is str, compiled for fp32"),
    ],
)
def test_an_argument_of_another_type_is_refused_where_it_is_interpreted(arguments, text):
    with pytest.raises(DomainError, match=text):
        KERNEL.launch(CPU, BF16, PLAIN)(1, 1, 1, *arguments)


@pytest.mark.parametrize(
    ("types", "text"),
    [
        ({"x": "*T", "out": "*T", "n": "i32"}, "differ in factor"),
        ({"x": "*T", "out": "*T", "n": "i32", "factor": "fp32", "BLOCK": "i32"}, "in BLOCK"),
        ({"x": "*T", "out": "* T", "n": "i32", "factor": "fp32"}, r"out has the type '\* T'"),
        ({"x": "i64", "out": "i64", "n": "i32", "factor": "fp32"}, "no argument is a pointer"),
    ],
)
def test_types_that_do_not_fit_are_refused(types, text):
    with pytest.raises(DeclarationError, match=text):
        Kernel(scaled, **types)


def test_what_is_no_kernel_is_refused():
    with pytest.raises(DeclarationError, match=r"not what triton\.jit returns"):
        Kernel(print, x="*T")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"dtypes": {}, "constants": PLAIN}, "dtype variables given and expected differ in T"),
        ({"dtypes": BF16, "constants": {"BLOCK": 32}}, "constants .* differ in TWICE"),
        ({"dtypes": BF16, "constants": PLAIN, "divisible": {"y": 16}}, "differ in .*y"),
        ({"dtypes": BF16, "constants": PLAIN, "divisible": {"n": 6}}, "n divisible by 6"),
        ({"dtypes": {"T": torch.complex64}, "constants": PLAIN}, "no type for torch.complex64"),
    ],
)
def test_a_variant_with_something_missing_or_odd_is_refused(given, text):
    with pytest.raises(DeclarationError, match=text):
        KERNEL.variant(**given)


# --- tuned constants ---------------------------------------------------------------------------

SMALL, LARGE = {"BLOCK": 64, "num_warps": 2}, {"BLOCK": 1024, "num_warps": 8}
KEY = {"dtype": "bfloat16", "hidden": 4096}


def tuned(folder):
    return Tuned("norm", folder, space=lambda _key, _rows: [SMALL], default=lambda _: ((inf, {}),))


def table(folder, rows, **more):
    document = {"schema": 1, "arch": "a1", "measured": {"device": "a"}, "rows": rows} | more
    (folder / "a1.json").write_text(json.dumps(document), encoding="utf-8")


def row(rows, config, **more):
    return {"kernel": "norm", "key": KEY, "rows": rows, "config": config, "us": 1.0} | more


def test_measured_rows_become_buckets_and_equal_neighbours_one(tmp_path):
    rows = [row(512, LARGE), row(1, SMALL), row(32, SMALL), row(8192, LARGE)]
    table(tmp_path, [*rows, row(7, {}, kernel="other"), row(9, {}, key={"dtype": "float32"})])
    found = tuned(tmp_path)
    assert found.buckets("a1", KEY) == ((32, SMALL), (inf, LARGE))
    assert found.buckets("a1", dict(reversed(KEY.items()))) == found.buckets("a1", KEY)
    assert found.measured("a1", KEY)


def test_what_was_not_measured_is_as_the_author_says(tmp_path):
    table(tmp_path, [row(1, SMALL)])
    found = tuned(tmp_path)
    for arch, key in (("a1", KEY | {"hidden": 5}), ("a2", KEY)):
        assert found.buckets(arch, key) == ((inf, {}),)
        assert not found.measured(arch, key)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"schema": 2}', '{"schema": 1}', '{"schema": 1, "rows": [{"kernel": "n"}]}']
)
def test_a_damaged_table_is_named(tmp_path, text):
    (tmp_path / "a1.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"a1\.json"):
        tuned(tmp_path).buckets("a1", KEY)
