from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from llm.timing import ENGINE, Span, Times, shares


class Step:
    def __init__(self, norm):
        self.use, self.schedule, self.norm = len, sum, norm

    def providers(self):
        return {"norm": "vendor/vec"}


@pytest.fixture
def times():
    ticks = itertools.count()
    return Times(most_spans=2, clock=lambda: float(next(ticks)))


def test_calls_pass_through_and_are_timed(times):
    step = Step(lambda x, *, eps: (x, eps))
    at = times.timed(lambda **sizes: step if sizes == {"tokens": 3} else None)
    assert at(tokens=3) is at(tokens=3)
    for x in range(3):
        assert at(tokens=3).norm(x, eps=1) == (x, 1)
    assert at(tokens=3).use("ab") == 2
    assert times.table() == {("norm", "vendor/vec"): {"calls": 3, "seconds": 3.0}}
    assert times.spans == [Span("norm", "vendor/vec", 0, 1), Span("norm", "vendor/vec", 2, 3)]


def test_one_row_for_a_provider_of_several_steps(times):
    one, other = Step(lambda: 1), Step(lambda: 2)
    at = times.timed(lambda *, rows: one if rows == 1 else other)
    assert [at(rows=1).norm(), at(rows=2).norm()] == [1, 2]
    assert times.table()["norm", "vendor/vec"]["calls"] == 2


def test_what_did_not_run_has_no_row(times):
    times.timed(lambda: Step(len))()
    assert times.table() == {}


def test_whole_steps_are_timed(times):
    model = times.whole(SimpleNamespace(step=lambda pieces: pieces[1:]))
    assert model.step([1, 2]) == [2]
    assert times.steps == 1.0


def test_shares_are_sorted_and_the_rest_is_the_engine():
    calls = [
        {"site": s, "operator": "op", "implementation": "a/b", "calls": 1, "seconds": n, "why": ""}
        for s, n in (("few", 1.0), ("most", 5.0))
    ]
    rows = shares(calls, 8.0)
    assert [row["site"] for row in rows] == ["most", ENGINE, "few"]
    assert [row["share"] for row in rows] == [5 / 8, 2 / 8, 1 / 8]
    assert shares([], 0.0)[0]["share"] == 0.0
