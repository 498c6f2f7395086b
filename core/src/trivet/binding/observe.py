"""Observation: how often each provider ran at each site. Off unless a plan asks for it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from trivet.selection.choose import Arm


class Counts:
    """Calls by (site, provider), exact under threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: Counter[tuple[str, str]] = Counter()

    def wrap(self, site: str, arm: Arm, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, counted."""
        key = (site, arm.provider)

        def counted(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                self._calls[key] += 1
            return function(*args, **kwargs)

        counted.__name__ = function.__name__
        return counted

    def table(self) -> dict[tuple[str, str], int]:
        """A copy of the counters."""
        with self._lock:
            return dict(self._calls)
