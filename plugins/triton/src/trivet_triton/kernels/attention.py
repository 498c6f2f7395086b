"""paged_attention for every batch: which kernels a call launches, and with how many parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from typing import Any, Final

import torch
from torch import Tensor

from trivet.contracts import implements, offset_aligned
from trivet.kernels.triton import Variant
from trivet_triton.constants import defaults_of
from trivet_triton.hardware import arch_at, processors
from trivet_triton.kernels import attention_decode, attention_prefill
from trivet_triton.kernels import attention_host as host
from trivet_triton.kernels.attention_prefill import IN_GRID, IN_TURN, prefill
from trivet_triton.kernels.attention_sites import at_bind_of, one_each
from trivet_triton.kernels.row_layout import named, power_of_two

FIXED_SPLIT: Final = 2048
"""Keys of a part where results may not depend on the batch."""

_SHORTEST_SPLIT: Final = 512
_SCRATCH: Final = 1 << 28
"""Bytes of partial results above which parts are merged within a program."""


@implements(
    "paged_attention@1",
    name="triton",
    domain=host.DOMAIN,
    graph_safe=True,
    deterministic=True,
    resolve=at_bind_of(lambda: globals()["paged_attention"]),
)
def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    query_start: Tensor,
    seq_lens: Tensor,
    max_query_len: int,
    max_seq_len: int,
    scale: float,
    schedule: list[Tensor],  # noqa: ARG001  # tiles follow from lengths on the device
    window: int = 0,
    soft_cap: float = 0.0,
    layout: str = "NHD",
) -> Tensor:
    """Attends into a fresh tensor; long and short queries by kernels of their own."""
    return _attended(
        max_query_len, q, k_cache, v_cache, block_table, query_start, seq_lens, max_seq_len,
        scale, window, soft_cap, layout, None,
    )  # fmt: skip


@implements(
    "paged_attention_out@1",
    name="triton",
    domain=[*host.DOMAIN, *host.OUT],
    graph_safe=True,
    deterministic=True,
)
def paged_attention_out(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    query_start: Tensor,
    seq_lens: Tensor,
    max_query_len: int,
    max_seq_len: int,
    scale: float,
    schedule: list[Tensor],  # noqa: ARG001  # tiles follow from lengths on the device
    window: int = 0,
    soft_cap: float = 0.0,
    layout: str = "NHD",
    *,
    out: Tensor,
) -> None:
    """Attends into ``out``."""
    _attended(
        max_query_len, q, k_cache, v_cache, block_table, query_start, seq_lens, max_seq_len,
        scale, window, soft_cap, layout, out,
    )  # fmt: skip


@implements(
    "paged_attention@1",
    name="triton_invariant",
    domain=[*host.DOMAIN, *(offset_aligned(name, 16) for name in ("k_cache", "v_cache"))],
    graph_safe=True,
    deterministic=True,
    batch_invariant=True,
    checks=False,  # addresses of caches are left to the guard
)
def paged_attention_invariant(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    query_start: Tensor,
    seq_lens: Tensor,
    max_query_len: int,  # noqa: ARG001  # a row must not depend on it
    max_seq_len: int,
    scale: float,
    schedule: list[Tensor],  # noqa: ARG001  # tiles follow from lengths on the device
    window: int = 0,
    soft_cap: float = 0.0,
    layout: str = "NHD",
) -> Tensor:
    """Attends into a fresh tensor; each row has the same bits in whatever batch it comes.

    Tiles of keys and parts of ``FIXED_SPLIT`` keys start at fixed positions, one kernel with one
    size of tile serves all lengths, and parts are merged in order, in the grid or in a program.
    """
    call = host.opened(
        q, k_cache, v_cache, block_table, query_start, seq_lens, max_seq_len, scale, window,
        soft_cap, layout, None,
    )  # fmt: skip
    if host.is_empty(call):
        return call.out.zero_()
    attend_invariant(call, FIXED_SPLIT)
    return call.out


def attend_invariant(call: host.Call, split: int) -> None:
    """Attends in parts of ``split`` keys; in the grid where that fills the device better."""
    shape = call.shape
    config = fixed_config(shape, arch_at(shape.ordinal))
    tiles, shares = attention_prefill.tiles_of(call, config)
    parts = max(1, -(-call.longest // split))
    size = 4 * call.tokens * shape.heads * parts * (shape.head_dim + 2)
    idle = tiles * shares < 2 * processors(shape.ordinal)
    mode = IN_GRID if parts > 1 and idle and size <= _SCRATCH else IN_TURN
    prefill(call, config, least=1, mode=mode, split=split, parts=parts if mode == IN_GRID else 1)


def default(key: Mapping[str, Any]) -> tuple[tuple[float, dict[str, int]], ...]:
    """One size of tiles for every batch."""
    wide, shared = key["head_dim"] > 128, key["shared"]
    small = shared <= host.NO_WGMMA
    registers = host.ALL_REGISTERS if small else 0
    if key["dtype"] == "float32":
        made = host.Config(32, 16, 8, 2, 128 if small else 0)
        if wide:
            made = host.Config(16, 16, 8 if shared == host.NO_WGMMA else 4, 2)
    elif wide:
        made = host.Config(32, 64, 8, 2, registers)
    else:
        made = host.Config(64, 32 if small else 64, 8, 3, registers)
    return ((inf, made._asdict()),)


def fixed_config(shape: host.Shape, arch: str) -> host.Config:
    """The one size of tiles of the batch invariant implementation; never a measured one."""
    [(_, made)] = defaults_of("paged_attention_invariant", arch, shape.key(arch), default)
    return host.Config(**made)


def _attended(max_query_len: int, *given: Any) -> Tensor:
    """One query a sequence at once where the tensors lie as an engine's do; the rest at length."""
    if max_query_len == 1:
        y = one_each(*given)
        if y is not None:
            return y
    return _attend(host.opened(*given), max_query_len)


