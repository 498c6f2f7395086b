"""silu and gelu, alone and as the gate of a row: one pass, polynomials in registers."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from trivet.contracts import Term, dtype, implements, one_of, rows
from trivet.errors import DomainError
from trivet_cpu.isa import FLOATS
from trivet_cpu.kernel_library import op, refuse, sources

_SOURCES: Final = sources("activation.h", "activation_op.h")
_silu_and_mul = op("silu_and_mul")
_silu_and_mul_out = op("silu_and_mul_out")
_gelu_and_mul = op("gelu_and_mul")
_gelu_and_mul_out = op("gelu_and_mul_out")
_silu = op("silu")
_silu_inplace = op("silu_")
_silu_out = op("silu_out")
_gelu = op("gelu")
_gelu_inplace = op("gelu_")
_gelu_out = op("gelu_out")

_SILU: Final[list[Term]] = [dtype("x", *FLOATS), rows("x")]
_GELU: Final[list[Term]] = [*_SILU, one_of("approximate", "none", "tanh")]


def _tanh(approximate: str) -> bool:
    if approximate == "none":
        return False
    if approximate == "tanh":
        return True
    msg = f"gelu: approximate is {approximate!r}"
    raise DomainError(msg, fix="use 'none' or 'tanh'")


@implements(
    "silu_and_mul@1",
    name="vec",
    domain=_SILU,
    sources=_SOURCES,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
)
def silu_and_mul(x: Tensor) -> Tensor:
    """Gates the second half of each row with the SiLU of the first, into a fresh tensor."""
    try:
        result: Tensor = _silu_and_mul(x)
    except RuntimeError as error:
        refuse(error)
    return result


@implements(
    "silu_and_mul_out@1",
    name="vec",
    domain=[*_SILU, rows("out")],
    sources=_SOURCES,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
)
def silu_and_mul_out(x: Tensor, *, out: Tensor) -> None:
    """Gates the second half of each row with the SiLU of the first, into ``out``."""
    try:
        _silu_and_mul_out(x, out)
    except RuntimeError as error:
        refuse(error)


@implements(
    "gelu_and_mul@1",
    name="vec",
    domain=_GELU,
    sources=_SOURCES,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
)
def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    """Gates the second half of each row with the GELU of the first, into a fresh tensor."""
    try:
        result: Tensor = _gelu_and_mul(x, _tanh(approximate))
    except RuntimeError as error:
        refuse(error)
    return result


@implements(
    "gelu_and_mul_out@1",
    name="vec",
    domain=[*_GELU, rows("out")],
    sources=_SOURCES,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
)
def gelu_and_mul_out(x: Tensor, approximate: str = "none", *, out: Tensor) -> None:
    """Gates the second half of each row with the GELU of the first, into ``out``."""
    try:
        _gelu_and_mul_out(x, _tanh(approximate), out)
    except RuntimeError as error:
        refuse(error)


@implements(
    "silu@1",
    name="vec",
    domain=_SILU,
    sources=_SOURCES,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
)
def silu(x: Tensor) -> Tensor:
    """Takes the SiLU of each element, into a fresh tensor."""
    try:
        result: Tensor = _silu(x)
    except RuntimeError as error:
        refuse(error)
    return result


@implements(
    "silu_@1",
    name="vec",
    domain=_SILU,
    sources=_SOURCES,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
)
def silu_(x: Tensor) -> None:
    """Takes the SiLU of each element of ``x`` in place."""
    try:
        _silu_inplace(x)
    except RuntimeError as error:
        refuse(error)


@implements(
    "silu_out@1",
    name="vec",
    domain=[*_SILU, rows("out")],
    sources=_SOURCES,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
)
def silu_out(x: Tensor, *, out: Tensor) -> None:
    """Takes the SiLU of each element, into ``out``."""
    try:
        _silu_out(x, out)
    except RuntimeError as error:
        refuse(error)


@implements(
    "gelu@1",
    name="vec",
    domain=_GELU,
    sources=_SOURCES,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
)
def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Takes the GELU of each element, into a fresh tensor."""
    try:
        result: Tensor = _gelu(x, _tanh(approximate))
    except RuntimeError as error:
        refuse(error)
    return result


@implements(
    "gelu_@1",
    name="vec",
    domain=_GELU,
    sources=_SOURCES,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
)
def gelu_(x: Tensor, approximate: str = "none") -> None:
    """Takes the GELU of each element of ``x`` in place."""
    try:
        _gelu_inplace(x, _tanh(approximate))
    except RuntimeError as error:
        refuse(error)


@implements(
    "gelu_out@1",
    name="vec",
    domain=[*_GELU, rows("out")],
    sources=_SOURCES,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
)
def gelu_out(x: Tensor, approximate: str = "none", *, out: Tensor) -> None:
    """Takes the GELU of each element, into ``out``."""
    try:
        _gelu_out(x, _tanh(approximate), out)
    except RuntimeError as error:
        refuse(error)
