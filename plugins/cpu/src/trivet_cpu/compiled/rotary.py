"""rotary_embedding: q and k in one call, in place also on split views of a packed projection."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from trivet.contracts import Term, dtype, equal, implements, one_of, rows
from trivet.errors import DomainError
from trivet_cpu.isa import FLOATS
from trivet_cpu.kernel_library import op, refuse, sources

_SOURCES: Final = sources("rotary.h", "rotary_op.h")
_q = op("rotary_q")
_qk = op("rotary_qk")
_q_inplace = op("rotary_q_")
_qk_inplace = op("rotary_qk_")

_DOMAIN: Final[list[Term]] = [
    dtype("q", *FLOATS),
    equal("k.dtype", "q.dtype"),
    rows("q"),
    rows("k"),
    one_of("pairing", "neox", "interleaved"),
]


def interleaved(pairing: str, name: str = "rotary_embedding") -> bool:
    """Whether neighbours turn together.

    Raises:
        DomainError: no kernel knows this pairing.
    """
    if pairing == "neox":
        return False
    if pairing == "interleaved":
        return True
    msg = f"{name}: pairing is {pairing!r}"
    raise DomainError(msg, fix="use 'neox' or 'interleaved'")


@implements(
    "rotary_embedding@1",
    name="vec",
    domain=_DOMAIN,
    sources=_SOURCES,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
)
def rotary_embedding(
    q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, pairing: str = "neox"
) -> list[Tensor]:
    """Rotates into fresh tensors."""
    try:
        if k is None:
            return [_q(q, cos, sin, interleaved(pairing))]
        return list(_qk(q, k, cos, sin, interleaved(pairing)))
    except RuntimeError as error:
        refuse(error)


@implements(
    "rotary_embedding_@1",
    name="vec",
    domain=_DOMAIN,
    sources=_SOURCES,
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
)
def rotary_embedding_(
    q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, pairing: str = "neox"
) -> None:
    """Rotates ``q`` and ``k`` in place."""
    try:
        if k is None:
            _q_inplace(q, cos, sin, interleaved(pairing))
        else:
            _qk_inplace(q, k, cos, sin, interleaved(pairing))
    except RuntimeError as error:
        refuse(error)
