"""rms_norm and fused_add_rms_norm: one launch, constants by the number of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor, empty_like

from trivet.contracts import Term, between, contiguous, dtype, equal, implements, rows
from trivet.errors import DomainError
from trivet.kernels.triton import Variant
from trivet.kernels.triton.tuned import Key
from trivet_cuda.triton_kernels.norm_kernels import (
    FUSED,
    RMS_NORM,
    TUNED,
    TUNED_FUSED,
    default,
    default_fused,
)
from trivet_cuda.triton_kernels.rows import (
    FLOATS,
    arch,
    device,
    named,
    processors,
    promises,
    rows_of,
    stride_of,
)

NORM: Final[list[Term]] = [
    dtype("x", *FLOATS),
    dtype("weight", *FLOATS),
    rows("x"),
    contiguous("weight"),
    between("hidden", 1, None),
]
FUSED_NORM: Final[list[Term]] = [*NORM, equal("residual.dtype", "x.dtype"), rows("residual")]

Arm = tuple[float, int, int, Callable[..., None]]
"""The most rows it is for, rows a program, most programs, and the launch."""

Choose = Callable[..., tuple[Arm, ...]]
"""The cached look-up of the launches of a kind of call."""


def constants(
    hidden: int, eps: float, weight_offset: float, weight_in_float32: bool, variance_size: int
) -> dict[str, Any]:
    """What is compiled in besides a config.

    Raises:
        DomainError: a row has no such prefix.
    """
    if not 0 <= variance_size <= hidden:
        msg = f"variance_size={variance_size} in rows of {hidden} elements"
        raise DomainError(msg, fix="pass 0 for the whole row, or at most its length")
    return {
        "HIDDEN": hidden,
        "VARIANCE": variance_size or hidden,
        "EPS": float(eps),
        "OFFSET": float(weight_offset),
        "IN_FLOAT32": bool(weight_in_float32),
    }


def variant(
    fused: bool, x: torch.dtype, weight: torch.dtype, aligned: bool, given: dict[str, Any]
) -> Variant:
    """A kernel with its constants and options, told apart by their case."""
    kernel = FUSED if fused else RMS_NORM
    pointers = "x residual weight y total" if fused else "x weight y"
    strides = "x_stride r_stride y_stride t_stride" if fused else "x_stride y_stride"
    return kernel.variant(
        {"T": x, "W": weight},
        {n: v for n, v in given.items() if n.isupper()},
        divisible=promises(pointers, strides, aligned=aligned),
        **{n: v for n, v in given.items() if not n.isupper()},
    )


@cache
def tuned(
    fused: bool,
    x: torch.dtype,
    weight: torch.dtype,
    hidden: int,
    aligned: bool,
    index: int,
    *scalars: Any,
) -> tuple[Arm, ...]:
    """The launches of one kind of call, by number of rows."""
    key: Key = {"dtype": named(x), "weight": named(weight), "hidden": hidden}
    buckets = (TUNED_FUSED if fused else TUNED).buckets(arch(index), key)
    return arms(buckets, fused, x, weight, hidden, aligned, index, *scalars)


def arms(
    buckets: Iterable[tuple[float, Mapping[str, Any]]],
    fused: bool,
    x: torch.dtype,
    weight: torch.dtype,
    hidden: int,
    aligned: bool,
    index: int,
    *scalars: Any,
) -> tuple[Arm, ...]:
    """A launch for each config."""
    given = constants(hidden, *scalars)
    found = []
    for most, config in buckets:
        made = variant(fused, x, weight, aligned, {**given, **config}).on(device(index))
        programs = config["RESIDENT"] * processors(index) or 2**31 - 1
        found.append((most, int(config["ROWS"]), programs, made))
    return tuple(found)


def normalise(choose: Choose, x: Tensor, weight: Tensor, y: Tensor, *scalars: Any) -> None:
    """Launches rms_norm from ``x`` into ``y``, which may be ``x``."""
    hidden = weight.numel()
    count = x.numel() // hidden
    if not count:
        return
    x_stride = hidden if x.is_contiguous() else stride_of(x)
    y_stride = hidden if y.is_contiguous() else stride_of(y)
    low = x.data_ptr() | weight.data_ptr() | y.data_ptr() | (x_stride | y_stride) << 1
    index = x.get_device()
    for most, each, programs, launch in choose(
        False, x.dtype, weight.dtype, hidden, not low & 15, index, *scalars
    ):
        if count <= most:
            grid = -(-count // each)
            launch(
                grid if grid < programs else programs,  # noqa: FURB136  # min is a call more
                1, 1, x, weight, y, x_stride, y_stride, count,
            )  # fmt: skip
            return


def add_and_normalise(
    choose: Choose,
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    y: Tensor,
    total: Tensor,
    *scalars: Any,
) -> None:
    """Launches fused_add_rms_norm into ``y`` and ``total``, which may be ``x`` and ``residual``."""
    hidden = weight.numel()
    count = x.numel() // hidden
    if not count:
        return
    x_stride = hidden if x.is_contiguous() else stride_of(x)
    r_stride = hidden if residual.is_contiguous() else stride_of(residual)
    y_stride, t_stride = x_stride, r_stride
    low = x.data_ptr() | residual.data_ptr() | weight.data_ptr()
    if y is not x:
        y_stride = hidden if y.is_contiguous() else stride_of(y)
        t_stride = hidden if total.is_contiguous() else stride_of(total)
        low |= y.data_ptr() | total.data_ptr()
    low |= (x_stride | r_stride | y_stride | t_stride) << 1
    for most, each, programs, launch in choose(
        True, x.dtype, weight.dtype, hidden, not low & 15, x.get_device(), *scalars
    ):
        if count <= most:
            grid = -(-count // each)
            launch(
                grid if grid < programs else programs,  # noqa: FURB136  # min is a call more
                1, 1,
                x, residual, weight, y, total, x_stride, r_stride, y_stride, t_stride, count,
            )  # fmt: skip
            return


@implements(
    "rms_norm@1",
    name="triton",
    domain=NORM,
    graph_safe=True,
    deterministic=True,
    checks=False,
)
def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> Tensor:
    """Normalises rows into a fresh tensor."""
    y = empty_like(x)
    normalise(tuned, x, weight, y, eps, weight_offset, weight_in_float32, variance_size)
    return y


@implements(
    "rms_norm_@1",
    name="triton",
    domain=NORM,
    graph_safe=True,
    deterministic=True,
    checks=False,
)
def rms_norm_(
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> None:
    """Normalises the rows of ``x`` in place."""
    normalise(tuned, x, weight, x, eps, weight_offset, weight_in_float32, variance_size)


@implements(
    "rms_norm_out@1",
    name="triton",
    domain=[*NORM, rows("out")],
    graph_safe=True,
    deterministic=True,
    checks=False,
)
def rms_norm_out(
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
    *,
    out: Tensor,
) -> None:
    """Normalises rows into ``out``."""
    normalise(tuned, x, weight, out, eps, weight_offset, weight_in_float32, variance_size)


@implements(
    "fused_add_rms_norm@1",
    name="triton",
    domain=FUSED_NORM,
    graph_safe=True,
    deterministic=True,
    checks=False,
)
def fused_add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> tuple[Tensor, Tensor]:
    """Adds and normalises into two fresh tensors."""
    y, total = empty_like(x), empty_like(residual)
    add_and_normalise(
        tuned, x, residual, weight, y, total, eps, weight_offset, weight_in_float32, variance_size
    )
    return y, total


@implements(
    "fused_add_rms_norm_@1",
    name="triton",
    domain=FUSED_NORM,
    graph_safe=True,
    deterministic=True,
    checks=False,
)
def fused_add_rms_norm_(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
) -> None:
    """Adds into ``residual`` and normalises into ``x``."""
    add_and_normalise(
        tuned,
        x,
        residual,
        weight,
        x,
        residual,
        eps,
        weight_offset,
        weight_in_float32,
        variance_size,
    )


@implements(
    "fused_add_rms_norm_out@1",
    name="triton",
    domain=FUSED_NORM,
    graph_safe=True,
    deterministic=True,
    checks=False,
)
def fused_add_rms_norm_out(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
    variance_size: int = 0,
    *,
    out: list[Tensor],
) -> None:
    """Adds and normalises into ``out``: the normalised rows, then the sum."""
    y, total = rows_of(out)
    add_and_normalise(
        tuned, x, residual, weight, y, total, eps, weight_offset, weight_in_float32, variance_size
    )


def variants(arch: str) -> Iterator[tuple[str, Variant]]:
    """Typical variants, for compilation ahead of time."""
    del arch
    for fused in (False, True):
        for hidden, key in ((h, {"hidden": h}) for h in (128, 2048, 4096, 5120, 7168, 8192)):
            given = constants(hidden, 1e-6, 0.0, weight_in_float32=False, variance_size=0)
            for most, config in (default_fused if fused else default)(key):
                name = f"{'fused_add_rms_norm' if fused else 'rms_norm'}-{hidden}-{most}"
                bf16 = torch.bfloat16
                yield name, variant(fused, bf16, bf16, aligned=True, given={**given, **config})
