"""Scratch memory for implementations with several launches."""

from __future__ import annotations

import torch


def workspace(x: torch.Tensor, nbytes: int) -> torch.Tensor:
    """Bytes on the device of ``x``: uint8 ``[nbytes]``, uninitialised.

    They belong to the current stream (to the graph while one is captured), because torch's
    allocator orders reuse by stream, and are valid until the caller's last launch.
    """
    return torch.empty(nbytes, dtype=torch.uint8, device=x.device)
