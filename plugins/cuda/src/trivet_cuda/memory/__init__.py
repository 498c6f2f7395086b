"""Memory of NVIDIA GPUs for large buffers: addresses that stay while the memory goes.

``open_memory`` is what the plugin's hook returns; where the driver cannot do it, it is None, and
torch's caching allocator serves. The driver is started by the first use, not by the hook.
"""

from __future__ import annotations

from functools import cache

from trivet_cuda.memory.driver import Driver, absence
from trivet_cuda.memory.virtual import VirtualMemory


@cache
def open_memory(index: int) -> VirtualMemory | None:
    """The one allocator of a GPU in this process; None where ``driver.absence`` says why."""
    return None if absence() else VirtualMemory(index, Driver.load())
