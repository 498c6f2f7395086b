"""silu, gelu and their gated forms: one pass through float32."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from trivet.contracts import Term, between, dtype, implements, one_of, rows
from trivet.errors import DomainError
from trivet_metal.dtypes import FLOATS
from trivet_metal.packages import Package
from trivet_metal.row_layout import row_stride, tile

ACTIVATION: Final = Package(
    "activation.metal",
    "activation_{T}",
    ("x: in T*", "y: out T*", "x_stride: int64", "y_stride: int64", "which: int32"),
)
GATE: Final = Package("activation.metal", "gate_{T}", (*ACTIVATION.args, "inter: int32"))
_SILU: Final[list[Term]] = [dtype("x", *FLOATS), rows("x")]
_GATE: Final[list[Term]] = [*_SILU, between("inter", 1, None)]
_GELU: Final = one_of("approximate", "none", "tanh")
_SILU_NUMBER: Final = 0
_GELU_NUMBERS: Final = {"none": 1, "tanh": 2}


def number(approximate: str) -> int:
    """What the kernels call a form of gelu.

    Raises:
        DomainError: there is no such form.
    """
    if approximate not in _GELU_NUMBERS:
        msg = f"gelu: approximate is {approximate!r}"
        raise DomainError(msg, fix="use 'none' or 'tanh'")
    return _GELU_NUMBERS[approximate]


def activate(x: Tensor, y: Tensor, which: int) -> None:
    """Computes each element of ``x`` into ``y``, which may be ``x``."""
    if not x.numel():
        return
    flat = x.is_contiguous() and y.is_contiguous()  # one row is the best of them
    width = x.numel() if flat and x.numel() < 2**31 else x.shape[-1]
    ACTIVATION.at(T=x.dtype)(
        x, y, row_stride(x), row_stride(y), which,
        threads=(width, x.numel() // width), group=tile(width, x.numel() // width),
    )  # fmt: skip


def gate(x: Tensor, y: Tensor, which: int) -> None:
    """Multiplies the activation of each row's first half with its second half into ``y``."""
    if not y.numel():
        return
    inter = y.shape[-1]
    GATE.at(T=x.dtype)(
        x, y, row_stride(x), row_stride(y), which, inter,
        threads=(inter, y.numel() // inter), group=tile(inter, y.numel() // inter),
    )  # fmt: skip


@implements("silu@1", name="metal", domain=_SILU, deterministic=True, batch_invariant=True,
            checks=False)  # fmt: skip
def silu(x: Tensor) -> Tensor:
    """Computes into a fresh tensor."""
    y = x.new_empty(x.shape)
    activate(x, y, _SILU_NUMBER)
    return y


@implements("silu_@1", name="metal", domain=_SILU, deterministic=True, batch_invariant=True,
            checks=False)  # fmt: skip
def silu_(x: Tensor) -> None:
    """Computes in place."""
    activate(x, x, _SILU_NUMBER)


@implements("silu_out@1", name="metal", domain=[*_SILU, rows("out")], deterministic=True,
            batch_invariant=True, checks=False)  # fmt: skip
def silu_out(x: Tensor, *, out: Tensor) -> None:
    """Computes into ``out``."""
    activate(x, out, _SILU_NUMBER)


@implements("gelu@1", name="metal", domain=[*_SILU, _GELU], deterministic=True,
            batch_invariant=True, checks=False)  # fmt: skip
def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Computes into a fresh tensor."""
    y = x.new_empty(x.shape)
    activate(x, y, number(approximate))
    return y


@implements("gelu_@1", name="metal", domain=[*_SILU, _GELU], deterministic=True,
            batch_invariant=True, checks=False)  # fmt: skip
def gelu_(x: Tensor, approximate: str = "none") -> None:
    """Computes in place."""
    activate(x, x, number(approximate))


@implements("gelu_out@1", name="metal", domain=[*_SILU, _GELU, rows("out")], deterministic=True,
            batch_invariant=True, checks=False)  # fmt: skip
def gelu_out(x: Tensor, approximate: str = "none", *, out: Tensor) -> None:
    """Computes into ``out``."""
    activate(x, out, number(approximate))


@implements("silu_and_mul@1", name="metal", domain=_GATE, deterministic=True,
            batch_invariant=True, checks=False)  # fmt: skip
def silu_and_mul(x: Tensor) -> Tensor:
    """Multiplies into a fresh tensor."""
    y = x.new_empty((*x.shape[:-1], x.shape[-1] // 2))
    gate(x, y, _SILU_NUMBER)
    return y


@implements("silu_and_mul_out@1", name="metal", domain=[*_GATE, rows("out")], deterministic=True,
            batch_invariant=True, checks=False)  # fmt: skip
def silu_and_mul_out(x: Tensor, *, out: Tensor) -> None:
    """Multiplies into ``out``."""
    gate(x, out, _SILU_NUMBER)


@implements("gelu_and_mul@1", name="metal", domain=[*_GATE, _GELU], deterministic=True,
            batch_invariant=True, checks=False)  # fmt: skip
def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    """Multiplies into a fresh tensor."""
    y = x.new_empty((*x.shape[:-1], x.shape[-1] // 2))
    gate(x, y, number(approximate))
    return y


@implements("gelu_and_mul_out@1", name="metal", domain=[*_GATE, _GELU, rows("out")],
            deterministic=True, batch_invariant=True, checks=False)  # fmt: skip
def gelu_and_mul_out(x: Tensor, approximate: str = "none", *, out: Tensor) -> None:
    """Multiplies into ``out``."""
    gate(x, out, number(approximate))
