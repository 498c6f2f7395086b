"""rotary_kv_cache_write: q turns in place, k turns into its slot and v is copied, in one pass."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from trivet.contracts import Term, contiguous, dtype, equal, implements, one_of, rows
from trivet_cpu.compiled.rotary import interleaved
from trivet_cpu.isa import FLOATS
from trivet_cpu.kernel_library import op, refuse, refuse_layout, sources

_write = op("rotary_kv_cache_write")

_DOMAIN: Final[list[Term]] = [
    dtype("q", *FLOATS),
    equal("k.dtype", "q.dtype"),
    equal("v.dtype", "q.dtype"),
    equal("k_cache.dtype", "q.dtype"),
    equal("v_cache.dtype", "q.dtype"),
    rows("q"),
    rows("k"),
    rows("v"),
    contiguous("k_cache"),
    contiguous("v_cache"),
    one_of("pairing", "neox", "interleaved"),
    one_of("layout", "NHD"),
]


@implements(
    "rotary_kv_cache_write@1",
    name="vec",
    domain=_DOMAIN,
    sources=sources("rotary.h", "rotary_op.h", "kv_cache_op.h", "rotary_cache_op.h"),
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
)
def rotary_kv_cache_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    pairing: str = "neox",
    layout: str = "NHD",
) -> None:
    """Rotates and writes; a slot behind the cache is refused before anything is written."""
    if layout != "NHD":
        refuse_layout(layout)
    turned = interleaved(pairing, "rotary_kv_cache_write")
    try:
        _write(q, k, v, cos, sin, k_cache, v_cache, slots, turned)
    except RuntimeError as error:
        refuse(error)
