from __future__ import annotations

import pytest
import torch

from stand_ins import OPS, make_device, norm_over
from trivet.binding.checks import check_inputs
from trivet.errors import DomainError


@pytest.fixture(autouse=True)
def check(monkeypatch):
    monkeypatch.setenv("TRIVET_CHECK", "1")


def test_views_side_by_side_do_not_overlap():
    qkv = torch.randn(5, 6, 8)
    angle = torch.rand(5, 4)
    make_device().ops.rotary_embedding_(qkv[:, :4], qkv[:, 4:5], angle, angle)
    x = torch.randn(4, 8)
    make_device().ops.fused_add_rms_norm(x, x, torch.ones(8))


def test_tensors_of_one_arena_do_not_overlap_while_their_bytes_do_not():
    arena = torch.zeros(1024, dtype=torch.uint8)
    x, out = arena[:96].view(torch.float32).view(4, 6), arena[96:120].view(torch.bfloat16)
    op = OPS["silu_and_mul"]
    check_inputs(op, "out", {"x": x.bfloat16(), "out": out.view(4, 3)})
    half = arena[:48].view(torch.bfloat16).view(4, 6)
    check_inputs(op, "out", {"x": half, "out": arena[48:72].view(torch.bfloat16).view(4, 3)})
    with pytest.raises(DomainError, match="overlaps 'x'"):
        check_inputs(op, "out", {"x": half, "out": arena[46:70].view(torch.bfloat16).view(4, 3)})
    k_cache = arena[:64].view(torch.float32).view(2, 2, 1, 4)
    fixed = {"k_cache": k_cache, "v_cache": torch.zeros(2, 2, 1, 4)}
    fixed |= {"slots": torch.tensor([0]), "layout": "NHD"}
    narrow = arena[64:68].view(torch.float8_e4m3fn).view(1, 1, 4)
    check_inputs(OPS["kv_cache_write"], "inplace", fixed | {"k": narrow, "v": narrow})
    narrow = arena[60:64].view(torch.float8_e4m3fn).view(1, 1, 4)
    with pytest.raises(DomainError, match="'k_cache' overlaps 'k'"):
        check_inputs(OPS["kv_cache_write"], "inplace", fixed | {"k": narrow, "v": narrow})


def test_tensors_of_one_dtype_variable_agree():
    x = torch.zeros(2, 8)
    given = {"x": x, "residual": x.bfloat16(), "weight": torch.ones(8)}
    given |= {"eps": 1e-6, "weight_offset": 0.0, "weight_in_float32": False, "variance_size": 0}
    with pytest.raises(DomainError, match="residual is bfloat16, x is float32; both are T"):
        check_inputs(OPS["fused_add_rms_norm"], "functional", given)


def test_a_missing_argument_is_named():
    with pytest.raises(TypeError, match="weight"):
        make_device(norm_over).ops.rms_norm(torch.zeros(2, 8))
    bound = make_device().bind("rms_norm", {"hidden": 8})
    with pytest.raises(DomainError, match="argument 'weight' is missing, declared Tensor"):
        bound(torch.zeros(2, 8))
