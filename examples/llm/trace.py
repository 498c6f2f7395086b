"""A timeline of a run as Chrome trace events, which Perfetto and chrome://tracing show.

One track holds the steps; each request has a track with three spans inside one: queued, prefill
and decode. Where calls are timed, each lies inside the span of its step.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from llm.errors import OutputError
from llm.schedule import Model, Piece, Request
from llm.timing import Span

_PROCESS, _STEPS = 1, 0
Setting = tuple[str, object, str]


class Trace:
    """Stands between the scheduler and a model, and notes when each step began and ended.

    Args:
        model: Runs the steps.
        clock: Seconds.
    """

    def __init__(self, model: Model, clock: Callable[[], float] = time.perf_counter) -> None:
        self._model, self._clock, self._zero = model, clock, clock()
        self._events: list[dict[str, Any]] = []
        self._requests: dict[Request, dict[str, float]] = {}

    def submitted(self, request: Request) -> None:
        """Notes that a request waits from now on."""
        self._requests[request] = {"queued": self._clock()}

    def step(self, pieces: list[Piece], /) -> list[int]:
        """Runs a step of the model."""
        start = self._clock()
        rows = {"decode": sum(len(p.ids) == 1 and bool(p.request.output) for p in pieces)}
        tokens = self._model.step(pieces)
        end = self._clock()
        sizes = {"tokens": sum(len(p.ids) for p in pieces), "batch": len(pieces)}
        rows["prefill"] = len(pieces) - rows["decode"]
        self._span("step", _STEPS, start, end, {**sizes, **rows})
        for piece in pieces:
            times = self._requests.setdefault(piece.request, {"queued": start})
            times.setdefault("prefill", start)
            if piece.samples:
                times.setdefault("decode", end)
            times["end"] = end
        return tokens

    def document(
        self, calls: list[dict[str, Any]], settings: list[Setting], timed: Iterable[Span] = ()
    ) -> dict[str, Any]:
        """The whole trace.

        Args:
            calls: How often each implementation ran and why, as the model says.
            settings: Names, values, and who chose each.
            timed: Single calls of sites.
        """
        spans = len(self._events)
        self._name("steps", _STEPS)
        for track, (request, times) in enumerate(self._requests.items(), 1):
            self._name(f"request {track}", track)
            self._request(request, track, times)
        operators = {row["site"]: row["operator"] for row in calls}
        for call in timed:
            facts = {"operator": operators[call.site], "implementation": call.implementation}
            self._span(call.site, _STEPS, call.start, call.end, facts)
        events, self._events = self._events, self._events[:spans]
        counted = [row for row in calls if row["calls"] is not None]
        chosen = [{"name": n, "value": v, "source": s} for n, v, s in settings]
        other = {"sites": counted, "settings": chosen}
        return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": other}

    def write(
        self,
        path: Path,
        calls: list[dict[str, Any]],
        settings: list[Setting] | None = None,
        timed: Iterable[Span] = (),
    ) -> None:
        """Writes the trace; for the rest see ``document``.

        Raises:
            OutputError: The file cannot be written.
        """
        text = json.dumps(self.document(calls, settings or [], timed))
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise OutputError(f"the trace cannot be written: {error}") from error

    def _request(self, request: Request, track: int, times: dict[str, float]) -> None:
        begins = [(n, times[n]) for n in ("queued", "prefill", "decode") if n in times]
        end = times.get("end", self._clock())
        facts = {
            "prompt_tokens": len(request.prompt),
            "tokens": len(request.output),
            "finish": request.finish,
            "preempted": request.preempted,
        }
        self._span("request", track, begins[0][1], end, facts)
        ends = [start for _, start in begins[1:]] + [end]
        for (name, start), stop in zip(begins, ends, strict=True):
            self._span(name, track, start, stop, {})

    def _span(self, name: str, track: int, start: float, end: float, facts: dict[str, Any]) -> None:
        self._events.append(
            {
                "name": name,
                "ph": "X",
                "pid": _PROCESS,
                "tid": track,
                "ts": (start - self._zero) * 1e6,  # microseconds
                "dur": (end - start) * 1e6,
                "args": facts,
            }
        )

    def _name(self, name: str, track: int) -> None:
        named = {"name": "thread_name", "ph": "M", "pid": _PROCESS, "tid": track}
        self._events.append({**named, "args": {"name": name}})
