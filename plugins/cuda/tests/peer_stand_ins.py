"""Packages that stand in for the peers: their names and argument orders, plain torch inside."""

from __future__ import annotations

from pathlib import Path

NUMERICS = """
import torch

def norm(x, weight, eps, offset=0.0, early=False):
    f = x.float()
    f = f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + eps)
    if early:
        f = f.to(x.dtype)
    return (f * (weight.float() + offset)).to(x.dtype)

def turned(t, cos, sin, interleaved):
    n = cos.shape[-1]
    c, s, f = cos.unsqueeze(-2), sin.unsqueeze(-2), t.float()
    a, b = (f[..., 0:2*n:2], f[..., 1:2*n:2]) if interleaved else (f[..., :n], f[..., n:2*n])
    pair = (a * c - b * s, b * c + a * s)
    done = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    return torch.cat((done.to(t.dtype), t[..., 2*n:]), -1)
"""

LIGER = """
import torch
from torch.nn import functional
from numerics import norm

class LigerRMSNormFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, X, W, eps, offset=0.0, casting_mode="llama", in_place=True, row_mode=None):
        return norm(X, W, eps, offset, {"llama": True, "gemma": False}[casting_mode])

class LigerFusedAddRMSNormFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, X, R, W, eps, offset=0.0, casting_mode="llama", in_place=False):
        S = X + R
        return norm(S, W, eps, offset, {"llama": True, "gemma": False}[casting_mode]), S

class LigerFusedGateUpSiLUMulFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, in_place=False):
        gate, up = y.chunk(2, -1)
        return functional.silu(gate.float()).to(y.dtype) * up

class LigerGELUMulFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        return functional.gelu(a.float(), approximate="tanh").to(a.dtype) * b
"""

GEMS = """
import torch
from torch.nn import functional
from numerics import norm, turned

def rms_norm(x, normalized_shape, weight, eps=1e-5):
    assert tuple(normalized_shape) == tuple(weight.shape)
    return norm(x, weight, eps)

def fused_add_rms_norm(x, residual, normalized_shape, weight, eps=1e-5):
    assert tuple(normalized_shape) == tuple(weight.shape)
    total = x.float() + residual.float()
    residual.copy_(total)
    x.copy_(norm(total, weight, eps))
    return x, residual

def silu_and_mul(A, B):
    return (functional.silu(A.float()) * B).to(A.dtype)

def gelu_and_mul(x, y, approximate="none"):
    return (functional.gelu(x.float(), approximate=approximate) * y).to(x.dtype)

def apply_rotary_pos_emb(
    q, k, cos, sin, position_ids=None, rotary_interleaved=False, inplace=False
):
    assert cos.shape[-1] * 2 == q.shape[-1] and not inplace
    c, s = cos[position_ids], sin[position_ids]
    return tuple(turned(t, c, s, rotary_interleaved) for t in (q, k))

def reshape_and_cache_flash(
    key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, k_scale, v_scale
):
    assert kv_cache_dtype == "auto" and float(k_scale) == float(v_scale) == 1
    for i, slot in enumerate(slot_mapping.tolist()):
        if slot >= 0:
            place = divmod(slot, key_cache.shape[1])
            key_cache[place], value_cache[place] = key[i], value[i]
"""

INFER = """
import torch
from torch.nn import functional
from numerics import norm, turned

def rmsnorm(input, weight, eps=1e-6, out=None, enable_pdl=None):
    return norm(input, weight, eps)

def gemma_rmsnorm(input, weight, eps=1e-6, out=None, enable_pdl=None):
    return norm(input, weight, eps, 1.0)

def fused_add_rmsnorm(input, residual, weight, eps=1e-6, enable_pdl=None, offset=0.0):
    total = input.float() + residual.float()
    residual.copy_(total)
    input.copy_(norm(total, weight, eps, offset))

def gemma_fused_add_rmsnorm(input, residual, weight, eps=1e-6, enable_pdl=None):
    fused_add_rmsnorm(input, residual, weight, eps, enable_pdl, 1.0)

def _gate(x, act):
    a, b = x.float().chunk(2, -1)
    return (act(a) * b).to(x.dtype)

def silu_and_mul(input, out=None, enable_pdl=None):
    return _gate(input, functional.silu)

def gelu_and_mul(input, out=None, enable_pdl=None):
    return _gate(input, functional.gelu)

def gelu_tanh_and_mul(input, out=None, enable_pdl=None):
    return _gate(input, lambda a: functional.gelu(a, approximate="tanh"))

def apply_rope_with_cos_sin_cache_inplace(
    positions, query, key, head_size, cos_sin_cache, is_neox=True
):
    assert head_size == query.shape[-1] and cos_sin_cache.dtype == torch.float32
    cos, sin = cos_sin_cache[positions].chunk(2, -1)
    for t in (query, key):
        t.copy_(turned(t, cos, sin, not is_neox))
"""

QUACK = """
from numerics import norm

def rmsnorm(
    x, weight=None, bias=None, residual=None, out_dtype=None, residual_dtype=None, eps=1e-6,
    prenorm=False, weight_offset=0.0,
):
    assert bias is None and prenorm == (residual is not None)
    if residual is None:
        return norm(x, weight, eps, weight_offset)
    total = x.float() + residual.float()
    return norm(total, weight, eps, weight_offset).to(x.dtype), total.to(residual.dtype)
"""

PACKAGES = {
    "numerics": NUMERICS,
    "liger_kernel": "",
    "liger_kernel.ops": LIGER,
    "flag_gems": GEMS,
    "flashinfer": INFER,
    "quack": QUACK,
}


def write(folder: Path) -> None:
    """Writes each as a package into a folder."""
    for name, text in PACKAGES.items():
        home = folder.joinpath(*name.split("."))
        home.mkdir(parents=True, exist_ok=True)
        (home / "__init__.py").write_text(text, encoding="utf-8")
