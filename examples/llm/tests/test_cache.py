"""Prefix reuse and preemption of the scheduler, with a model whose cache is a dictionary."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.schedule import Scheduler, generate
from llm.tests.test_schedule import EOS, alone, following
from trivet.errors import OutOfMemory
from trivet.memory import KvBlocks
from trivet.memory.kv.keys import keys_of

SIZE = 4


class Broken(Exception):
    """A step of the model that fails."""


class Model:
    """Keeps tokens where keys and values would be, and a copy of some where a store would be.

    It answers from what it finds in the blocks alone; ``failures`` are numbers of steps that fail
    after they have written.
    """

    def __init__(self, pool, failures=()):
        self.memory, self.pool = {}, pool
        self.failures, self.steps, self.computed = set(failures), 0, 0

    def step(self, pieces):
        self.steps += 1
        answers = []
        for p in pieces:
            blocks = p.request.blocks
            for position, token in enumerate(p.ids, p.start):
                block = blocks[position // SIZE]
                assert self.pool.refcount(block) == 1  # nothing that is shared is written
                self.memory[block, position % SIZE] = token
            self.computed += len(p.ids)
            if p.samples:
                end = p.start + len(p.ids)
                answers.append(
                    following([self.memory[blocks[i // SIZE], i % SIZE] for i in range(end)])
                )
        if self.steps in self.failures:
            raise Broken
        return answers

    def save(self, blocks):
        return [[self.memory.get((b, i)) for i in range(SIZE)] for b in blocks]

    def load(self, saved, first, blocks):
        for block, row in zip(blocks, saved[first:], strict=True):
            assert self.pool.refcount(block) == 1
            self.memory.update({(block, i): token for i, token in enumerate(row)})


def plan_of(model, *, salt=b"m", swap=False, max_batch=4, budget=8, eos=frozenset()):
    store = model if swap else None
    limits = {"max_batch": max_batch, "budget": budget, "context": 1000, "eos": eos}
    return Scheduler(model.pool, **limits, salt=salt, store=store)


def check(plan, pool, submitted):
    """What holds between two steps."""
    running, waiting = list(plan._running), list(plan._waiting)
    held = Counter(block for r in running for block in r.blocks)
    assert all(pool.refcount(b) == held[b] for b in range(pool.num_blocks))
    assert pool.num_free == pool.num_blocks - len(held)
    order = [submitted.index(r) for r in (*running, *waiting)]
    assert order == sorted(order)  # what runs is older than what waits
    assert not any(r.blocks or r.published for r in waiting)
    assert not any(r.saved for r in running)
    assert all(r.saved or not r.cached for r in waiting)
    open_ = {id(r) for r in (*running, *waiting)}
    assert all(bool(r.finish) != (id(r) in open_) for r in submitted)
    for r in running:
        assert r.cached <= len(r.blocks) * SIZE
        assert r.missing > 0


PROMPTS = st.builds(
    lambda shared, own: [9] * shared + own,
    st.integers(0, 14),  # common beginnings
    st.lists(st.integers(1, 3), min_size=1, max_size=6),
)


@settings(deadline=None, max_examples=150, derandomize=True, database=None)
@given(
    requests=st.lists(st.tuples(PROMPTS, st.integers(1, 24)), min_size=2, max_size=9),
    blocks=st.integers(11, 16),
    max_batch=st.integers(1, 5),
    eos=st.sampled_from([frozenset(), frozenset({EOS})]),
    more=st.integers(0, 12),
    salt=st.sampled_from([None, b"m"]),
    swap=st.booleans(),
    failures=st.sets(st.integers(1, 40), max_size=6),
    cancelled=st.dictionaries(st.integers(1, 30), st.integers(0, 8), max_size=3),
)
def test_every_request_ends_as_with_an_ample_cache_and_no_block_is_lost(
    requests, blocks, max_batch, eos, more, salt, swap, failures, cancelled
):
    pool = KvBlocks(blocks, SIZE)
    model = Model(pool, failures)
    plan = plan_of(model, salt=salt, swap=swap, max_batch=max_batch, budget=max_batch + more,
                   eos=eos)  # fmt: skip
    submitted = [plan.submit(prompt, n) for prompt, n in requests]
    most = sum(len(p) + n for p, n in requests) * 20 + len(failures)
    while plan.num_running or plan.num_waiting:
        try:
            with plan.attempt() as pieces:
                assert pieces
                tokens = model.step(pieces)
        except Broken:
            check(plan, pool, submitted)
            continue
        plan.commit(pieces, tokens)
        check(plan, pool, submitted)
        assert model.steps < most
        if (i := cancelled.get(model.steps, 99)) < len(submitted):
            plan.cancel(submitted[i])
            check(plan, pool, submitted)
    assert pool.num_free == blocks
    for request, (prompt, n) in zip(submitted, requests, strict=True):
        want = alone(prompt, n, eos)
        if request.finish == "cancelled":
            assert request.output == want[: len(request.output)]
        else:
            assert request.output == want


def step(plan, model):
    with plan.attempt() as pieces:
        tokens = model.step(pieces)
    plan.commit(pieces, tokens)


def run(plan, model):
    list(generate(model, plan))


def test_a_common_beginning_is_computed_once():
    pool = KvBlocks(60, SIZE)
    model, prefix = Model(pool), list(range(1, 13))
    plan = plan_of(model, budget=64)
    requests = [plan.submit([*prefix, 50 + i], 1) for i in range(4)]
    run(plan, model)
    assert model.computed == len(prefix) + 4  # three blocks once, and one token of each
    assert [r.output for r in requests] == [
        alone([*prefix, 50 + i], 1, frozenset()) for i in range(4)
    ]
    assert (plan.usage.prompt_tokens, plan.usage.reused_tokens) == (4 * 13, 3 * 12)


def test_a_block_is_shared_once_its_last_token_is_computed():
    pool = KvBlocks(60, SIZE)
    model = Model(pool)
    plan, prompt = plan_of(model, max_batch=1, budget=7), list(range(1, 17))
    plan.submit(prompt, 1)
    found = []
    for _ in range(3):
        step(plan, model)
        found.append(len(pool.find(keys_of(prompt, SIZE, salt=b"m"))))
    assert found == [1, 3, 4]  # after 7, 14 and 16 tokens


def test_at_least_one_token_is_computed():
    pool = KvBlocks(60, SIZE)
    model = Model(pool)
    plan = plan_of(model)
    for _ in range(2):
        plan.submit([1] * 8, 1)
        run(plan, model)
    assert (model.computed, plan.usage.reused_tokens) == (8 + 4, 4)


def test_what_was_said_is_found_again_when_a_conversation_goes_on():
    pool = KvBlocks(60, SIZE)
    model = Model(pool)
    plan = plan_of(model)
    first = plan.submit([1, 2, 3], 10)
    run(plan, model)
    plan.submit([*first.prompt, *first.output, 7], 1)
    run(plan, model)
    assert plan.usage.reused_tokens == 12  # twelve tokens were written: the last one never was


def test_without_a_salt_or_under_another_one_nothing_is_shared():
    pool = KvBlocks(60, SIZE)
    model = Model(pool)
    for salt in (b"a", None, b"b"):
        plan = plan_of(model, salt=salt)
        plan.submit([1] * 20, 1)
        run(plan, model)
        assert plan.usage.reused_tokens == 0
    assert model.computed == 60


def test_what_is_cached_makes_way_for_a_request_that_needs_all():
    pool = KvBlocks(5, SIZE)
    model = Model(pool)
    plan = plan_of(model)
    plan.submit([1] * 16, 1)
    run(plan, model)
    request = plan.submit([2] * 17, 4)
    run(plan, model)
    assert request.output == alone([2] * 17, 4, frozenset())
    assert request.preempted == 0


@pytest.mark.parametrize("swap", [False, True])
def test_the_youngest_is_put_aside_and_goes_on_with_its_output(swap):
    pool = KvBlocks(6, SIZE)
    model = Model(pool)
    plan = plan_of(model, salt=None, swap=swap)
    old, young = plan.submit([1] * 4, 17), plan.submit([2] * 4, 17)  # five blocks each
    seen = []
    for request, _ in generate(model, plan):
        seen.append(request)
        assert not old.preempted
        assert old.finish or request is old or not young.preempted
    assert [r.output for r in (old, young)] == [
        alone(r.prompt, 17, frozenset()) for r in (old, young)
    ]
    assert young.preempted == 1
    assert plan.usage.preemptions == 1
    assert seen.count(young) == 17  # no token is told twice
    again = model.computed - 2 * 20
    assert again == 0 if swap else again > 0  # a store gives back what else is computed again


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("finish", ["stop", "cancelled"])
def test_a_request_that_is_put_aside_can_be_ended(swap, finish):
    pool = KvBlocks(6, SIZE)
    model = Model(pool)
    plan = plan_of(model, swap=swap)
    old, young = plan.submit([1] * 4, 17), plan.submit([2] * 4, 17)
    for _ in generate(model, plan):
        if young.preempted and not young.finish:
            plan.end(young, finish)
            assert (plan.num_waiting, young.blocks, young.saved) == (0, [], None)
    assert old.output == alone(old.prompt, 17, frozenset())
    assert young.output == alone(young.prompt, 17, frozenset())[: len(young.output)]
    assert (young.finish, pool.num_free) == (finish, 6)


def test_a_step_that_fails_gives_back_what_it_took():
    pool = KvBlocks(20, SIZE)
    model = Model(pool, failures={2})
    plan = plan_of(model)
    first = plan.submit([1] * 4, 9)
    step(plan, model)
    late = plan.submit([2] * 9, 3)
    with pytest.raises(Broken):
        step(plan, model)
    assert model.computed == 4 + 1 + 7  # both had a part in it
    assert pool.num_free == 20 - 1
    assert (plan.num_running, plan.num_waiting) == (1, 1)
    assert (late.blocks, late.cached, plan.usage.prompt_tokens) == ([], 0, 4)
    run(plan, model)
    assert first.output == alone([1] * 4, 9, frozenset())
    assert late.output == alone([2] * 9, 3, frozenset())


@pytest.mark.parametrize("running", [False, True])
def test_blocks_that_others_hold_are_an_error_and_no_endless_wait(running):
    pool = KvBlocks(4, SIZE)
    model = Model(pool)
    plan = plan_of(model)
    plan.submit([1] * 4, 9)
    if running:
        step(plan, model)
    held = pool.allocate(pool.num_free)
    with pytest.raises(OutOfMemory, match="KV blocks"):
        run(plan, model)
    assert pool.num_free == 4 - len(held)
