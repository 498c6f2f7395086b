from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from llm import sampling
from llm.sampling import GREEDY, Sampling
from llm.schedule import Piece, Request

OPTIONS = ("temperature", "top_k", "top_p", "min_p", "seed", "position")


class Step:
    """Notes what is called; its tokens are 0, 1, 2, ..."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        def call(logits, *given):
            self.calls.append((name, *given))
            return torch.arange(len(logits))

        return call


def pieces(*options):
    made = []
    for i, option in enumerate(options):
        request = Request([7] * (i + 2), 9, "length", option, output=[3] * i)
        tokens = request.prompt + request.output
        made.append(Piece(request, 1, tokens[1:], samples=True))
    return made


def chosen(*options):
    step = Step()
    tokens = sampling.choose(step, torch.zeros(len(options), 11), pieces(*options))
    assert tokens.tolist() == list(range(len(options)))
    return step.calls


def test_greedy_requests_call_what_they_always_called():
    assert chosen(GREEDY, Sampling(seed=5)) == [("sample",)]


def test_one_random_request_gives_every_row_its_options():
    ((name, *columns),) = chosen(GREEDY, Sampling(0.5, 3, 0.25, 0.125, seed=2**62))
    given = dict(zip(OPTIONS, columns, strict=True))
    assert name == "sample_random"
    assert {n: c.tolist() for n, c in given.items()} == {
        "temperature": [0, 0.5],
        "top_k": [0, 3],
        "top_p": [1, 0.25],
        "min_p": [0, 0.125],
        "seed": [0, 2**62],
        "position": [2, 4],
    }
    assert given["top_k"].dtype == torch.int32
    assert given["seed"].dtype == given["position"].dtype == torch.int64


def test_limits_that_no_request_sets_are_left_out():
    ((_, _, top_k, top_p, min_p, *_),) = chosen(GREEDY, Sampling(1.0, min_p=0.5, seed=0))
    assert (top_k, top_p, min_p.tolist()) == (None, None, [0, 0.5])


def test_values_that_the_operator_cannot_take_are_replaced_by_what_they_mean():
    assert chosen(Sampling(1e-30, seed=0)) == [("sample",)]
    ((_, temperature, _, top_p, *_),) = chosen(Sampling(1e-30, seed=0), Sampling(1.0, top_p=0.0))
    assert temperature.tolist() == [0, 1]
    assert 0 < top_p[1] < 1e-5


def test_penalties_come_first_and_rows_without_them_have_no_history():
    first, second = chosen(GREEDY, Sampling(seed=0, repetition=2.0, presence=0.5))
    assert second == ("sample",)
    name, *columns = first
    assert name == "penalize"
    tokens, prompts, repetition, presence, frequency = (c.tolist() for c in columns)
    assert tokens == [[-1] * 4, [7, 7, 7, 3]]
    assert prompts == [0, 3]
    assert (repetition, presence, frequency) == ([1, 2], [0, 0.5], [0, 0])


def test_a_seed_is_drawn_once_a_request_and_only_told_where_it_matters():
    one, two = Sampling(1.0), Sampling(1.0)
    assert one.seed != two.seed
    assert one.reported_seed == one.seed
    assert 0 <= one.seed < 2**63
    assert Sampling().reported_seed is None


@pytest.mark.parametrize("name", ["repetition", "presence", "frequency"])
def test_each_penalty_alone_is_one(name):
    assert Sampling(**{name: 0.5}).penalizes
    assert not SimpleNamespace(penalizes=Sampling().penalizes).penalizes
