"""What a launch did, counted."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["BufferTraffic", "Stats"]


@dataclass(frozen=True)
class BufferTraffic:
    """Bytes that threads moved from and to the storage behind one or more arguments."""

    names: tuple[str, ...]
    """The parameters that point into this storage."""
    bytes_read: int
    bytes_written: int
    bytes_covered: int
    """Distinct bytes among the written ones: each counted once."""


@dataclass(frozen=True)
class Stats:
    """Counters of one launch. Traffic is counted in checked mode alone."""

    groups: int
    barriers: int
    simd_ops: int
    divergent_simd_ops: int
    """Operations of a simdgroup in which a lane took no part: a condition, or it had ended."""
    threadgroup_bytes: int
    threadgroup_read: int
    threadgroup_written: int
    buffers: tuple[BufferTraffic, ...]
    divergent_lines: tuple[tuple[str, int], ...] = ()
    """Where the divergent operations stand."""

    @property
    def bytes_read(self) -> int:
        """Bytes read from device and constant memory."""
        return sum(buffer.bytes_read for buffer in self.buffers)

    @property
    def bytes_written(self) -> int:
        """Bytes written to device memory."""
        return sum(buffer.bytes_written for buffer in self.buffers)

    @property
    def bytes_covered(self) -> int:
        """Distinct bytes written to device memory."""
        return sum(buffer.bytes_covered for buffer in self.buffers)

    def buffer(self, name: str) -> BufferTraffic:
        """The traffic of the storage behind a parameter."""
        return next(buffer for buffer in self.buffers if name in buffer.names)

    def as_dict(self) -> dict[str, Any]:
        """The counters for machines."""
        return {
            **asdict(self),
            "bytes_read": self.bytes_read,
            "bytes_written": self.bytes_written,
            "bytes_covered": self.bytes_covered,
        }
