"""qk_rms_norm: q and k in one call, in place also on split views of a packed projection."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from trivet.contracts import Term, dtype, equal, implements, rows
from trivet.errors import DomainError
from trivet_cpu.isa import FLOATS
from trivet_cpu.kernel_library import op, refuse, sources

_SOURCES: Final = sources("norm.h", "norm_op.h", "qk_norm_op.h")
_q = op("q_norm")
_qk = op("qk_norm")
_q_inplace = op("q_norm_")
_qk_inplace = op("qk_norm_")

_DOMAIN: Final[list[Term]] = [
    dtype("q", *FLOATS),
    dtype("q_weight", *FLOATS),
    equal("k.dtype", "q.dtype"),
    equal("k_weight.dtype", "q_weight.dtype"),
    rows("q"),
    rows("k"),
]


def _lone(k: Tensor | None, k_weight: Tensor | None) -> bool:
    """Whether there is q alone.

    Raises:
        DomainError: k or its weight is given without the other one.
    """
    if (k is None) != (k_weight is None):
        msg = "qk_rms_norm: k and k_weight are given together or not at all"
        raise DomainError(msg, fix="pass both, or neither")
    return k is None


@implements(
    "qk_rms_norm@1",
    name="vec",
    domain=_DOMAIN,
    sources=_SOURCES,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
)
def qk_rms_norm(
    q: Tensor,
    k: Tensor | None,
    q_weight: Tensor,
    k_weight: Tensor | None,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
) -> list[Tensor]:
    """Normalises heads into fresh tensors."""
    scalars = (eps, weight_offset, weight_in_float32)
    lone = _lone(k, k_weight)
    try:
        if lone:
            return [_q(q, q_weight, *scalars)]
        return list(_qk(q, k, q_weight, k_weight, *scalars))
    except RuntimeError as error:
        refuse(error)


@implements(
    "qk_rms_norm_@1",
    name="vec",
    domain=_DOMAIN,
    sources=_SOURCES,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
)
def qk_rms_norm_(
    q: Tensor,
    k: Tensor | None,
    q_weight: Tensor,
    k_weight: Tensor | None,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
) -> None:
    """Normalises the heads of ``q`` and ``k`` in place."""
    scalars = (eps, weight_offset, weight_in_float32)
    lone = _lone(k, k_weight)
    try:
        if lone:
            _q_inplace(q, q_weight, *scalars)
        else:
            _qk_inplace(q, k, q_weight, k_weight, *scalars)
    except RuntimeError as error:
        refuse(error)
