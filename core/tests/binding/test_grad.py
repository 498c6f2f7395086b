from __future__ import annotations

import pytest
import torch

from stand_ins import (
    OPS,
    fused_over,
    linear_turned,
    make_device,
    norm_over,
    norm_vec,
    rotary_into,
    sample_top,
    silu_into,
)
from trivet.errors import GradUnsupported


def gradients(function, inputs, scalars):
    inputs = [t.detach().clone().requires_grad_() for t in inputs]
    result = function(*inputs, **scalars)
    total = sum(r.pow(2).sum() for r in ([result] if isinstance(result, torch.Tensor) else result))
    return torch.autograd.grad(total, inputs)


def by_difference(function, inputs, scalars):
    def total(*tensors):
        result = function(*tensors, **scalars)
        parts = [result] if isinstance(result, torch.Tensor) else result
        return sum(r.pow(2).sum() for r in parts)

    found = []
    for i, t in enumerate(inputs):
        grad = torch.zeros_like(t)
        for j in range(t.numel()):
            moved = []
            for step in (1e-6, -1e-6):
                others = [u.clone() for u in inputs]
                others[i].view(-1)[j] += step
                moved.append(total(*others))
            grad.view(-1)[j] = (moved[0] - moved[1]) / 2e-6
        found.append(grad)
    return found


@pytest.mark.parametrize(
    ("name", "shapes", "scalars"),
    [
        ("rms_norm", [(2, 3), (3,)], {"weight_offset": 1.0}),
        ("rms_norm", [(2, 3), (3,)], {"weight_in_float32": True}),
        ("fused_add_rms_norm", [(2, 3), (2, 3), (3,)], {}),
        ("silu_and_mul", [(2, 6)], {}),
    ],
)
def test_inputs_that_require_grad_go_to_the_reference_and_get_right_gradients(
    name, shapes, scalars
):
    dev = make_device(norm_vec, norm_over, fused_over, silu_into)
    inputs = [torch.randn(s, dtype=torch.float64) for s in shapes]
    bound = dev.ops.__getattr__(name)
    for have, want in zip(
        gradients(bound, inputs, scalars), by_difference(bound, inputs, scalars), strict=True
    ):
        torch.testing.assert_close(have, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("which", ["x", "packed", "bias"])
def test_a_gradient_through_any_tensor_counts(which):
    dev = make_device(linear_turned)
    given = {"x": torch.randn(2, 4), "packed": [torch.randn(3, 4)], "out_features": 3,
             "bias": torch.randn(3)}  # fmt: skip
    leaf = given["packed"][0] if which == "packed" else given[which]
    leaf.requires_grad_()
    result = dev.ops.linear_packed(**given)
    assert result.requires_grad
    expected = OPS["linear_packed"].reference(**given)
    assert torch.equal(result, expected)
    result.sum().backward()
    assert leaf.grad is not None


def test_without_grad_mode_the_vendor_runs():
    calls = []
    dev = make_device(sample_top)
    bound = dev.ops.sample_token
    logits = torch.randn(2, 5, requires_grad=True)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            calls.append(bound(logits))
    assert all(torch.equal(c, logits.argmax(-1)) for c in calls)


def test_an_absent_optional_requires_nothing():
    bound = make_device(rotary_into).ops.rotary_embedding
    q, angle = torch.randn(2, 3, 8), torch.rand(2, 4)
    (plain,) = bound(q, None, angle, angle)
    (graded,) = bound(q.clone().requires_grad_(), None, angle, angle)
    assert torch.equal(plain, graded.detach())
    assert graded.requires_grad
    assert not plain.requires_grad


def test_strict_raises_and_names_operator_and_providers():
    dev = make_device(norm_vec, norm_over, strict=True)
    x = torch.randn(2, 8, requires_grad=True)
    with pytest.raises(GradUnsupported) as caught:
        dev.ops.rms_norm(x, torch.ones(8))
    assert caught.value.what == (
        "rms_norm: an input requires grad, and acme/vec, acme/over are forward only"
    )
    assert "torch.no_grad()" in caught.value.fix
    with torch.no_grad():
        assert dev.ops.rms_norm(x, torch.ones(8)).shape == (2, 8)


def test_forms_that_write_have_no_gradient():
    dev = make_device(norm_over)
    x = torch.randn(2, 8, requires_grad=True)
    with pytest.raises(GradUnsupported):
        dev.ops.rms_norm_(x, torch.ones(8))
    with torch.no_grad():
        dev.ops.rms_norm_(x, torch.ones(8))


def test_a_forbidden_reference_is_not_a_way_out(monkeypatch):
    monkeypatch.setenv("TRIVET_FORBID", "rms_norm=reference")
    dev = make_device(norm_over)
    with pytest.raises(GradUnsupported):
        dev.ops.rms_norm(torch.randn(2, 8, requires_grad=True), torch.ones(8))
