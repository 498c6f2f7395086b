"""silu, gelu and their gated forms: one pass through float32, constants by size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any, Final

import torch
from torch import Tensor, empty_like

from trivet.contracts import Term, between, dtype, implements, one_of, rows
from trivet.errors import DomainError
from trivet.kernels.triton import Kernel, Variant
from trivet.kernels.triton.tuned import Key
from trivet_triton.hardware import arch_at, device_at
from trivet_triton.kernels.activation_kernels import (
    FLAT,
    ROWS,
    TUNED,
    TUNED_FLAT,
)
from trivet_triton.kernels.row_layout import FLOATS, named, row_stride
from trivet_triton.kernels.rows import VECTOR, promises
from trivet_triton.kernels.sites import Launches, Site, at_bind

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
    for most, config in TUNED.buckets(arch_at(index), key):
        given = {"WIDTH": width, "ACT": act, "GATED": gated, **config}
        made = variant(ROWS, x, aligned, given).on(device_at(index))
        blocks = -(-width // config["BLOCK"])
        found.append((most, int(config["ROWS"]), blocks, made))
    return tuple(found)


@cache
def _flat_arms(x: torch.dtype, act: str, aligned: bool, index: int) -> tuple[Arm, ...]:
    """The launches for elements without gaps, by their number."""
    key: Key = {"dtype": named(x), "act": _act(act)}
    found = []
    for most, config in TUNED_FLAT.buckets(arch_at(index), key):
        made = variant(FLAT, x, aligned, {"ACT": act, **config}).on(device_at(index))
        found.append((most, int(config["BLOCK"]), 1, made))
    return tuple(found)


@cache
def _gate(
    act: str, x_dtype: torch.dtype, width: int, dense: bool | None = None
) -> Callable[..., Tensor]:
    """A gated activation into ``y`` or a fresh tensor.

    ``dense`` says whether ``x`` is known to be contiguous; None where there was no bind.
    """
    wide = 2 * width
    fast = Launches(partial(_arms, x_dtype, act, True, width, True))
    slow = Launches(partial(_arms, x_dtype, act, True, width, False))
    if dense is not None:
        (slow if width % VECTOR else fast).at_home()

    def run(x: Tensor, y: Tensor | None = None) -> Tensor:
        count = x.numel() // wide
        x_stride = wide if dense or x.is_contiguous() else row_stride(x)
        low = x.data_ptr() | (x_stride | width) << 1
        y_stride = width
        if y is None:  # integers cost it half as much as a list of them
            flat = x.dim() == 2
            y = x.new_empty(count, width) if flat else x.new_empty(*x.shape[:-1], width)
        else:
            y_stride = width if y.is_contiguous() else row_stride(y)
            low |= y.data_ptr() | y_stride << 1
        if count:
            for most, each, blocks, launch in (slow if low & 15 else fast)[x.get_device()]:
                if count <= most:
                    launch(-(-count // each) * blocks, 1, 1, x, y, x_stride, y_stride, count)
                    break
        return y

    return run


@cache
def _alone(act: str, x_dtype: torch.dtype, dense: bool | None = None) -> Callable[..., Tensor]:
    """An activation into ``y``, which may be ``x``, or into a fresh tensor; ``dense`` as above."""
    fast = Launches(partial(_flat_arms, x_dtype, act, True))
    slow = Launches(partial(_flat_arms, x_dtype, act, False))
    if dense:
        fast.at_home()

    def run(x: Tensor, y: Tensor | None = None) -> Tensor:
        low = x.data_ptr()
        if y is None:
            y = empty_like(x)
        elif y is not x:
            low |= y.data_ptr()
            if not y.is_contiguous():
                return _apart(act, x, y)
        if not (dense or x.is_contiguous()):
            return _apart(act, x, y)
        total = x.numel()
        if total:
            for most, each, _, launch in (slow if low & 15 else fast)[x.get_device()]:
                if total <= most:
                    launch(-(-total // each), 1, 1, x, y, total)
                    break
        return y

    return run


def _apart(act: str, x: Tensor, y: Tensor) -> Tensor:
    """The same where rows of ``x`` or ``y`` have gaps between them."""
    if not x.numel():
        return y
    width = x.shape[-1]
    count = x.numel() // width
    x_stride, y_stride = row_stride(x), row_stride(y)
    low = x.data_ptr() | y.data_ptr() | (x_stride | y_stride) << 1
    for most, each, blocks, launch in _arms(
        x.dtype, act, False, width, not low & 15, x.get_device()
    ):
        if count <= most:
            launch(-(-count // each) * blocks, 1, 1, x, y, x_stride, y_stride, count)
            break
    return y


def _silu_site(runner: Site, *kind: Any) -> Site:
    run = runner("silu", *kind)

    def silu(x: Tensor) -> Any:
        return run(x)

    return silu


def _gelu_site(runner: Site, *kind: Any) -> Site:
    *sizes, act, dense = kind
    run = runner(act, *sizes, dense)

    def gelu(x: Tensor, approximate: str = "none") -> Any:  # noqa: ARG001  # it is a fact
        return run(x)

    return gelu


_DENSE: Final = ("x",)
_SILU_AND_MUL: Final = at_bind(partial(_silu_site, _gate), "x.dtype", "inter", dense=_DENSE)
_GELU_AND_MUL: Final = at_bind(
    partial(_gelu_site, _gate), "x.dtype", "inter", "approximate", dense=_DENSE
)
_SILU_ALONE: Final = at_bind(partial(_silu_site, _alone), "x.dtype", dense=_DENSE)
_GELU_ALONE: Final = at_bind(partial(_gelu_site, _alone), "x.dtype", "approximate", dense=_DENSE)


@implements(
    "silu_and_mul@1",
    name="triton",
    domain=_GATE,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
    checks=False,
    resolve=_SILU_AND_MUL,
)
def silu_and_mul(x: Tensor) -> Tensor:
    """Gates the second half of each row with the SiLU of the first, into a fresh tensor."""
    return _gate("silu", x.dtype, x.shape[-1] >> 1)(x)


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
    _gate("silu", x.dtype, x.shape[-1] >> 1)(x, out)


@implements(
    "gelu_and_mul@1",
    name="triton",
    domain=[*_GATE, _GELU],
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
    checks=False,
    resolve=_GELU_AND_MUL,
)
def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    """Gates the second half of each row with the GELU of the first, into a fresh tensor."""
    return _gate(approximate, x.dtype, x.shape[-1] >> 1)(x)


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
    _gate(approximate, x.dtype, x.shape[-1] >> 1)(x, out)


@implements(
    "silu@1",
    name="triton",
    domain=_SILU,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
    checks=False,
    resolve=_SILU_ALONE,
)
def silu(x: Tensor) -> Tensor:
    """Takes the SiLU of each element, into a fresh tensor."""
    return _alone("silu", x.dtype)(x)


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
    _alone("silu", x.dtype)(x, x)


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
    _alone("silu", x.dtype)(x, out)


@implements(
    "gelu@1",
    name="triton",
    domain=[*_SILU, _GELU],
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
    checks=False,
    resolve=_GELU_ALONE,
)
def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Takes the GELU of each element, into a fresh tensor."""
    return _alone(approximate, x.dtype)(x)


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
    _alone(approximate, x.dtype)(x, x)


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
    _alone(approximate, x.dtype)(x, out)


def variants(arch: str) -> Iterator[tuple[str, Variant]]:
    """Typical variants, for compilation ahead of time."""
    bf16 = torch.bfloat16
    for act in _ACTS:
        for most, config in TUNED_FLAT.defaults(arch, {}):
            yield f"{act}-flat-{most}", variant(FLAT, bf16, True, {"ACT": act, **config})
        for width in (2048, 14336):
            for most, config in TUNED.defaults(arch, {"width": width}):
                given = {"WIDTH": width, "ACT": act, "GATED": True, **config}
                yield f"{act}_and_mul-{width}-{most}", variant(ROWS, bf16, True, given)
