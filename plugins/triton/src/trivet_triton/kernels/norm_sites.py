"""rms_norm and fused_add_rms_norm: what one kind of call does on the host, and their sites."""

# ruff: noqa: ARG001  # the scalars of a site are among its facts

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor, empty_like

from trivet_triton.kernels.row_layout import row_stride
from trivet_triton.kernels.rows import VECTOR
from trivet_triton.kernels.sites import Launches, Site, at_bind

Arm = tuple[float, int, int, Callable[..., None]]
"""The most rows it is for, rows a program, most programs, and the launch."""

Choose = Callable[..., tuple[Arm, ...]]
"""The cached look-up of the launches of a kind of call."""

_SCALARS: Final = ("eps", "weight_offset", "weight_in_float32", "variance_size")
_PATHS: Final = ("x.dtype", "weight.dtype", "hidden", *_SCALARS)


def _launches(fused: bool, choose: Choose, kind: tuple[Any, ...], dense: bool | None) -> Any:
    """The launches for aligned tensors and for others; those of a bind are made now."""
    x, weight, hidden, *scalars = kind
    fast = Launches(lambda index: choose(fused, x, weight, hidden, True, index, *scalars))
    slow = Launches(lambda index: choose(fused, x, weight, hidden, False, index, *scalars))
    if dense is not None:
        (slow if hidden % VECTOR else fast).at_home()
    return fast, slow


@cache
def normaliser(
    choose: Choose,
    x_dtype: torch.dtype,
    weight_dtype: torch.dtype,
    hidden: int,
    eps: float,
    weight_offset: float,
    weight_in_float32: bool,
    variance_size: int,
    dense: bool | None = None,
) -> Callable[..., Tensor]:
    """rms_norm into ``y``, which may be ``x``, or into a fresh tensor.

    ``dense`` says whether ``x`` is known to be contiguous; None where there was no bind.
    """
    scalars = (eps, weight_offset, weight_in_float32, variance_size)
    fast, slow = _launches(False, choose, (x_dtype, weight_dtype, hidden, *scalars), dense)

    def run(x: Tensor, weight: Tensor, y: Tensor | None = None) -> Tensor:
        x_stride = hidden if dense or x.is_contiguous() else row_stride(x)
        low = x.data_ptr() | weight.data_ptr() | x_stride << 1
        y_stride = hidden
        if y is None:
            y = empty_like(x)
        elif y is x:
            y_stride = x_stride
        else:
            y_stride = hidden if y.is_contiguous() else row_stride(y)
            low |= y.data_ptr() | y_stride << 1
        count = x.numel() // hidden
        if not count:
            return y
        for most, each, programs, launch in (slow if low & 15 else fast)[x.get_device()]:
            if count <= most:
                grid = -(-count // each)
                launch(
                    grid if grid < programs else programs,  # noqa: FURB136  # min is a call more
                    1, 1, x, weight, y, x_stride, y_stride, count,
                )  # fmt: skip
                break
        return y

    return run


@cache
def adder(
    choose: Choose,
    x_dtype: torch.dtype,
    weight_dtype: torch.dtype,
    hidden: int,
    eps: float,
    weight_offset: float,
    weight_in_float32: bool,
    variance_size: int,
    dense: bool | None = None,
) -> Callable[..., tuple[Tensor, Tensor]]:
    """fused_add_rms_norm into ``y`` and ``total``, which may be the inputs, or into fresh ones.

    ``dense`` says whether both inputs are known to be contiguous; None where there was no bind.
    """
    scalars = (eps, weight_offset, weight_in_float32, variance_size)
    fast, slow = _launches(True, choose, (x_dtype, weight_dtype, hidden, *scalars), dense)

    def run(
        x: Tensor,
        residual: Tensor,
        weight: Tensor,
        y: Tensor | None = None,
        total: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        x_stride = r_stride = hidden
        if not dense:
            x_stride = hidden if x.is_contiguous() else row_stride(x)
            r_stride = hidden if residual.is_contiguous() else row_stride(residual)
        low = x.data_ptr() | residual.data_ptr() | weight.data_ptr() | (x_stride | r_stride) << 1
        y_stride = t_stride = hidden
        if y is None or total is None:
            y, total = empty_like(x), empty_like(residual)
        elif y is x:
            y_stride, t_stride = x_stride, r_stride
        else:
            y_stride = hidden if y.is_contiguous() else row_stride(y)
            t_stride = hidden if total.is_contiguous() else row_stride(total)
            low |= y.data_ptr() | total.data_ptr() | (y_stride | t_stride) << 1
        count = x.numel() // hidden
        if not count:
            return y, total
        for most, each, programs, launch in (slow if low & 15 else fast)[x.get_device()]:
            if count <= most:
                grid = -(-count // each)
                launch(
                    grid if grid < programs else programs,  # noqa: FURB136  # min is a call more
                    1, 1,
                    x, residual, weight, y, total, x_stride, r_stride, y_stride, t_stride, count,
                )  # fmt: skip
                break
        return y, total

    return run


def _norm(run: Site) -> Site:
    def rms_norm(
        x: Tensor,
        weight: Tensor,
        eps: float = 1e-6,
        weight_offset: float = 0.0,
        weight_in_float32: bool = False,
        variance_size: int = 0,
    ) -> Any:
        return run(x, weight)

    return rms_norm


def _norm_(run: Site) -> Site:
    def rms_norm_(
        x: Tensor,
        weight: Tensor,
        eps: float = 1e-6,
        weight_offset: float = 0.0,
        weight_in_float32: bool = False,
        variance_size: int = 0,
    ) -> None:
        run(x, weight, x)

    return rms_norm_


def _add_norm(run: Site) -> Site:
    def fused_add_rms_norm(
        x: Tensor,
        residual: Tensor,
        weight: Tensor,
        eps: float = 1e-6,
        weight_offset: float = 0.0,
        weight_in_float32: bool = False,
        variance_size: int = 0,
    ) -> Any:
        return run(x, residual, weight)

    return fused_add_rms_norm


def _add_norm_(run: Site) -> Site:
    def fused_add_rms_norm_(
        x: Tensor,
        residual: Tensor,
        weight: Tensor,
        eps: float = 1e-6,
        weight_offset: float = 0.0,
        weight_in_float32: bool = False,
        variance_size: int = 0,
    ) -> None:
        run(x, residual, weight, x, residual)

    return fused_add_rms_norm_


_SITES: Final = {
    "rms_norm": (normaliser, _norm, ("x",)),
    "rms_norm_": (normaliser, _norm_, ("x",)),
    "fused_add_rms_norm": (adder, _add_norm, ("x", "residual")),
    "fused_add_rms_norm_": (adder, _add_norm_, ("x", "residual")),
}


def resolving(name: str, choose: Choose) -> Site:
    """The hook ``resolve`` of an operator whose launches ``choose`` looks up."""
    runner, wrap, dense = _SITES[name]
    return at_bind(lambda *kind: wrap(runner(choose, *kind)), *_PATHS, dense=dense)
