from __future__ import annotations

import pytest
import torch

import trivet
from llm import gguf
from llm.model import Llama
from llm.sampling import GREEDY, Sampling
from llm.schedule import Scheduler, generate


@pytest.fixture(scope="session")
def device():
    """The device that is always there; strict, so that no reference runs unnoticed."""
    return trivet.device("cpu", strict=True)


@pytest.fixture(scope="session")
def llama(device, model_file):
    return Llama(
        device, model_file, dtype=torch.float32, num_blocks=64, block_size=16, observe=True
    )


def small(device, made, tmp_path):
    file = gguf.read(made.write(tmp_path / "tiny.gguf"))
    return Llama(device, file, dtype=torch.float32, num_blocks=64, block_size=16)


def run(llama, prompts, counts, *, budget=256, batch=8, sampling=GREEDY):
    plan = Scheduler(
        llama.pool, max_batch=batch, budget=budget, context=llama.config.context, eos=frozenset()
    )
    requests = [plan.submit(p, n, sampling) for p, n in zip(prompts, counts, strict=True)]
    for _ in generate(llama, plan):
        pass
    assert llama.pool.num_free == 64
    return [request.output for request in requests]


def test_greedy_tokens_are_those_of_another_implementation(llama, reference):
    got = run(llama, [p["prompt_ids"] for p in reference], [64] * 4)
    assert got == [p["fp32"]["ids"] for p in reference]


def test_prompts_in_one_batch_give_what_each_gives_alone(llama, reference):
    text = [i for p in reference for i in p["prompt_ids"]]
    sizes = [1, 2, 5, 15, 16, 17, 33, 70]
    counts = [12, 3, 9, 1, 7, 5, 10, 4]
    prompts = [text[i : i + n] for i, n in enumerate(sizes)]
    alone = [run(llama, [p], [n])[0] for p, n in zip(prompts, counts, strict=True)]
    assert run(llama, prompts, counts) == alone
    assert run(llama, prompts, counts, budget=8) == alone


def test_a_seed_gives_the_same_tokens_in_any_batch(llama, reference):
    prompts, warm = [p["prompt_ids"] for p in reference], Sampling(1.0, top_k=50, seed=3)
    alone = [run(llama, [p], [12], sampling=warm)[0] for p in prompts]
    assert run(llama, prompts, [12] * 4, budget=16, sampling=warm) == alone
    assert run(llama, prompts, [12] * 4, sampling=Sampling(1.0, top_k=50, seed=4)) != alone


def test_threads_change_no_token(llama, reference):
    torch.set_num_threads(2)
    try:
        got = run(llama, [p["prompt_ids"] for p in reference], [4] * 4)
    finally:
        torch.set_num_threads(1)
    assert got == [p["fp32"]["ids"][:4] for p in reference]


def test_every_operator_of_the_vendor_runs_and_its_reference_never(device, llama, reference):
    run(llama, [reference[0]["prompt_ids"]], [2])
    run(llama, [reference[0]["prompt_ids"]], [2], sampling=Sampling(0.8, repetition=1.1))
    assert device.plugin != "reference"
    offered = device.providers()
    calls = llama.plan.counts()
    claimed = {name for name, site in llama.plan.sites.items() if offered[operator_of(site)]}
    assert claimed
    for site in claimed:
        assert calls.get((site, "reference"), 0) == 0
        assert (
            sum(calls.get((site, p), 0) for p in offered[operator_of(llama.plan.sites[site])]) > 0
        )


def test_no_site_is_left_to_a_guard(llama):
    for tokens, rows, longest in ((1, 1, 1), (8, 8, 1), (256, 1, 256), (9, 2, 8)):
        step = llama.plan.at(tokens=tokens, rows=rows, max_query_len=longest)
        assert set(step.providers()) == set(llama.plan.sites)
        assert not [p for p in step.providers().values() if "|" in p]


def operator_of(site):
    return site.choice.operator.name


def test_a_tie_goes_to_the_lowest_id(device, tiny, tmp_path):
    head = torch.zeros(258, 64)
    head[[5, 9]], head[[6, 10]] = torch.ones(64), -torch.ones(64)  # one pair is above all others
    tiny.put("output.weight", head)
    ((first, *_),) = run(small(device, tiny, tmp_path), [[1, 2, 3]], [1])
    assert first in {5, 6}


def test_equal_logits_everywhere_give_the_first_id(device, tiny, tmp_path):
    tiny.put("output.weight", torch.zeros(258, 64))
    assert run(small(device, tiny, tmp_path), [[1, 2, 3]], [3]) == [[0, 0, 0]]


def test_blocks_of_an_earlier_request_leave_nothing_behind(device, tiny, tmp_path):
    fresh = run(small(device, tiny, tmp_path), [[7, 8, 9]], [20])
    used = small(device, tiny, tmp_path)
    run(used, [[40 + i] * 90 for i in range(8)], [20] * 8)
    assert run(used, [[7, 8, 9]], [20]) == fresh


def test_the_block_size_changes_no_token(device, tiny, tmp_path):
    file = gguf.read(tiny.write(tmp_path / "tiny.gguf"))
    outputs = [
        run_with(Llama(device, file, dtype=torch.float32, num_blocks=n, block_size=size))
        for n, size in ((64, 16), (40, 5), (300, 1))
    ]
    assert outputs[0] == outputs[1] == outputs[2]


def run_with(llama):
    plan = Scheduler(llama.pool, max_batch=2, budget=9, context=256, eos=frozenset())
    requests = [plan.submit([11, 12, 13] * n, 9) for n in (1, 5, 9)]
    list(generate(llama, plan))
    return [request.output for request in requests]
