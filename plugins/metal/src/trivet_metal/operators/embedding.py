"""embedding: rows of a table by their ids; an id that is no row gives NaN, and reads nothing."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from trivet.contracts import Term, between, contiguous, dtype, implements, rows
from trivet_metal.dtypes import FLOATS
from trivet_metal.packages import Package
from trivet_metal.row_layout import tile

EMBEDDING: Final = Package(
    "copies.metal",
    "embedding_{T}",
    (
        "weight: in T*", "ids: in long*", "y: out T*",
        "vocab: int64", "stride: int64", "hidden: int32",
    ),
)  # fmt: skip
_DOMAIN: Final[list[Term]] = [
    dtype("weight", *FLOATS),
    contiguous("ids"),
    rows("weight"),
    between("hidden", 1, None),
]


@implements(
    "embedding@1",
    name="metal",
    domain=_DOMAIN,
    deterministic=True,
    batch_invariant=True,
    checks=False,
)
def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    """Gathers rows into a fresh tensor."""
    vocab, hidden = weight.shape
    y = weight.new_empty((*ids.shape, hidden))
    if y.numel():
        EMBEDDING.at(T=weight.dtype)(
            weight, ids, y, vocab, weight.stride(0), hidden,
            threads=(hidden, ids.numel()), group=tile(hidden, ids.numel()),
        )  # fmt: skip
    return y
