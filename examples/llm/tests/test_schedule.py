from __future__ import annotations

import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.errors import RequestError
from llm.schedule import Scheduler, generate
from trivet.memory import KvBlocks

EOS = 0


def following(tokens, vocab=7):
    """The next token after some tokens: any function of all of them will do."""
    return zlib.crc32(bytes(tokens)) % vocab


class Model:
    """Keeps tokens where keys and values would be, and answers from that memory alone."""

    def __init__(self, block_size, max_batch, budget):
        self.memory = {}
        self.block_size, self.max_batch, self.budget = block_size, max_batch, budget
        self.steps = []

    def step(self, pieces):
        self.steps.append(pieces)
        assert 0 < len(pieces) <= self.max_batch
        assert 0 < sum(len(p.ids) for p in pieces) <= self.budget
        held = [block for p in pieces for block in p.request.blocks]
        assert len(held) == len(set(held))
        answers = []
        for p in pieces:
            slots = [
                p.request.blocks[i // self.block_size] * self.block_size + i % self.block_size
                for i in range(p.start + len(p.ids))
            ]
            self.memory.update(zip(slots[p.start :], p.ids, strict=True))
            if p.samples:
                answers.append(following([self.memory[slot] for slot in slots]))
        return answers


def alone(prompt, max_tokens, eos):
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(following(tokens))
        if tokens[-1] in eos:
            break
    return tokens[len(prompt) :]


def scheduler(pool, *, max_batch=4, budget=8, context=1000, eos=frozenset()):
    return Scheduler(pool, max_batch=max_batch, budget=budget, context=context, eos=eos)


REQUESTS = st.lists(
    st.tuples(st.lists(st.integers(1, 250), min_size=1, max_size=20), st.integers(1, 12)),
    min_size=1,
    max_size=12,
)


@settings(deadline=None, max_examples=200, derandomize=True, database=None)
@given(
    requests=REQUESTS,
    blocks=st.integers(8, 30),
    block_size=st.integers(4, 9),
    max_batch=st.integers(1, 5),
    more=st.integers(0, 20),
)
def test_every_request_ends_as_it_would_alone(requests, blocks, block_size, max_batch, more):
    pool, budget, eos = KvBlocks(blocks, block_size), max_batch + more, frozenset({EOS})
    model = Model(block_size, max_batch, budget)
    plan = scheduler(pool, max_batch=max_batch, budget=budget, eos=eos)
    submitted = [plan.submit(prompt, n) for prompt, n in requests]

    seen = {request: [] for request in submitted}
    for request, token in generate(model, plan):
        seen[request].append(token)

    assert pool.num_free == blocks
    for request, (prompt, n) in zip(submitted, requests, strict=True):
        want = alone(prompt, n, eos)
        if len(prompt) + n - 1 > blocks * block_size:
            want = want[: request.limit]
        assert request.output == seen[request] == want
        assert request.finish == ("stop" if want[-1] == EOS else request.at_limit)
        assert request.blocks == []


@settings(deadline=None, max_examples=100, derandomize=True, database=None)
@given(requests=REQUESTS, max_batch=st.integers(1, 4))
def test_requests_start_in_the_order_they_came(requests, max_batch):
    model = Model(4, max_batch, 16)
    plan = scheduler(KvBlocks(12, 4), max_batch=max_batch, budget=16)
    submitted = [plan.submit(prompt, n) for prompt, n in requests]
    list(generate(model, plan))
    first = {}
    for number, pieces in enumerate(model.steps):
        for piece in pieces:
            first.setdefault(piece.request, number)
    starts = [first[request] for request in submitted]
    assert starts == sorted(starts)


def test_prompts_join_while_others_decode_in_the_same_step():
    model, plan = Model(4, 4, 8), scheduler(KvBlocks(20, 4))
    early = plan.submit([1, 2], 6)
    events = generate(model, plan)
    next(events)
    next(events)
    late = plan.submit([3, 4, 5], 6)
    list(events)
    assert any(
        {(p.request, len(p.ids)) for p in pieces} == {(early, 1), (late, 3)}
        for pieces in model.steps
    )


def test_a_long_prompt_is_read_in_pieces_and_samples_once_it_is_whole():
    model, plan = Model(4, 2, 8), scheduler(KvBlocks(20, 4), max_batch=2)
    plan.submit(list(range(1, 21)), 1)
    list(generate(model, plan))
    assert [(p.start, len(p.ids), p.samples) for (p,) in model.steps] == [
        (0, 8, False),
        (8, 8, False),
        (16, 4, True),
    ]


def test_decoding_never_waits_for_a_prompt():
    model, plan = Model(4, 2, 2), scheduler(KvBlocks(20, 4), max_batch=2, budget=2)
    early = plan.submit([1], 10)
    events = generate(model, plan)
    next(events)
    plan.submit(list(range(1, 13)), 1)
    list(events)
    with_early = [pieces for pieces in model.steps if any(p.request is early for p in pieces)]
    assert len(with_early) == 10
    assert with_early == model.steps[:10]


def test_a_full_batch_queues():
    model, plan = Model(4, 1, 8), scheduler(KvBlocks(20, 4), max_batch=1)
    first, second = plan.submit([1], 3), plan.submit([2], 3)
    order = [request for request, _ in generate(model, plan)]
    assert order == [first] * 3 + [second] * 3


def test_a_full_cache_queues():
    pool = KvBlocks(3, 4)
    model, plan = Model(4, 4, 8), scheduler(pool)
    first, second = plan.submit([1] * 4, 5), plan.submit([2] * 4, 5)  # two blocks each
    order = [request for request, _ in generate(model, plan)]
    assert order == [first] * 5 + [second] * 5
    assert pool.num_free == 3


@pytest.mark.parametrize(
    ("prompt", "limits", "finish", "count"),
    [
        ([1] * 4, {"context": 1000}, "cache", 5),
        ([1] * 4, {"context": 6}, "context", 2),
        ([1] * 8, {"context": 1000}, "cache", 1),
    ],
)
def test_a_request_ends_where_cache_or_context_ends(prompt, limits, finish, count):
    plan = scheduler(KvBlocks(2, 4), **limits)
    request = plan.submit(prompt, 100)
    list(generate(Model(4, 4, 8), plan))
    assert (request.finish, len(request.output)) == (finish, count)


def test_an_end_token_ends_a_request():
    prompt = next([i] for i in range(1, 250) if following([i]) == EOS)
    plan = scheduler(KvBlocks(4, 4), eos=frozenset({EOS}))
    request = plan.submit(prompt, 5)
    list(generate(Model(4, 4, 8), plan))
    assert (request.finish, request.output) == ("stop", [EOS])


def test_a_prompt_longer_than_the_cache_is_refused():
    with pytest.raises(RequestError, match=r"9 tokens, the KV cache holds 8"):
        scheduler(KvBlocks(2, 4)).submit([1] * 9, 1)


def test_a_prompt_as_long_as_the_context_is_refused():
    with pytest.raises(RequestError, match="context is 6"):
        scheduler(KvBlocks(2, 4), context=6).submit([1] * 6, 1)


@pytest.mark.parametrize(("prompt", "max_tokens"), [([], 1), ([1], 0)])
def test_an_empty_request_is_refused(prompt, max_tokens):
    with pytest.raises(RequestError):
        scheduler(KvBlocks(2, 4)).submit(prompt, max_tokens)


@pytest.mark.parametrize(("max_batch", "budget"), [(0, 8), (9, 8)])
def test_limits_that_cannot_work_are_refused(max_batch, budget):
    with pytest.raises(RequestError, match="budget"):
        scheduler(KvBlocks(2, 4), max_batch=max_batch, budget=budget)


def test_blocks_go_back_when_the_caller_stops_early():
    pool = KvBlocks(20, 4)
    plan = scheduler(pool)
    plan.submit([1, 2], 50)
    plan.submit([3, 4], 50)
    events = generate(Model(4, 4, 8), plan)
    next(events)
    assert pool.num_free < 20
    events.close()
    assert pool.num_free == 20
    assert plan.next_batch() == []


def test_blocks_go_back_when_the_model_fails():
    class Broken:
        def step(self, pieces):
            raise RuntimeError(len(pieces))

    pool = KvBlocks(20, 4)
    plan = scheduler(pool)
    plan.submit([1, 2], 5)
    with pytest.raises(RuntimeError):
        list(generate(Broken(), plan))
    assert pool.num_free == 20


def test_a_request_that_is_cancelled_gives_its_blocks_back_and_the_others_go_on():
    pool = KvBlocks(3, 4)
    model, plan = Model(4, 4, 8), scheduler(pool)
    running, waiting, last = (plan.submit([i] * 4, 9) for i in (1, 2, 3))  # three blocks each
    events = generate(model, plan)
    next(events)
    assert (pool.num_free, plan.num_running, plan.num_waiting) == (2, 1, 2)
    plan.cancel(running)
    plan.cancel(waiting)
    assert (pool.num_free, plan.num_running, plan.num_waiting) == (3, 0, 1)
    list(events)
    assert last.output == alone([3] * 4, 9, frozenset())
    assert [r.finish for r in (running, waiting, last)] == ["cancelled", "cancelled", "length"]
    plan.cancel(last)
    assert last.finish == "length"
    assert pool.num_free == 3


def test_a_request_that_is_ended_says_why():
    plan = scheduler(KvBlocks(4, 4))
    request = plan.submit([1], 9)
    plan.next_batch()
    plan.end(request, "stop")
    assert (request.finish, request.blocks, plan.next_batch()) == ("stop", [], [])
