"""Pools: allocators that take large pieces from another one, keep them, and hand out parts.

Each is an ``Allocator`` and a ``Trimmer`` with ``stats()``, for one thread at a time:
``Buffers``, ``ThreadSafe`` or ``Instrumented`` before it make it safe. What it keeps goes back by
``trim(0)``, which also comes before dropping it; when its upstream is full it trims by itself and
asks once more. The same calls give the same answers in the same order.
"""

from __future__ import annotations

from trivet.memory.pools.arena import Arena, Mark
from trivet.memory.pools.best_fit import BestFit
from trivet.memory.pools.binned import Binned
from trivet.memory.pools.fixed import Fixed
from trivet.memory.pools.pool import Pool

__all__ = ["Arena", "BestFit", "Binned", "Fixed", "Mark", "Pool"]
