"""kv_cache_write: copies of whole rows, of any dtype."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from trivet.contracts import Term, contiguous, equal, implements, one_of, rows
from trivet_cpu.kernel_library import op, refuse, refuse_layout, sources

_write = op("kv_cache_write")

_DOMAIN: Final[list[Term]] = [
    equal("k_cache.dtype", "k.dtype"),
    equal("v_cache.dtype", "v.dtype"),
    rows("k"),
    rows("v"),
    contiguous("k_cache"),
    contiguous("v_cache"),
    one_of("layout", "NHD"),
]


@implements(
    "kv_cache_write@1",
    name="vec",
    domain=_DOMAIN,
    sources=sources("kv_cache_op.h"),
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
)
def kv_cache_write(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    layout: str = "NHD",
) -> None:
    """Copies each token's rows into its slot; a slot behind the cache is refused."""
    if layout != "NHD":
        refuse_layout(layout)
    try:
        _write(k, v, k_cache, v_cache, slots)
    except RuntimeError as error:
        refuse(error)
