from __future__ import annotations

import pytest
import torch

from stand_ins import OPS, make_device, norm_big, norm_small, norm_vec
from trivet.errors import GradUnsupported, PromiseBroken

NORM = {"x": torch.randn(4, 8), "weight": torch.ones(8)}
WIDE = torch.randn(4, 16)[:, :8]
ANGLE = torch.rand(4, 4)
ROTARY = {"q": torch.randn(4, 2, 8), "k": None, "cos": ANGLE, "sin": ANGLE}


@pytest.fixture(autouse=True)
def check(monkeypatch):
    monkeypatch.setenv("TRIVET_CHECK", "1")


@pytest.mark.parametrize(
    ("name", "facts", "arguments", "problem"),
    [
        ("rms_norm", {"dtype": "bfloat16"}, NORM,
         "promised x.dtype = torch.bfloat16, got torch.float32"),
        ("rms_norm", {"hidden": 16}, NORM, "promised hidden = 16, got 8"),
        ("rms_norm", {"tokens": range(1, 4)}, NORM, "promised tokens = 1..3, got 4"),
        ("rms_norm", {"tokens": range(5, 9)}, NORM, "promised tokens = 5..8, got 4"),
        ("rms_norm", {"rank": 3}, NORM, "promised x.rank = 3, got 2"),
        ("rms_norm", {"contiguous": True}, NORM | {"x": WIDE},
         "promised x.contiguous = True, got shape [4, 8], strides [16, 1]"),
        ("rms_norm", {"x.rows": 8}, NORM | {"x": torch.randn(4, 12)[:, :8]},
         "promised x.rows = 8, got shape [4, 8], strides [12, 1]"),
        ("rms_norm", {"x.offset_aligned": 16}, NORM | {"x": torch.randn(5, 9)[:4, 1:]},
         "promised x.offset_aligned = 16"),
        ("rms_norm", {"eps": 1e-5}, NORM, "promised eps = 1e-05, got 1e-06"),
        ("rotary_embedding", {"k": "given"}, ROTARY, "promised k = present, got nothing"),
        ("rotary_embedding", {"k": None}, ROTARY | {"k": ROTARY["q"]}, "promised k = None, got p"),
        ("rotary_embedding", {"pairing": "interleaved"}, ROTARY, "promised pairing = interleaved"),
    ],
)  # fmt: skip
def test_a_broken_promise_is_named(name, facts, arguments, problem):
    with pytest.raises(PromiseBroken) as caught:
        make_device().bind(name, facts)(**arguments)
    assert caught.value.what.startswith(f"{name} (reference): promised ")
    assert problem in caught.value.what
    assert caught.value.fix


@pytest.mark.parametrize(
    ("name", "facts", "arguments"),
    [
        ("rms_norm", {"tokens": range(4, 5), "hidden": 8, "contiguous": True, "x.rows": 8}, NORM),
        ("rms_norm", {"x.rows": 8, "x.offset_aligned": 4}, NORM | {"x": WIDE}),
        ("rotary_embedding", {"kv_heads": range(1, 9), "k.contiguous": True, "k.rank": 3}, ROTARY),
        ("rotary_embedding", {"kv_heads": 5, "heads": 2}, ROTARY),
    ],
)
def test_a_kept_promise_is_no_trouble(name, facts, arguments):
    make_device().bind(name, facts)(**arguments)


def test_a_site_promises_the_defaults_of_its_scalars():
    plan = make_device(norm_vec).plan({"norm": ("rms_norm", {})})
    with pytest.raises(PromiseBroken, match=r"weight_offset = 0\.0, got 1\.0"):
        plan.norm(**NORM, weight_offset=1.0)
    plan.norm(**NORM)


def test_a_step_promises_its_bucket_not_its_number():
    plan = make_device(norm_small, norm_big).plan({"norm": ("rms_norm", {})})
    step = plan.at(tokens=3)
    step.norm(**NORM)
    with pytest.raises(PromiseBroken) as caught:
        step.norm(torch.randn(20, 8), torch.ones(8))
    assert "this step promised between(tokens, 1, 16) to be True" in caught.value.what
    assert caught.value.what.startswith("rms_norm (acme/small, site 'norm'): ")
    with pytest.raises(PromiseBroken, match=r"promised between\(tokens, 1, 16\) to be False"):
        plan.at(tokens=30).norm(**NORM)
    plan.at().norm(torch.randn(20, 8), torch.ones(8))


def test_checked_kernels_are_forward_only():
    x = torch.randn(4, 8, requires_grad=True)
    bound = make_device(norm_small).bind("rms_norm", {"tokens": 4})
    with pytest.raises(GradUnsupported, match=r"rms_norm \(acme/small\) is forward only, and 'x'"):
        bound(x, torch.ones(8))
    with torch.no_grad():
        bound(x, torch.ones(8))
    reference = make_device().bind("rms_norm", {"tokens": 4})
    assert reference(x, torch.ones(8)).requires_grad
    unproved = make_device(norm_small).ops.rms_norm
    assert unproved(x, torch.ones(8)).requires_grad, "no promise: the reference has gradients"


def test_unchecked_binds_do_not_look(monkeypatch):
    monkeypatch.delenv("TRIVET_CHECK")
    bound = make_device(norm_small).bind("rms_norm", {"tokens": 4})
    assert bound is norm_small
    expected = OPS["rms_norm"].reference(torch.ones(9, 8), torch.ones(8))
    assert torch.equal(bound(torch.ones(9, 8), torch.ones(8)), expected)


def test_checked_plans_are_their_own(monkeypatch):
    dev = make_device(norm_small)
    checked = dev.plan({"norm": ("rms_norm", {"tokens": 4})})
    assert dev.plan({"norm": ("rms_norm", {"tokens": 4})}) is checked
    monkeypatch.delenv("TRIVET_CHECK")
    plain = dev.plan({"norm": ("rms_norm", {"tokens": 4})})
    assert plain.norm is norm_small
    assert plain != checked
    assert plain.digest == checked.digest
