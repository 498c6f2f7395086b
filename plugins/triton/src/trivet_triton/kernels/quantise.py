"""Quantises to 8-bit floats with a scale that is known before: y = x / scale, cut to what fits.

Two formats share the name fp8: ``float8_e4m3fn`` reaches 448, ``float8_e4m3fnuz`` 240, and equal
bytes mean other numbers. So the format is the architecture's own (``hardware.Architecture.fp8``),
and the largest value follows from it; another format is emulated by the compiler, many
instructions an element, and must be asked for. No operator of the catalogue quantises yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivet.errors import DomainError
from trivet.kernels.triton import Kernel, Variant
from trivet_triton.hardware import arch_at, architecture, device_at
from trivet_triton.kernels.overlap import after_previous, overlap
from trivet_triton.kernels.rows import VECTOR


@triton.jit
def _quantise(
    x: tl.tensor,
    scale: tl.tensor,
    y: tl.tensor,
    count: tl.tensor,
    LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    after_previous(OVERLAP)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    exact = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) / tl.load(scale)
    cut = tl.minimum(tl.maximum(exact, -LARGEST), LARGEST)
    # neither comparison keeps a NaN everywhere, and what it is converted to must not be a number
    cut = tl.where(exact == exact, cut, exact)  # noqa: PLR0124
    tl.store(y + at, cut.to(y.dtype.element_ty), mask=inside)


_KERNEL: Final = Kernel(_quantise, settle=overlap, x="*T", scale="*fp32", y="*E", count="i64")
_WARPS: Final = 4
_FORMATS: Final = (torch.float8_e4m3fn, torch.float8_e4m3fnuz)
_FLOATS: Final = (torch.float32, torch.float16, torch.bfloat16)


def variant(x: torch.dtype, eight: torch.dtype, lanes: int, *, aligned: bool) -> Variant:
    """The kernel for one format; a thread takes 16 bytes of a 16-bit type."""
    return _KERNEL.variant(
        {"T": x, "E": eight},
        {"LARGEST": torch.finfo(eight).max, "BLOCK": _WARPS * lanes * VECTOR},
        divisible=dict.fromkeys(("x", "y", "count"), 16) if aligned else {},
        num_warps=_WARPS,
    )


@cache
def _launch(x: torch.dtype, eight: torch.dtype, index: int, aligned: bool) -> tuple[Any, int]:
    made = variant(x, eight, architecture(arch_at(index)).lanes, aligned=aligned)
    return made.on(device_at(index)), dict(made.constants)["BLOCK"]


def quantise(
    x: Tensor, scale: Tensor, *, dtype: torch.dtype | None = None, emulate: bool = False
) -> Tensor:
    """Quantises into a fresh contiguous tensor of the same shape.

    Args:
        x: float32, float16 or bfloat16, contiguous.
        scale: one float32 above zero, on the device of ``x``.
        dtype: the format; None for the one that the architecture converts to.
        emulate: whether a format is right that it does not convert to.

    Raises:
        DomainError: a tensor is none of these, or the format is emulated and that was not asked.
    """
    index = x.get_device()
    own = architecture(arch_at(index)).fp8
    wanted = own if dtype is None else dtype
    if wanted not in _FORMATS or (wanted is not own and not emulate):
        msg = f"quantise: {arch_at(index)} converts to {own}, not to {wanted or 'an 8-bit format'}"
        raise DomainError(msg, fix="emulate=True with a dtype, which costs many instructions")
    if x.dtype not in _FLOATS or not x.is_contiguous():
        msg = f"quantise: x is {x.dtype}, strides {list(x.stride())}"
        raise DomainError(msg, fix="a contiguous tensor of float32, float16 or bfloat16")
    if scale.dtype is not torch.float32 or scale.numel() != 1 or scale.device != x.device:
        msg = f"quantise: scale is {scale.dtype} {list(scale.shape)} on {scale.device}"
        raise DomainError(msg, fix=f"one float32 on {x.device}")
    y = torch.empty(x.shape, dtype=wanted, device=x.device)
    count = x.numel()
    if count:
        aligned = not (x.data_ptr() | y.data_ptr() | count) & 15
        launch, block = _launch(x.dtype, wanted, index, aligned)
        launch(-(-count // block), 1, 1, x, scale, y, count)
    return y


def variants(arch: str) -> Iterator[tuple[str, Variant]]:
    """For the architecture's own format, where its vendor states one."""
    has = architecture(arch)
    if has.fp8 is not None:
        for x in (torch.bfloat16, torch.float32):
            name = f"quantise/{x}/{has.fp8}".replace("torch.", "")
            yield name, variant(x, has.fp8, has.lanes, aligned=True)
