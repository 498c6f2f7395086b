"""Keys of cached blocks: a chain of hashes over all tokens up to the end of each block.

Two blocks have one key exactly when everything that their contents depend on is equal: every token
before and in them, and the salt (the model, its adapter, images in the prompt, a tenant). Keys are
128 bits of BLAKE2b (RFC 7693); a collision within a pool of a million blocks has odds of 1e-26.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from trivet.errors import MemoryFault
from trivet.plugins.describe import shown

__all__ = ["first_parent", "key_of", "keys_of"]

Key = bytes

KEY_BYTES: Final = 16


def first_parent(salt: bytes = b"") -> Key:
    """The parent of a sequence's first block."""
    try:
        return blake2b(salt, digest_size=KEY_BYTES, person=b"trivet kv").digest()
    except TypeError as error:
        raise MemoryFault(f"{shown(salt)} is no salt", fix="bytes") from error


def key_of(parent: Key, tokens: Sequence[int]) -> Key:
    """The key of a block that follows another one.

    Args:
        parent: the key of the block before, or ``first_parent``.
        tokens: the ids in this block, in order; a partial block has fewer.

    Raises:
        MemoryFault: an id is no integer of 64 bits, or the parent no key.
    """
    try:
        said = array("q", tokens).tobytes()
        return blake2b(said, digest_size=KEY_BYTES, key=parent).digest()
    except (TypeError, ValueError, OverflowError) as error:
        msg = f"the tokens {shown(tokens)} after {shown(parent)} have no key: {error}"
        raise MemoryFault(msg, fix="ids of 64 bits, after a key or first_parent()") from error


def keys_of(
    tokens: Sequence[int], block_size: int, *, parent: Key | None = None, salt: bytes = b""
) -> list[Key]:
    """The keys of all full blocks of a sequence, in order.

    Args:
        tokens: ids from the sequence's start, or from the block after ``parent``.
        block_size: tokens in a block.
        parent: the key of the block before the first of ``tokens``.
        salt: what else the contents depend on; of no effect when ``parent`` is given.

    Raises:
        MemoryFault: tokens, parent or salt are none, or ``block_size`` is below 1.
    """
    size: object = block_size
    if not isinstance(size, int) or size < 1:
        raise MemoryFault(f"blocks of {shown(size)} tokens have no keys", fix="1 or more")
    key = first_parent(salt) if parent is None else parent
    found = []
    for end in range(block_size, len(tokens) + 1, block_size):
        key = key_of(key, tokens[end - block_size : end])
        found.append(key)
    return found
