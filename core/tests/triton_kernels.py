"""Kernels that the tests interpret; imported only where Triton is installed."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rms_norm(x, w, y, hidden, eps, offset, IN32: tl.constexpr, BLOCK: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    f = tl.load(x + row * hidden + i, mask=i < hidden, other=0.0).to(tl.float32)
    f = f * tl.rsqrt(tl.sum(f * f, axis=0) / hidden + eps)
    g = tl.load(w + i, mask=i < hidden, other=0.0)
    if IN32:
        r = f * (g.to(tl.float32) + offset)
    else:
        g = (g.to(tl.float32) + offset).to(w.dtype.element_ty)
        r = f.to(y.dtype.element_ty).to(tl.float32) * g.to(tl.float32)
    tl.store(y + row * hidden + i, r.to(y.dtype.element_ty), mask=i < hidden)


@triton.jit
def silu_and_mul(x, y, inter, BLOCK: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    gate = tl.load(x + row * 2 * inter + i, mask=i < inter, other=0.0).to(tl.float32)
    up = tl.load(x + row * 2 * inter + inter + i, mask=i < inter, other=0.0).to(tl.float32)
    y_row = y + row * inter
    tl.store(y_row + i, (gate * tl.sigmoid(gate) * up).to(y.dtype.element_ty), mask=i < inter)


@triton.jit
def paged(q, k, v, table, out, length, scale, M: tl.constexpr, D: tl.constexpr, B: tl.constexpr):
    """Attention of M queries over a paged cache with blocks of B keys; one program."""
    m, d, b = tl.arange(0, M), tl.arange(0, D), tl.arange(0, B)
    queries = tl.load(q + m[:, None] * D + d[None, :])
    best = tl.full([M], -1e30, tl.float32)
    total = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, D], tl.float32)
    for start in range(0, length, B):
        block = tl.load(table + start // B)
        at = (block * B + b)[:, None] * D + d[None, :]
        s = tl.dot(queries, tl.trans(tl.load(k + at))) * scale
        s = tl.where((start + b)[None, :] < length, s, -1e30)
        now = tl.maximum(best, tl.max(s, axis=1))
        p = tl.exp(s - now[:, None])
        keep = tl.exp(best - now)
        total = total * keep + tl.sum(p, axis=1)
        acc = acc * keep[:, None] + tl.dot(p.to(tl.bfloat16), tl.load(v + at))
        best = now
    made = acc / total[:, None]
    tl.store(out + m[:, None] * D + d[None, :], made.to(tl.bfloat16))


@triton.jit
def add_narrow(x, y, out, total, n: tl.constexpr):
    """A sum in the operands' own format, and all elements added to one place."""
    i = tl.arange(0, n)
    tl.store(out + i, tl.load(x + i) + tl.load(y + i))
    tl.atomic_add(total + i * 0, tl.load(x + i))


@triton.jit
def largest(x, out, rows: tl.constexpr, n: tl.constexpr):
    """The largest of each row, and twice that."""
    row, i = tl.arange(0, rows), tl.arange(0, n)
    top = tl.max(tl.load(x + row[:, None] * n + i[None, :]), axis=1)
    tl.store(out + row, top * 2)
