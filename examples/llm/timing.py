"""Where the time of a run goes: the host's time around each call of a site.

Nothing here is in the way unless it is asked for. On a device that works behind the host's back a
call returns before its work is done, and its time is that of the launch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from llm.schedule import Model, Piece

ENGINE = "(engine)"
"""The row of what is no site: Python of the engine, views, schedules, sizes and copies."""

RANKS = "(ranks)"
"""The row of what ranks tell each other: sums and joins, in which they also wait."""

GRAPH = "(graph)"
"""The row of decode steps that are replayed: a graph has no calls of its own to time."""


@dataclass
class _Row:
    calls: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Span:
    """One call: where, by whom, from when to when in seconds of the clock."""

    site: str
    implementation: str
    start: float
    end: float


class Times:
    """Times by site and implementation.

    Args:
        most_spans: How many calls are kept one by one, from the first.
        clock: Seconds.
    """

    def __init__(self, most_spans: int = 0, clock: Callable[[], float] = time.perf_counter) -> None:
        self.spans: list[Span] = []
        self.steps = 0.0
        self._most, self._clock = most_spans, clock
        self._rows: dict[tuple[str, str], _Row] = {}
        self._steps: dict[int, tuple[object, _Step]] = {}

    def timed(self, at: Callable[..., Any]) -> Callable[..., Any]:
        """A plan's ``at`` whose steps take the time of each call."""

        def timed_at(**sizes: int) -> _Step:
            step = at(**sizes)
            return self._steps.setdefault(id(step), (step, _Step(step, self)))[1]

        return timed_at

    def whole(self, model: Model) -> Model:
        """The model, its whole steps timed as well."""
        return _Whole(model, self)

    def call(self, site: str, provider: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function of a site, timed."""
        row, clock, spans = self._rows.setdefault((site, provider), _Row()), self._clock, self.spans

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = clock()
            result = function(*args, **kwargs)
            end = clock()
            row.calls += 1
            row.seconds += end - start
            if len(spans) < self._most:
                spans.append(Span(site, provider, start, end))
            return result

        return timed

    def step(self, model: Model, pieces: list[Piece]) -> list[int]:
        """Runs one step of a model and adds its time."""
        start = self._clock()
        tokens = model.step(pieces)
        self.steps += self._clock() - start
        return tokens

    def table(self) -> Mapping[tuple[str, str], dict[str, Any]]:
        """Calls and seconds of what ran, the longest first."""
        ran = [(key, row) for key, row in self._rows.items() if row.calls]
        ran.sort(key=lambda item: -item[1].seconds)
        return {key: {"calls": row.calls, "seconds": row.seconds} for key, row in ran}


class _Whole:
    def __init__(self, model: Model, times: Times) -> None:
        self._model, self._times = model, times

    def step(self, pieces: list[Piece], /) -> list[int]:
        """Runs a step of the model."""
        return self._times.step(self._model, pieces)


class _Step:
    """A step of a plan whose sites are timed."""

    def __init__(self, step: Any, times: Times) -> None:
        self.use, self.schedule = step.use, step.schedule
        for site, provider in step.providers().items():
            setattr(self, site, times.call(site, provider, getattr(step, site)))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the step has no {name!r}")


def shares(calls: Iterable[Mapping[str, Any]], steps: float) -> list[dict[str, Any]]:
    """The rows of ``calls`` by time, the longest first, and the engine's own among them.

    Args:
        calls: What ran, each with ``seconds``.
        steps: Seconds of all steps.
    """
    rows = [
        {k: row[k] for k in ("site", "operator", "implementation", "calls", "seconds")}
        for row in calls
    ]
    own = steps - sum(row["seconds"] for row in rows)
    engine = {"site": ENGINE, "operator": "", "implementation": "", "calls": None}
    rows.append(engine | {"seconds": max(own, 0.0)})
    rows.sort(key=lambda row: -row["seconds"])
    return [row | {"share": row["seconds"] / steps if steps else 0.0} for row in rows]
