"""Collectives of the CPU: through shared memory, where all ranks are on this machine."""

from __future__ import annotations

import sys

from trivet_cpu.kernel_library import library


def missing() -> str:
    """Why there are none here; empty where there are."""
    if sys.platform != "linux":
        return f"{sys.platform} has no files in memory that ranks could share"
    return library().reason


def parts() -> list[object]:
    """The provider where there is one, and the topology; loaded when a group is opened first."""
    from trivet_cpu.numa import NumaTopology

    if missing():  # torch serves
        return [NumaTopology()]
    from trivet_cpu.collectives.shared_memory import SharedMemoryRanks

    return [SharedMemoryRanks, NumaTopology()]
