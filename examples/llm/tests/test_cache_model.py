"""Prefix reuse and preemption with a real cache: the tokens are those of one that is ample."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner

import trivet
from llm import cache_size, cli, gguf
from llm.model import Llama
from llm.sampling import GREEDY, Sampling
from llm.schedule import Scheduler, generate
from llm.swap import HostMemory
from trivet.contracts.memory import MemoryInfo, Stats
from trivet.errors import OutOfMemory

PREFIX = [(7 * i) % 250 for i in range(50)]
PROMPTS = [PREFIX + [i] * (3 * i) for i in range(1, 6)] + [[5], PREFIX[:20]]
SHORT = [prompt[-20:] if i % 2 else [*PREFIX[:12], i] for i, prompt in enumerate(PROMPTS)]
COUNTS = [12, 20, 9, 14, 25, 30, 17]
LONG = [45, 30, 50, 20, 40, 50, 35]
WARM = Sampling(0.9, top_k=40, top_p=0.9, seed=3)
SAMPLINGS = {
    "greedy": [GREEDY] * 7,
    "mixed": [WARM, GREEDY, Sampling(1.1, seed=9), WARM, Sampling(repetition=1.2), WARM, WARM],
}
NO_END = frozenset()
NOTHING_KNOWN = Stats()


@pytest.fixture(scope="module")
def loaded():
    """Models by number of blocks and captured sizes; loading and capturing are done once."""
    return {}


@pytest.fixture
def load(tiny, tmp_path, loaded):
    def make(blocks=64, capture=(), size=16):
        key = blocks, capture, size
        if key not in loaded:
            file = gguf.read(tiny.write(tmp_path / "tiny.gguf"))
            device = trivet.device("cpu", strict=True)
            loaded[key] = Llama(device, file, dtype=torch.float32, num_blocks=blocks,
                                block_size=size, capture=capture)  # fmt: skip
        loaded[key].pool.forget()
        return loaded[key]

    return make


def plan_of(llama, *, salt=True, swap=False, batch=4, budget=40):
    return Scheduler(
        llama.pool,
        max_batch=batch,
        budget=budget,
        context=llama.config.context,
        eos=NO_END,
        salt=llama.salt if salt else None,
        store=HostMemory(llama.caches) if swap else None,
    )


def run(llama, plan, prompts, counts, samplings):
    rows = zip(prompts, counts, samplings, strict=True)
    requests = [plan.submit(prompt, n, sampling) for prompt, n, sampling in rows]
    list(generate(llama, plan))
    assert llama.pool.num_free == llama.pool.num_blocks
    return [request.output for request in requests]


WORK = {name: (PROMPTS, COUNTS, samplings) for name, samplings in SAMPLINGS.items()}
WORK["long"] = SHORT, LONG, SAMPLINGS["mixed"]


@pytest.fixture(scope="module")
def known():
    """The tokens without any of it, by what is asked."""
    return {}


@pytest.fixture
def wanted(load, known):
    def find(name):
        if name not in known:
            llama = load()
            known[name] = run(llama, plan_of(llama, salt=False), *WORK[name])
        return known[name]

    return find


@pytest.mark.parametrize("capture", [(), (2, 4)])
@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_common_beginning_changes_no_token(load, wanted, name, capture):
    want = wanted(name)
    llama = load(capture=capture)
    plan = plan_of(llama)
    assert run(llama, plan, *WORK[name]) == want
    assert plan.usage.reused_tokens >= 4 * 48  # the first one computed it, the others took it
    again = plan_of(llama)
    assert run(llama, again, *WORK[name]) == want
    assert again.usage.reused_tokens > plan.usage.reused_tokens


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "random"])
def test_a_conversation_that_goes_on_says_what_it_says_without_a_cache(load, sampling):
    llama, turns = load(), ([3, 4, 5] * 9, [8] * 5, [9, 10])
    outputs = []
    for salt in (True, False):
        plan, text, said = plan_of(llama, salt=salt), [], []
        for turn in turns:
            text = text + turn
            (answer,) = run(llama, plan, [text], [20], [sampling])
            text, said = text + answer, [*said, answer]
        outputs.append(said)
        assert bool(plan.usage.reused_tokens) == salt
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("blocks", [19, 34])
@pytest.mark.parametrize("swap", [False, True], ids=["recompute", "swap"])
@pytest.mark.parametrize(("salt", "capture"), [(False, ()), (True, (2, 4))])
def test_a_small_cache_changes_no_token(load, wanted, blocks, swap, salt, capture):
    want = wanted("long")
    llama = load(blocks, capture, size=4)
    plan = plan_of(llama, salt=salt, swap=swap)
    assert run(llama, plan, *WORK["long"]) == want
    assert plan.usage.preemptions


def test_blocks_come_back_from_host_memory_as_they_were(load):
    llama = load()
    for k, v in llama.caches:
        k.uniform_()
        v.uniform_()
    before = [(k.clone(), v.clone()) for k, v in llama.caches]
    host = HostMemory(llama.caches)
    saved = host.save([5, 2, 9])
    host.load(saved, 1, [40, 41])
    host.load(saved, 3, [])
    for (k, v), (old_k, old_v) in zip(llama.caches, before, strict=True):
        for now, old in ((k, old_k), (v, old_v)):
            assert torch.equal(now[[40, 41]], old[[2, 9]])
            now[[40, 41]] = old[[40, 41]]
            assert torch.equal(now, old)
            now.zero_()


# --- the command -----------------------------------------------------------------------------


@pytest.fixture
def path(tiny, tmp_path):
    return tiny.write(tmp_path / "tiny.gguf")


def call(*arguments, code=0):
    result = CliRunner().invoke(cli.main, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    return result


def test_the_report_says_what_was_reused_and_an_option_turns_it_off(path):
    given = ["--model", path, "--raw", "--block-size", 4, "--max-tokens", 5, "--json"]
    given += [a for i in range(3) for a in ("--prompt", "abcdefgh" + "xyz"[i])]
    on = json.loads(call(*given).stdout)
    off = json.loads(call(*given, "--no-prefix-cache").stdout)
    assert on["results"] == off["results"]
    assert on["cache"] == {"prompt_tokens": 27, "reused_tokens": 16, "preemptions": 0}
    assert off["cache"]["reused_tokens"] == 0
    assert {"name": "prefix_cache", "value": "off", "source": "command line"} in off["settings"]


@pytest.mark.parametrize("preempt", ["recompute", "swap"])
def test_a_cache_that_is_too_small_for_all_says_how_often_it_was_short(path, preempt):
    given = ["--model", path, "--raw", "--block-size", 4, "--max-tokens", 16, "--json"]
    given += [a for c in "abc" for a in ("--prompt", c * 4)]
    small = json.loads(call(*given, "--cache-tokens", 28, "--preempt", preempt).stdout)
    assert small["results"] == json.loads(call(*given).stdout)["results"]
    assert small["cache"]["preemptions"]


def test_the_size_of_the_cache_can_be_given_in_bytes(path):
    block = 2 * 2 * 16 * 32 * 4  # keys and values, layers, tokens, one head of 32, float32
    given = ["--model", path, "--max-tokens", 2, "--block-size", 16, "--json", "--kv-cache-gib"]
    report = json.loads(call(*given, 10.5 * block / 2**30).stdout)
    assert report["memory"]["kv_cache"] == 10 * block
    error = call(*given, block / 2**31, code=2).stderr
    assert f"gives {block // 2} bytes, one block of 16 tokens takes {block}" in error
    both = call(*given, 1, "--cache-tokens", 64, code=2).stderr
    assert "give one" in both
    assert "no amount of memory" in call(*given, "inf", code=2).stderr


def test_a_cache_that_does_not_fit_is_refused_with_the_numbers(path):
    error = call("--model", path, "--kv-cache-gib", 10**7, code=2).stderr
    assert "takes 10240000000 MiB" in error
    assert "MiB are free on cpu" in error
    assert "lower --kv-cache-gib" in error


def test_what_fits_exactly_is_taken_and_where_nobody_knows_nothing_is_refused():
    def device(free, stats=NOTHING_KNOWN):
        memory = SimpleNamespace(info=lambda: MemoryInfo(free_bytes=free), stats=lambda: stats)
        return SimpleNamespace(memory=memory, torch=torch.device("cpu"))

    cache_size.refuse_too_large(device(None), 1 << 60)
    cache_size.refuse_too_large(device(100), 100)
    kept = Stats(reserved_bytes=50, allocated_bytes=40)  # ten bytes wait in the allocator
    cache_size.refuse_too_large(device(90, kept), 100)
    with pytest.raises(OutOfMemory) as caught:
        cache_size.refuse_too_large(device(100), 101)
    assert (caught.value.requested_bytes, caught.value.free_bytes) == (101, 100)
