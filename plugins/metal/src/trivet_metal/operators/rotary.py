"""rotary_embedding: q and k in one launch, in place also on views of one projection."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from trivet.contracts import Term, between, dtype, equal, implements, one_of, rows
from trivet.errors import DomainError
from trivet_metal.dtypes import FLOATS
from trivet_metal.packages import Package
from trivet_metal.row_layout import row_stride, tile

ROTARY: Final = Package(
    "rotary.metal",
    "rotary_{T}",
    (
        "q: in T*", "k: in T*", "cos: in float*", "sin: in float*",
        "q_out: out T*", "k_out: out T*",
        "q_stride: int64", "k_stride: int64", "cos_stride: int64", "sin_stride: int64",
        "q_out_stride: int64", "k_out_stride: int64",
        "heads: int32", "dim: int32", "half: int32", "interleaved: int32",
    ),
)  # fmt: skip
_DOMAIN: Final[list[Term]] = [
    dtype("q", *FLOATS),
    equal("k.dtype", "q.dtype"),
    between("rotary_half", 1, None),
    rows("q"),
    rows("k"),
    rows("cos"),
    rows("sin"),
    one_of("pairing", "neox", "interleaved"),
]


def interleaved(pairing: str, name: str) -> bool:
    """Whether neighbours turn together.

    Raises:
        DomainError: no kernel knows this pairing.
    """
    if pairing not in {"neox", "interleaved"}:
        msg = f"{name}: pairing is {pairing!r}"
        raise DomainError(msg, fix="use 'neox' or 'interleaved'")
    return pairing == "interleaved"


def rotate(
    parts: tuple[Tensor, Tensor | None],
    angles: tuple[Tensor, Tensor],
    outs: tuple[Tensor, Tensor | None],
    pairing: str,
) -> None:
    """Rotates the heads of both parts into ``outs``, which may be the parts themselves."""
    neighbours = interleaved(pairing, "rotary_embedding")
    (q, k), (q_out, k_out), (cos, sin) = parts, outs, angles
    heads, dim = q.shape[-2:]
    half, kv_heads = cos.shape[-1], 0 if k is None else k.shape[-2]
    tokens = q.numel() // (heads * dim) if heads * dim else 0
    if not tokens:
        return
    ROTARY.at(T=q.dtype)(
        q, k, cos, sin, q_out, k_out,
        row_stride(q, 2), 0 if k is None else row_stride(k, 2), row_stride(cos), row_stride(sin),
        row_stride(q_out, 2), 0 if k_out is None else row_stride(k_out, 2),
        heads, dim, half, neighbours,
        threads=(dim - half, heads + kv_heads, tokens),
        group=(*tile(dim - half, heads + kv_heads), 1),
    )  # fmt: skip


@implements(
    "rotary_embedding@1",
    name="metal",
    domain=_DOMAIN,
    deterministic=True,
    batch_invariant=True,
    checks=False,
)
def rotary_embedding(
    q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, pairing: str = "neox"
) -> list[Tensor]:
    """Rotates into fresh tensors."""
    q_out, k_out = q.new_empty(q.shape), None if k is None else k.new_empty(k.shape)
    rotate((q, k), (cos, sin), (q_out, k_out), pairing)
    return [t for t in (q_out, k_out) if t is not None]


@implements(
    "rotary_embedding_@1",
    name="metal",
    domain=_DOMAIN,
    deterministic=True,
    batch_invariant=True,
    checks=False,
)
def rotary_embedding_(
    q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, pairing: str = "neox"
) -> None:
    """Rotates ``q`` and ``k`` in place."""
    rotate((q, k), (cos, sin), (q, k), pairing)
