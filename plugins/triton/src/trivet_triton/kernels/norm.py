"""rms_norm and fused_add_rms_norm: one launch, constants by the number of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor

from trivet.contracts import Term, between, contiguous, dtype, equal, implements, rows
from trivet.errors import DomainError
from trivet.kernels.triton import Variant
from trivet.kernels.triton.tuned import Key
from trivet_triton.hardware import arch_at, device_at, processors
from trivet_triton.kernels.norm_kernels import (
    FUSED,
    RMS_NORM,
    TUNED,
    TUNED_FUSED,
)
from trivet_triton.kernels.norm_sites import Arm, adder, normaliser, resolving
from trivet_triton.kernels.row_layout import FLOATS, named, rows_of
from trivet_triton.kernels.rows import promises

NORM: Final[list[Term]] = [
    dtype("x", *FLOATS),
    dtype("weight", *FLOATS),
    rows("x"),
    contiguous("weight"),
    between("hidden", 1, None),
]
FUSED_NORM: Final[list[Term]] = [*NORM, equal("residual.dtype", "x.dtype"), rows("residual")]


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
    buckets = (TUNED_FUSED if fused else TUNED).buckets(arch_at(index), key)
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
        made = variant(fused, x, weight, aligned, {**given, **config}).on(device_at(index))
        programs = config["RESIDENT"] * processors(index) or 2**31 - 1
        found.append((most, int(config["ROWS"]), programs, made))
    return tuple(found)


@implements(
    "rms_norm@1",
    name="triton",
    domain=NORM,
    graph_safe=True,
    deterministic=True,
    checks=False,
    resolve=resolving("rms_norm", tuned),
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
    return normaliser(
        tuned, x.dtype, weight.dtype, weight.numel(),
        eps, weight_offset, weight_in_float32, variance_size,
    )(x, weight)  # fmt: skip


@implements(
    "rms_norm_@1",
    name="triton",
    domain=NORM,
    graph_safe=True,
    deterministic=True,
    checks=False,
    resolve=resolving("rms_norm_", tuned),
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
    normaliser(
        tuned, x.dtype, weight.dtype, weight.numel(),
        eps, weight_offset, weight_in_float32, variance_size,
    )(x, weight, x)  # fmt: skip


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
    normaliser(
        tuned, x.dtype, weight.dtype, weight.numel(),
        eps, weight_offset, weight_in_float32, variance_size,
    )(x, weight, out)  # fmt: skip


@implements(
    "fused_add_rms_norm@1",
    name="triton",
    domain=FUSED_NORM,
    graph_safe=True,
    deterministic=True,
    checks=False,
    resolve=resolving("fused_add_rms_norm", tuned),
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
    return adder(
        tuned, x.dtype, weight.dtype, weight.numel(),
        eps, weight_offset, weight_in_float32, variance_size,
    )(x, residual, weight)  # fmt: skip


@implements(
    "fused_add_rms_norm_@1",
    name="triton",
    domain=FUSED_NORM,
    graph_safe=True,
    deterministic=True,
    checks=False,
    resolve=resolving("fused_add_rms_norm_", tuned),
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
    adder(
        tuned, x.dtype, weight.dtype, weight.numel(),
        eps, weight_offset, weight_in_float32, variance_size,
    )(x, residual, weight, x, residual)  # fmt: skip


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
    run = adder(
        tuned, x.dtype, weight.dtype, weight.numel(),
        eps, weight_offset, weight_in_float32, variance_size,
    )  # fmt: skip
    run(x, residual, weight, *rows_of(out))


def variants(arch: str) -> Iterator[tuple[str, Variant]]:
    """Typical variants, for compilation ahead of time."""
    for fused in (False, True):
        for hidden, key in ((h, {"hidden": h}) for h in (128, 2048, 4096, 5120, 7168, 8192)):
            given = constants(hidden, 1e-6, 0.0, weight_in_float32=False, variance_size=0)
            for most, config in (TUNED_FUSED if fused else TUNED).defaults(arch, key):
                name = f"{'fused_add_rms_norm' if fused else 'rms_norm'}-{hidden}-{most}"
                bf16 = torch.bfloat16
                yield name, variant(fused, bf16, bf16, aligned=True, given={**given, **config})
