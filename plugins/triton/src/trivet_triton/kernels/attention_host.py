"""What the attention kernels' callers share: the domain, what a call is, sizes of tiles."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final, NamedTuple, NoReturn

import torch
from torch import Tensor

from trivet.contracts import (
    Term,
    between,
    contiguous,
    divisible,
    dtype,
    equal,
    offset_aligned,
    one_of,
    rows,
)
from trivet.contracts.terms import has_rows
from trivet.errors import DomainError
from trivet_triton.hardware import device_at, shared_kib
from trivet_triton.kernels.row_layout import FLOATS, named, power_of_two, row_stride

LOG2E: Final = 1.4426950408889634
OUT: Final[list[Term]] = [contiguous("out"), offset_aligned("out", 16)]
WIDEST: Final = 256
"""Features of a head; a tile of them must fit the memory that programs share."""

NO_WGMMA: Final = 163
"""KiB of shared memory up to which an architecture multiplies in registers of single warps.

Scores, sums and a tile of queries must fit those registers together; from sm90 on, operands stay
in shared memory.
"""

ALL_REGISTERS: Final = 255
"""As ``maxnreg``: without it the assembler spills a few to fit programs that memory keeps out."""

ENDLESS: Final = 1 << 30
"""A window that hides nothing; positions are 32-bit integers."""

_DTYPES: Final = (torch.float32, torch.float16, torch.bfloat16)

DOMAIN: Final[list[Term]] = [
    dtype("q", *FLOATS),
    equal("k_cache.dtype", "q.dtype"),
    equal("v_cache.dtype", "q.dtype"),
    divisible("head_dim", 16),
    between("head_dim", 16, WIDEST),
    rows("q"),
    contiguous("k_cache"),
    contiguous("v_cache"),
    one_of("layout", "NHD"),
]


class Config(NamedTuple):
    """A config of the kernel for prefill as launches are kept by."""

    BLOCK_M: int
    BLOCK_N: int
    num_warps: int
    num_stages: int
    maxnreg: int = 0
    """Registers of a thread at most; 0 leaves that to the assembler."""
    waves_per_eu: int = 0
    """Warps for which registers are shared out; 0 leaves that to the compiler."""
    matrix_instr_nonkdim: int = 0
    """Rows of a matrix instruction; 0 leaves that to the compiler."""


class Shape(NamedTuple):
    """What variants of the kernels are made for, besides sizes of tiles."""

    ordinal: int
    """Of the device; -1 where programs are interpreted."""
    dtype: torch.dtype
    kv_heads: int
    group: int
    head_dim: int
    page: int
    windowed: bool = False
    capped: bool = False
    aligned: bool = True
    """Whether rows of ``q`` and the caches start at multiples of 16 bytes."""

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.kv_heads * self.group

    @property
    def width(self) -> int:
        """Features of a tile: a power of two."""
        return power_of_two(self.head_dim)

    def key(self, arch: str) -> dict[str, str | int]:
        """What tables of tuned constants go by."""
        return {
            "dtype": named(self.dtype),
            "head_dim": self.head_dim,
            "group": self.group,
            "page": self.page,
            "shared": shared_kib(arch),
        }

    def pieces(self, rows: int) -> tuple[int, int]:
        """How a group is cut into tiles of so many rows: (pieces, heads of each)."""
        count = -(-self.group // rows)
        return count, -(-self.group // count)

    def constants(self, pack: int, pieces: int) -> dict[str, int | bool]:
        """Those constants that the kernels share."""
        return {
            "KV_HEADS": self.kv_heads,
            "GROUP": self.group,
            "PACK": pack,
            "PIECES": pieces,
            "HEAD_DIM": self.head_dim,
            "WIDTH": self.width,
            "PAGE": self.page,
            "PAD": power_of_two(pack * self.head_dim),
            "WINDOWED": self.windowed,
            "CAPPED": self.capped,
            "PRECISE": self.dtype is torch.float32,
        }

    @property
    def promises(self) -> dict[str, int]:
        """What the compiler may rely on."""
        own = {"out": 16, "scratch": 16}
        given = {"q": 16, "k_cache": 16, "v_cache": 16, "q_stride": 8}
        return {**own, **given} if self.aligned else own


class Call(NamedTuple):
    """A call of the operator, as the kernels take it."""

    shape: Shape
    q: Tensor
    q_stride: int
    k_cache: Tensor
    v_cache: Tensor
    block_table: Tensor
    query_start: Tensor
    seq_lens: Tensor
    out: Tensor
    tokens: int
    sequences: int
    longest: int
    """Keys of the longest sequence, at most."""
    window: int
    inner: float
    """Multiplies a score before its soft cap."""
    factor: float
    """Multiplies what comes then: the exponent in base two. Positive."""

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The kernels' first arguments."""
        caches = self.k_cache, self.v_cache
        return self.q, *caches, self.block_table, self.query_start, self.seq_lens, self.out


