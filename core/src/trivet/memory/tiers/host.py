"""Host memory whose pages go back to the system as soon as they are given back."""

from __future__ import annotations

import torch

from trivet.contracts.memory import Tier, Traits
from trivet.memory.tiers import mapping


class HostAllocator:
    """Zeroed pages of the process; torch's own allocator may keep what is freed, this does not."""

    def __init__(self) -> None:
        self._traits = Traits(
            torch.device("cpu"), Tier.HOST, mapping.PAGE, host_visible=True, zeroed=True
        )

    def traits(self) -> Traits:
        """What holds for all its buffers."""
        return self._traits

    def allocate(self, nbytes: int, *, tag: str) -> torch.Tensor:
        """A buffer; for its errors see ``trivet.contracts.memory.Allocator``."""
        return mapping.anonymous(nbytes, tag=tag)

    def deallocate(self, buffer: torch.Tensor) -> None:
        """The pages are unmapped with the last reference."""
