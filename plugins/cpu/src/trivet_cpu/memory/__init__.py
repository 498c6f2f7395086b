"""Host memory of this machine for large buffers: mapped pages, and pages that others can open.

``open_memory`` is what the plugin's hook returns; where the system has no such pages it is None,
and torch's allocator serves.
"""

from __future__ import annotations

from functools import cache

from trivet_cpu.memory.pages import missing
from trivet_cpu.memory.private import PrivateMemory


@cache
def open_memory() -> PrivateMemory | None:
    """The one allocator of this process; None where ``pages.missing`` says why."""
    return None if missing() else PrivateMemory()
