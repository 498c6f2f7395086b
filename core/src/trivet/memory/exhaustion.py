"""One type for every way in which memory can run out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

from trivet.errors import OutOfMemory

# Not every allocator of torch raises torch.OutOfMemoryError; these are what the others say.
_PHRASES: Final = ("can't allocate memory", "not enough memory", "out of memory")


@contextmanager
def typed(
    device: torch.device | str, nbytes: int, *, tag: str, free_bytes: int | None
) -> Iterator[None]:
    """Raise ``OutOfMemory`` in place of whatever torch raises when memory runs out.

    Other errors pass unchanged.

    Args:
        device: where the allocation is made, as its reader asked for it.
        nbytes: the bytes asked for.
        tag: what they are for.
        free_bytes: what was free before, or None.
    """
    try:
        yield
    except OutOfMemory:
        raise
    except RuntimeError as error:  # torch.OutOfMemoryError is one
        if not is_exhaustion(error):
            raise
        raise OutOfMemory(
            f"{device} has no room for {nbytes} bytes ({tag or 'no tag'})",
            requested_bytes=nbytes,
            free_bytes=free_bytes,
            tag=tag,
            retryable=free_bytes is None or nbytes <= free_bytes,
            fix="free something, or ask for less (fewer blocks, a smaller dtype)",
        ) from error


def is_exhaustion(error: RuntimeError) -> bool:
    """True when an error of torch means that memory ran out."""
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or any(p in text for p in _PHRASES)
