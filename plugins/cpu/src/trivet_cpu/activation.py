"""silu_and_mul: one pass, a polynomial exponential in registers."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from trivet.contracts import Term, dtype, implements, rows
from trivet_cpu._library import op, refuse, sources

_SOURCES: Final = sources("activation.h", "activation_op.h")
_silu_and_mul = op("silu_and_mul")
_silu_and_mul_out = op("silu_and_mul_out")

_DOMAIN: Final[list[Term]] = [dtype("x", "float32", "bfloat16"), rows("x")]


@implements(
    "silu_and_mul@1",
    name="vec",
    domain=_DOMAIN,
    sources=_SOURCES,
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
    domain=[*_DOMAIN, rows("out")],
    sources=_SOURCES,
    deterministic=True,
    batch_invariant=True,
)
def silu_and_mul_out(x: Tensor, *, out: Tensor) -> None:
    """Gates the second half of each row with the SiLU of the first, into ``out``."""
    try:
        _silu_and_mul_out(x, out)
    except RuntimeError as error:
        refuse(error)
