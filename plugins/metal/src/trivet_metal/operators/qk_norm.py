"""qk_rms_norm: the heads of q and of k in one launch, also on views of one projection."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from trivet.contracts import Term, between, contiguous, dtype, equal, implements, rows
from trivet.errors import DomainError
from trivet_metal.dtypes import FLOATS
from trivet_metal.packages import Package
from trivet_metal.row_layout import group_for, row_stride

QK_RMS_NORM: Final = Package(
    "norm.metal",
    "qk_rms_norm_{T}_{W}",
    (
        "q: in T*", "k: in T*", "q_weight: in W*", "k_weight: in W*",
        "q_out: out T*", "k_out: out T*",
        "q_stride: int64", "k_stride: int64", "q_out_stride: int64", "k_out_stride: int64",
        "heads: int32", "kv_heads: int32", "dim: int32",
        "eps: float", "offset: float", "in_float32: int32",
    ),
)  # fmt: skip
_DOMAIN: Final[list[Term]] = [
    dtype("q", *FLOATS),
    dtype("q_weight", *FLOATS),
    equal("k.dtype", "q.dtype"),
    equal("k_weight.dtype", "q_weight.dtype"),
    rows("q"),
    rows("k"),
    contiguous("q_weight"),
    contiguous("k_weight"),
    between("head_dim", 1, None),
]
Scalars = tuple[float, float, bool]


def normalise(
    parts: tuple[Tensor, Tensor | None],
    weights: tuple[Tensor, Tensor | None],
    outs: tuple[Tensor, Tensor | None],
    scalars: Scalars,
) -> None:
    """Normalises the heads of both parts into ``outs``, which may be the parts themselves.

    Raises:
        DomainError: k or its weight is given without the other one.
    """
    (q, k), (q_out, k_out) = parts, outs
    if (k is None) != (weights[1] is None):
        msg = "qk_rms_norm: k and k_weight are given together or not at all"
        raise DomainError(msg, fix="pass both, or neither")
    heads, dim = q.shape[-2:]
    kv_heads = 0 if k is None else k.shape[-2]
    tokens = q.numel() // (heads * dim) if heads * dim else 0
    if not tokens:
        return
    group = group_for(dim)
    QK_RMS_NORM.at(T=q.dtype, W=weights[0].dtype)(
        q, k, weights[0], weights[1] if k is not None else weights[0], q_out, k_out,
        row_stride(q, 2), 0 if k is None else row_stride(k, 2),
        row_stride(q_out, 2), 0 if k_out is None else row_stride(k_out, 2),
        heads, kv_heads, dim, *scalars,
        threads=(tokens * (heads + kv_heads) * group,), group=(group,),
    )  # fmt: skip


@implements(
    "qk_rms_norm@1",
    name="metal",
    domain=_DOMAIN,
    deterministic=True,
    batch_invariant=True,
    checks=False,
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
    q_out, k_out = q.new_empty(q.shape), None if k is None else k.new_empty(k.shape)
    scalars = (eps, weight_offset, weight_in_float32)
    normalise((q, k), (q_weight, k_weight), (q_out, k_out), scalars)
    return [t for t in (q_out, k_out) if t is not None]


@implements(
    "qk_rms_norm_@1",
    name="metal",
    domain=_DOMAIN,
    deterministic=True,
    batch_invariant=True,
    checks=False,
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
    normalise((q, k), (q_weight, k_weight), (q, k), scalars)
