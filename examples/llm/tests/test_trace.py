from __future__ import annotations

import itertools
import json

import pytest

from llm.errors import OutputError
from llm.schedule import Scheduler, generate
from llm.timing import Span
from llm.trace import Trace
from trivet.memory import KvBlocks

CALLS = {"site": "norm", "operator": "rms_norm", "implementation": "x", "calls": 4}
TIMED = [Span("norm", "x", 3.0, 5.0)]


class Model:
    def step(self, pieces):
        return [1 for p in pieces if p.samples]


@pytest.fixture
def document(tmp_path):
    ticks = itertools.count()
    trace = Trace(Model(), lambda: float(next(ticks)))
    plan = Scheduler(KvBlocks(20, 4), max_batch=2, budget=4, context=99, eos=frozenset())
    for prompt in ([1], [2] * 6, [3]):
        trace.submitted(plan.submit(prompt, 3))
    list(generate(trace, plan))
    path = tmp_path / "trace.json"
    trace.write(path, [CALLS], [("device", "cpu:0", "a file")], TIMED)
    return json.loads(path.read_text(encoding="utf-8"))


def spans(document, track):
    return [e for e in document["traceEvents"] if e["ph"] == "X" and e["tid"] == track]


def test_steps_say_what_they_computed(document):
    steps = spans(document, 0)
    assert steps[0]["args"] == {"tokens": 4, "batch": 2, "decode": 0, "prefill": 2}
    assert steps[1]["args"] == {"tokens": 4, "batch": 2, "decode": 1, "prefill": 1}
    assert all(step["dur"] > 0 for step in steps)


def test_each_request_has_its_three_parts_inside_one_span(document):
    for track in (1, 2, 3):
        whole, *parts = spans(document, track)
        assert whole["args"]["tokens"] == 3
        assert [part["name"] for part in parts] == ["queued", "prefill", "decode"]
        at = whole["ts"]
        for part in parts:
            assert part["ts"] == at
            at += part["dur"]
        assert at == whole["ts"] + whole["dur"]


def test_tracks_have_names_and_sites_have_totals(document):
    named = [e["args"]["name"] for e in document["traceEvents"] if e["ph"] == "M"]
    assert named == ["steps", "request 1", "request 2", "request 3"]
    assert document["otherData"]["sites"] == [CALLS]
    assert document["otherData"]["settings"] == [
        {"name": "device", "value": "cpu:0", "source": "a file"}
    ]


def test_timed_calls_lie_on_the_track_of_the_steps(document):
    (call,) = (e for e in spans(document, 0) if e["name"] == "norm")
    assert call["args"] == {"operator": "rms_norm", "implementation": "x"}
    assert (call["ts"], call["dur"]) == (3e6, 2e6)


def test_a_trace_that_cannot_be_written_is_one_clear_error(tmp_path):
    with pytest.raises(OutputError, match="trace"):
        Trace(Model()).write(tmp_path / "no" / "where.json", [])
