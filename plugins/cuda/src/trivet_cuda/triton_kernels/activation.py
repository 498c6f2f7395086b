"""silu, gelu and their gated forms: one pass through float32, constants by size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor, empty_like

from trivet.contracts import Term, between, dtype, implements, one_of, rows
from trivet.errors import DomainError
from trivet.kernels.triton import Kernel, Variant
from trivet.kernels.triton.tuned import Key
from trivet_cuda.triton_kernels.activation_kernels import (
    FLAT,
    ROWS,
    TUNED,
    TUNED_FLAT,
    default,
    default_flat,
)
from trivet_cuda.triton_kernels.rows import FLOATS, arch, device, named, promises, stride_of

_SILU: Final[list[Term]] = [dtype("x", *FLOATS), rows("x")]
_GATE: Final[list[Term]] = [*_SILU, between("inter", 1, None)]
_GELU: Final = one_of("approximate", "none", "tanh")
_ACTS: Final = ("silu", "none", "tanh")

Arm = tuple[float, int, int, Callable[..., None]]
"""The most rows it is for, rows a program, programs a row, and the launch."""


def variant(kernel: Kernel, x: torch.dtype, aligned: bool, given: Mapping[str, Any]) -> Variant:
    """A kernel with its constants and options, told apart by their case."""
    strides = "x_stride y_stride" if kernel is ROWS else ""
    return kernel.variant(
        {"T": x},
        {n: v for n, v in given.items() if n.isupper() and n in kernel.constants},
        divisible=promises("x y", strides, aligned=aligned),
        **{n: v for n, v in given.items() if not n.isupper()},
    )


def _act(name: str) -> str:
    if name not in _ACTS:
        raise DomainError(f"gelu: approximate is {name!r}", fix="use 'none' or 'tanh'")
    return name


@cache
def _arms(
    x: torch.dtype, act: str, gated: bool, width: int, aligned: bool, index: int
) -> tuple[Arm, ...]:
    """The launches for rows of one width, by number of rows."""
    key: Key = {"dtype": named(x), "act": _act(act), "gated": gated, "width": width}
    found = []
    for most, config in TUNED.buckets(arch(index), key):
        given = {"WIDTH": width, "ACT": act, "GATED": gated, **config}
        made = variant(ROWS, x, aligned, given).on(device(index))
        blocks = -(-width // config["BLOCK"])
        found.append((most, int(config["ROWS"]), blocks, made))
    return tuple(found)


@cache
def _flat_arms(x: torch.dtype, act: str, aligned: bool, index: int) -> tuple[Arm, ...]:
    """The launches for elements without gaps, by their number."""
    key: Key = {"dtype": named(x), "act": _act(act)}
    found = []
    for most, config in TUNED_FLAT.buckets(arch(index), key):
        made = variant(FLAT, x, aligned, {"ACT": act, **config}).on(device(index))
        found.append((most, int(config["BLOCK"]), 1, made))
    return tuple(found)


def _gate(act: str, x: Tensor, y: Tensor) -> None:
    """Launches a gated activation into ``y``."""
    wide = x.shape[-1]
    width = wide >> 1
    count = x.numel() // wide
    if not count:
        return
    x_stride = wide if x.is_contiguous() else stride_of(x)
    y_stride = width if y.is_contiguous() else stride_of(y)
    low = x.data_ptr() | y.data_ptr() | (x_stride | y_stride | width) << 1
    for most, each, blocks, launch in _arms(
        x.dtype, act, True, width, not low & 15, x.get_device()
    ):
        if count <= most:
            launch(-(-count // each) * blocks, 1, 1, x, y, x_stride, y_stride, count)
            return


def _alone(act: str, x: Tensor, y: Tensor) -> None:
    """Launches an activation into ``y``, which may be ``x``."""
    total = x.numel()
    if not total:
        return
    if x.is_contiguous() and y.is_contiguous():
        aligned = not (x.data_ptr() | y.data_ptr()) & 15
        for most, each, _, launch in _flat_arms(x.dtype, act, aligned, x.get_device()):
            if total <= most:
                launch(-(-total // each), 1, 1, x, y, total)
                return
    width = x.shape[-1]
    count = total // width
    x_stride, y_stride = stride_of(x), stride_of(y)
    low = x.data_ptr() | y.data_ptr() | (x_stride | y_stride) << 1
    for most, each, blocks, launch in _arms(
        x.dtype, act, False, width, not low & 15, x.get_device()
    ):
        if count <= most:
            launch(-(-count // each) * blocks, 1, 1, x, y, x_stride, y_stride, count)
            return


@implements(
    "silu_and_mul@1",
    name="triton",
    domain=_GATE,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
    checks=False,
)
def silu_and_mul(x: Tensor) -> Tensor:
    """Gates the second half of each row with the SiLU of the first, into a fresh tensor."""
    shape = list(x.shape)
    shape[-1] >>= 1
    y = x.new_empty(shape)
    _gate("silu", x, y)
    return y


@implements(
    "silu_and_mul_out@1",
    name="triton",
    domain=[*_GATE, rows("out")],
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
    checks=False,
)
def silu_and_mul_out(x: Tensor, *, out: Tensor) -> None:
    """Gates the second half of each row with the SiLU of the first, into ``out``."""
    _gate("silu", x, out)


@implements(
    "gelu_and_mul@1",
    name="triton",
    domain=[*_GATE, _GELU],
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
    checks=False,
)
def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    """Gates the second half of each row with the GELU of the first, into a fresh tensor."""
    shape = list(x.shape)
    shape[-1] >>= 1
    y = x.new_empty(shape)
    _gate(approximate, x, y)
    return y


@implements(
    "gelu_and_mul_out@1",
    name="triton",
    domain=[*_GATE, _GELU, rows("out")],
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
    checks=False,
)
def gelu_and_mul_out(x: Tensor, approximate: str = "none", *, out: Tensor) -> None:
    """Gates the second half of each row with the GELU of the first, into ``out``."""
    _gate(approximate, x, out)


@implements(
    "silu@1",
    name="triton",
    domain=_SILU,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
    checks=False,
)
def silu(x: Tensor) -> Tensor:
    """Takes the SiLU of each element, into a fresh tensor."""
    y = empty_like(x)
    _alone("silu", x, y)
    return y


@implements(
    "silu_@1",
    name="triton",
    domain=_SILU,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
    checks=False,
)
def silu_(x: Tensor) -> None:
    """Takes the SiLU of each element of ``x`` in place."""
    _alone("silu", x, x)


@implements(
    "silu_out@1",
    name="triton",
    domain=[*_SILU, rows("out")],
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
    checks=False,
)
def silu_out(x: Tensor, *, out: Tensor) -> None:
    """Takes the SiLU of each element, into ``out``."""
    _alone("silu", x, out)


@implements(
    "gelu@1",
    name="triton",
    domain=[*_SILU, _GELU],
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
    checks=False,
)
def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Takes the GELU of each element, into a fresh tensor."""
    y = empty_like(x)
    _alone(approximate, x, y)
    return y


@implements(
    "gelu_@1",
    name="triton",
    domain=[*_SILU, _GELU],
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
    checks=False,
)
def gelu_(x: Tensor, approximate: str = "none") -> None:
    """Takes the GELU of each element of ``x`` in place."""
    _alone(approximate, x, x)


@implements(
    "gelu_out@1",
    name="triton",
    domain=[*_SILU, _GELU, rows("out")],
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
    checks=False,
)
def gelu_out(x: Tensor, approximate: str = "none", *, out: Tensor) -> None:
    """Takes the GELU of each element, into ``out``."""
    _alone(approximate, x, out)


def variants(arch: str) -> Iterator[tuple[str, Variant]]:
    """Typical variants, for compilation ahead of time."""
    del arch
    bf16 = torch.bfloat16
    for act in _ACTS:
        for most, config in default_flat({}):
            yield f"{act}-flat-{most}", variant(FLAT, bf16, True, {"ACT": act, **config})
        for width in (2048, 14336):
            for most, config in default({"width": width}):
                given = {"WIDTH": width, "ACT": act, "GATED": True, **config}
                yield f"{act}_and_mul-{width}-{most}", variant(ROWS, bf16, True, given)
