"""How many blocks the KV cache has: from tokens or from bytes, and whether they fit."""

from __future__ import annotations

from types import SimpleNamespace

import torch

import trivet
from llm.config import Config
from llm.errors import RequestError
from trivet.errors import OutOfMemory

_GIB = 1 << 30


def bytes_of_block(c: Config, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers, keys and values."""
    return 2 * c.layers * block_size * c.kv_heads * c.head_dim * dtype.itemsize


def blocks(options: SimpleNamespace, c: Config, block_size: int, dtype: torch.dtype) -> int:
    """As many as ``--kv-cache-gib`` holds, or as ``--cache-tokens`` needs.

    Raises:
        RequestError: Not even one block fits those bytes.
    """
    if options.kv_cache_gib is None:
        return -(-int(options.cache_tokens) // block_size)
    given, each = int(options.kv_cache_gib * _GIB), bytes_of_block(c, block_size, dtype)
    if given < each:
        what = f"--kv-cache-gib gives {given} bytes, one block of {block_size} tokens takes {each}"
        raise RequestError(what, fix=f"give at least {each / _GIB:.6f}, or smaller blocks")
    return given // each


def refuse_too_large(device: trivet.Device, nbytes: int) -> None:
    """Refuses a cache that the free memory cannot hold; a system may promise it and not keep it.

    Raises:
        OutOfMemory: It says how much is wanted and free.
    """
    free, stats = device.memory.info().free_bytes, device.memory.stats()
    if free is None:
        return
    if stats.reserved_bytes is not None and stats.allocated_bytes is not None:
        free += max(0, stats.reserved_bytes - stats.allocated_bytes)  # the allocator has it ready
    if nbytes > free:
        raise OutOfMemory(
            f"the KV cache takes {nbytes >> 20} MiB ({nbytes} bytes), "
            f"{free >> 20} MiB are free on {device.torch}",
            requested_bytes=nbytes,
            free_bytes=free,
            tag="kv_cache",
            fix="lower --kv-cache-gib or --cache-tokens",
        )