def opened(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    query_start: Tensor,
    seq_lens: Tensor,
    max_seq_len: int,
    scale: float,
    window: int,
    soft_cap: float,
    layout: str,
    out: Tensor | None,
) -> Call:
    """The call, verified as far as addresses depend on it, with memory for the result.

    Raises:
        DomainError: a tensor or the layout is outside of ``DOMAIN``.
    """
    check(q, k_cache, v_cache, block_table, query_start, seq_lens, layout, out)
    _, page, kv_heads, head_dim = k_cache.shape
    heads, sequences = q.shape[-2], seq_lens.shape[0]
    if scale <= 0:  # the kernels take the largest product for the largest score
        q, scale = (-q, -scale) if scale < 0 else (torch.zeros_like(q), 1.0)
    if window >= ENDLESS:
        window = 0
    if q.dim() == 3:
        tokens = q.shape[0]
        stride = q.stride(0) if tokens != 1 else 0
    else:
        tokens, stride = q.shape[:-2].numel(), row_stride(q, 2)
    low = q.data_ptr() | k_cache.data_ptr() | v_cache.data_ptr() | q.itemsize * stride
    aligned = not (low & 15 or stride % 8)
    made = Shape(
        k_cache.get_device(), q.dtype, kv_heads, heads // kv_heads, head_dim, page,
        window > 0, soft_cap > 0, aligned,
    )  # fmt: skip
    if out is None:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if block_table.stride(1) != 1:
        block_table = block_table.contiguous()
    return Call(
        made, q, stride, k_cache, v_cache, block_table, _dense(query_start), _dense(seq_lens),
        out, tokens, sequences, min(max_seq_len, block_table.shape[1] * page), window,
        *scales_of(scale, soft_cap),
    )  # fmt: skip


def scales_of(scale: float, soft_cap: float) -> tuple[float, float]:
    """What multiplies a score before its soft cap, and what makes the exponent in base two."""
    inner, factor = (scale / soft_cap, soft_cap) if soft_cap else (1.0, scale)
    return inner, factor * LOG2E


def check(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, query_start: Tensor,
    seq_lens: Tensor, layout: str, out: Tensor | None,
) -> None:  # fmt: skip
    """Verifies what addresses depend on.

    Raises:
        DomainError: a tensor or the layout is outside of ``DOMAIN``.
    """
    shape, cache, dims = q.shape, k_cache.shape, block_table.dim()
    if layout != "NHD" or len(cache) != 4 or len(shape) < 2 or dims != 2:
        refuse(f"layout {layout}, k_cache of {len(cache)}, q of {len(shape)} dims")
    if q.dtype not in _DTYPES or not q.dtype == k_cache.dtype == v_cache.dtype:
        refuse(f"q, k_cache, v_cache are {q.dtype}, {k_cache.dtype}, {v_cache.dtype}")
    _, _, kv_heads, head_dim = cache
    heads, sequences, starts = shape[-2], seq_lens.numel(), query_start.numel()
    if shape[-1] != head_dim or v_cache.shape != cache:
        shapes = ", ".join(str(list(t.shape)) for t in (q, k_cache, v_cache))
        refuse(f"q, k_cache, v_cache have shapes {shapes}")
    if head_dim % 16 or not 16 <= head_dim <= WIDEST:
        refuse(f"heads have {head_dim} features")
    if not (k_cache.is_contiguous() and v_cache.is_contiguous()):
        refuse("a cache is not contiguous")
    strides = q.stride()
    if strides[-1] != 1 or (heads > 1 and strides[-2] != head_dim):
        refuse(f"rows of q are not dense: strides {list(strides)}")
    if len(shape) > 3 and not has_rows(shape, strides, 2, 1):
        refuse(f"tokens of q are no single dim: strides {list(strides)}")
    if out is not None and not (out.is_contiguous() and out.data_ptr() % 16 == 0):
        refuse("out is not contiguous, or not aligned to 16 bytes")
    if any(t.dtype is not torch.int32 for t in (block_table, query_start, seq_lens)):
        refuse("block_table, query_start and seq_lens are not all int32")
    if query_start.dim() != 1 or seq_lens.dim() != 1:
        refuse("query_start or seq_lens has not one dim")
    if any(t.device != q.device for t in (k_cache, v_cache, block_table, query_start, seq_lens)):
        refuse(f"the arguments are not all on {q.device}")
    if not kv_heads or heads % kv_heads or sequences + 1 != starts:
        refuse(f"{heads} heads on {kv_heads}, {starts} starts of {sequences} sequences")


def refuse(what: str) -> NoReturn:
    """Refuses a call outside of the domain.

    Raises:
        DomainError: always.
    """
    msg = f"paged_attention: {what}"
    fix = "call it through a bind, which keeps to the domain"
    raise DomainError(msg, operator="paged_attention", fix=fix)


def is_empty(call: Call) -> bool:
    """Whether no program is needed: no row, or no key for any."""
    return not (call.tokens and call.sequences and call.block_table.shape[1] and len(call.k_cache))


def _dense(t: Tensor) -> Tensor:
    return t if t.stride(0) == 1 or len(t) < 2 else t.contiguous()


def row_bytes(key: Mapping[str, Any]) -> int:
    """Bytes of a row of a tile of keys, for a key of a table."""
    return power_of_two(key["head_dim"]) * (4 if key["dtype"] == "float32" else 2)


@cache
def unused(index: int) -> Tensor:
    """Something to pass where a kernel touches no scratch memory."""
    return torch.empty(4, dtype=torch.float32, device=device_at(index))
