"""Adaptors: an allocator over another one that adds one thing; they stack in any order.

Each has ``upstream``, passes on what the upstream can besides (trim, suspend, export), and
answers ``traits`` with the upstream's, narrowed where the adaptor takes something away.
"""

from __future__ import annotations

from trivet.memory.adaptors.adaptor import Adaptor
from trivet.memory.adaptors.aligned import Aligned
from trivet.memory.adaptors.counts import Counts, Outstanding
from trivet.memory.adaptors.faulty import Faulty
from trivet.memory.adaptors.instrumented import Event, Instrumented
from trivet.memory.adaptors.log import Entry, Logging, Replayed, read, replay
from trivet.memory.adaptors.simulated import Simulated
from trivet.memory.adaptors.threads import ThreadSafe

__all__ = [
    "Adaptor",
    "Aligned",
    "Counts",
    "Entry",
    "Event",
    "Faulty",
    "Instrumented",
    "Logging",
    "Outstanding",
    "Replayed",
    "Simulated",
    "ThreadSafe",
    "read",
    "replay",
]
