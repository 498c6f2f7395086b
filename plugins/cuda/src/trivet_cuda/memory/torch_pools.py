"""torch's own memory behind the contract: a private pool of one GPU, and pinned host memory."""

from __future__ import annotations

import torch

from trivet.contracts.memory import Tier, Traits
from trivet.errors import OutOfMemory


class PrivatePool:
    """Buffers of one ``torch.cuda.MemPool``: apart from all other tensors, so one goes as a whole.

    torch gives blocks of a pool back to the device only when the pool itself ends: ``trim`` starts
    a new pool once no buffer is left.

    Args:
        index: of the GPU.
    """

    def __init__(self, index: int) -> None:
        self._device = torch.device("cuda", index)
        self._traits = Traits(self._device, Tier.DEVICE, 512)
        self._pool: torch.cuda.MemPool | None = None
        self._live = 0

    def traits(self) -> Traits:
        """What holds for all its buffers."""
        return self._traits

    def allocate(self, nbytes: int, *, tag: str) -> torch.Tensor:
        """A buffer; for its errors see ``trivet.contracts.memory.Allocator``."""
        del tag
        with torch.cuda.device(self._device):
            if self._pool is None:
                self._pool = torch.cuda.MemPool()
            with torch.cuda.use_mem_pool(self._pool, self._device):
                buffer = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
        self._live += 1
        return buffer

    def deallocate(self, buffer: torch.Tensor) -> None:
        """Torch frees it with its last reference."""
        del buffer
        self._live -= 1

    def trim(self, nbytes: int) -> int:
        """Gives the pool back when nothing is in it; how much that was."""
        del nbytes
        if self._live or self._pool is None:
            return 0
        before = torch.cuda.memory_reserved(self._device)
        self._pool = None
        torch.cuda.empty_cache()
        return max(0, before - torch.cuda.memory_reserved(self._device))


class PinnedMemory:
    """Host memory that GPUs copy from and to without the processor."""

    def __init__(self) -> None:
        self._traits = Traits(torch.device("cpu"), Tier.PINNED, 64, host_visible=True)

    def traits(self) -> Traits:
        """What holds for all its buffers."""
        return self._traits

    def allocate(self, nbytes: int, *, tag: str) -> torch.Tensor:
        """A buffer.

        Raises:
            OutOfMemory: the system pins no more.
        """
        try:
            return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        except RuntimeError as error:  # torch.AcceleratorError and OutOfMemoryError are such
            if "memory" not in str(error).lower():
                raise
            msg = f"the host pins no {nbytes} bytes ({tag or 'no tag'})"
            fix = "ask for less, or raise the limit of locked memory"
            raise OutOfMemory(msg, requested_bytes=nbytes, tag=tag, fix=fix) from error

    def deallocate(self, buffer: torch.Tensor) -> None:
        """Torch keeps it for the next buffer of its size; ``trim`` gives it back."""

    def trim(self, nbytes: int) -> int:
        """Gives what torch keeps of pinned memory back; 0, as torch does not count it."""
        del nbytes
        empty = getattr(torch.accelerator, "empty_host_cache", None)  # not every torch has it
        if empty is not None:
            empty()
        return 0