def _attend(call: host.Call, max_query_len: int) -> Tensor:
    """Chooses kernels: decode alone for few queries, else prefill and, for a mix, both."""
    if host.is_empty(call):
        return call.out.zero_()
    shape = call.shape
    queries = power_of_two(max(min(max_query_len, call.tokens), 1))
    rows = attention_decode.most_rows(shape.dtype)
    if queries == 1 or queries * shape.pieces(rows)[1] <= rows:
        attention_decode.decode(call, queries, alone=True)
        return call.out
    config = next(c for n, c in attention_prefill.buckets(shape) if call.tokens <= n)
    mode, split, parts = _cut(call, config)
    mixed = call.sequences > 1
    prefill(call, config, least=2 if mixed else 1, mode=mode, split=split, parts=parts)
    if mixed:
        attention_decode.decode(call, 1, alone=False)
    return call.out


def _cut(call: host.Call, config: host.Config) -> tuple[int, int, int]:
    """Mode, keys of a part, parts: more than one only where tiles leave processors idle."""
    tiles, shares = attention_prefill.tiles_of(call, config)
    room = 2 * processors(call.shape.ordinal) // (tiles * shares)
    parts = min(room, call.longest // _SHORTEST_SPLIT)
    if parts < 2 or call.window:
        return attention_prefill.WHOLE, config.BLOCK_N, 1
    split = -(-call.longest // (parts * config.BLOCK_N)) * config.BLOCK_N
    return IN_GRID, split, -(-call.longest // split)


def variants(arch: str) -> Iterator[tuple[str, Variant]]:
    """The batch invariant variants, and those with parts, for checks ahead of time."""
    for dtype, group, head_dim in (
        (torch.bfloat16, 4, 128),
        (torch.bfloat16, 2, 256),
        (torch.float32, 4, 128),
        (torch.float32, 1, 256),
    ):
        shape = host.Shape(0, dtype, 8, group, head_dim, 16)
        config = fixed_config(shape, arch)._asdict()
        name = f"{named(dtype)}/{head_dim}/{group}"
        for word, mode in (("turn", IN_TURN), ("grid", IN_GRID)):
            made = attention_prefill.tiles_variant(shape, config, mode=mode)
            yield f"invariant/{word}/{name}", made
        yield f"invariant/merge/{name}", attention_prefill.merge_variant(shape, 1)
