"""What an instrumented allocator counted, in all or since a point in time."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class Counts:
    """Bytes and calls of a span of time.

    Args:
        current_bytes: what is live; within a scope the difference to its start, which is below 0
            where more was given back than taken.
        peak_bytes: the most that ``current_bytes`` was.
        total_bytes: the sum of all that was allocated.
        allocations: buffers that were made.
        deallocations: buffers that were given back.
        failures: calls of ``allocate`` that raised ``OutOfMemory`` in the end.
        by_tag: tag -> (current bytes, their peak, allocations), since the start.
    """

    current_bytes: int = 0
    peak_bytes: int = 0
    total_bytes: int = 0
    allocations: int = 0
    deallocations: int = 0
    failures: int = 0
    by_tag: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """A mapping of plain values, tags in alphabetical order."""
        return asdict(self) | {"by_tag": {k: list(v) for k, v in sorted(self.by_tag.items())}}


@dataclass(frozen=True, slots=True)
class Outstanding:
    """A buffer that is live; ``stack`` is where it was allocated, innermost first, if kept."""

    number: int
    nbytes: int
    tag: str
    stack: traceback.StackSummary | None = None

    def __str__(self) -> str:
        head = f"buffer {self.number}: {self.nbytes} bytes, {self.tag or 'no tag'}"
        return head + "".join(f"\n{line.rstrip()}" for line in (self.stack or _NONE).format())


_NONE = traceback.StackSummary()


class Frame:
    """Counters of one scope; only the innermost is written."""

    __slots__ = ("allocations", "current", "deallocations", "failures", "peak", "total")

    def __init__(self) -> None:
        self.current = self.peak = self.total = 0
        self.allocations = self.deallocations = self.failures = 0

    def counts(self, by_tag: Mapping[str, list[int]]) -> Counts:
        """The numbers of this moment."""
        tags = {tag: (now, peak, made) for tag, (now, peak, made) in by_tag.items()}
        return Counts(
            self.current,
            self.peak,
            self.total,
            self.allocations,
            self.deallocations,
            self.failures,
            tags,
        )

    def absorb(self, inner: Frame) -> None:
        """Adds a scope that ended in this one."""
        self.peak = max(self.peak, self.current + inner.peak)
        self.current += inner.current
        self.total += inner.total
        self.allocations += inner.allocations
        self.deallocations += inner.deallocations
        self.failures += inner.failures
