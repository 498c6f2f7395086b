"""Captured decode steps: the same tokens, fewer steps of the host."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner

import trivet
from llm import cli, gguf
from llm.model import Llama
from llm.sampling import GREEDY, Sampling
from llm.schedule import Scheduler, generate
from llm.start import sizes

PROMPTS = [[5], [7, 8, 9], [40] * 17, [3, 1] * 9, [250, 2], [9] * 33]
COUNTS = [12, 30, 9, 1, 20, 17]
WARM = Sampling(0.9, top_k=40, top_p=0.9, min_p=0.01, seed=3)
SAMPLINGS = {
    "greedy": [GREEDY] * 6,
    "random": [WARM] * 6,
    "penalized": [Sampling(repetition=1.3, presence=0.5, frequency=0.2, seed=1)] * 6,
    "all kinds": [GREEDY, WARM, Sampling(1.1, seed=9), Sampling(repetition=1.2), WARM, GREEDY],
}


@pytest.fixture
def path(tiny, tmp_path):
    return tiny.write(tmp_path / "tiny.gguf")


def load(path, *capture, **more):
    device = trivet.device("cpu", strict=True)
    given = {"dtype": torch.float32, "num_blocks": 64, "block_size": 16, **more}
    return Llama(device, gguf.read(path), capture=capture, **given)


def run(llama, samplings=SAMPLINGS["greedy"], batch=8):
    context = llama.config.context
    plan = Scheduler(llama.pool, max_batch=batch, budget=24, context=context, eos=frozenset())
    rows = zip(PROMPTS, COUNTS, samplings, strict=True)
    requests = [plan.submit(prompt, n, sampling) for prompt, n, sampling in rows]
    list(generate(llama, plan))
    assert llama.pool.num_free == 64
    return [request.output for request in requests]


def replays(llama):
    return {(r["kind"], r["rows"]): r["replays"] for r in llama.decode.report() if r["replays"]}


@pytest.mark.parametrize("samplings", SAMPLINGS.values(), ids=SAMPLINGS)
def test_tokens_are_those_of_eager_steps(path, samplings):
    captured = load(path, 1, 2, 4)
    assert run(captured, samplings) == run(load(path), samplings)
    assert run(captured, samplings, batch=3) == run(load(path), samplings, batch=3)
    assert sum(replays(captured).values()) > 20


def test_steps_of_several_sizes_and_kinds_are_replayed(path):
    llama = load(path, 1, 4)
    for samplings in SAMPLINGS.values():
        run(llama, samplings, batch=4)
    assert {kind for kind, _ in replays(llama)} == {"greedy", "penalized", "random"}
    assert {rows for _, rows in replays(llama)} == {1, 4}
    for row in llama.decode.report():
        assert row["seconds"] > 0
        assert row["bytes"] > 0
        assert row["graphs"] == 1  # no site of this package has to leave the graph
    assert llama.memory()["graph"] >= sum(row["bytes"] for row in llama.decode.report())


def test_more_requests_than_the_largest_size_run_eagerly(path):
    llama = load(path, 1, 2)
    assert run(llama) == run(load(path))
    assert {rows for _, rows in replays(llama)} == {1, 2}


def test_captures_touch_no_block_of_the_cache(path):
    llama = load(path, 1, 2)
    assert not any(bool(cache.any()) for pair in llama.caches for cache in pair)
    run(llama)
    before = [cache.clone() for pair in llama.caches for cache in pair]
    llama.decode.graphs["greedy"](
        llama.plan,
        **{name: torch.full((1, *i.shape), i.padding, dtype=i.dtype)
           for name, i in llama.decode._inputs(()).items()},
    )  # fmt: skip
    after = [cache for pair in llama.caches for cache in pair]
    assert all(map(torch.equal, before, after))


def test_what_ran_is_counted_as_without_graphs(path):
    found = []
    for capture in ((), (1, 2, 4, 8)):
        llama = load(path, *capture, observe=True)
        run(llama)
        found.append({(r["site"], r["implementation"]): r["calls"] for r in llama.calls()})
    eager, captured = found
    by_site = [{}, {}]
    for total, calls in zip(by_site, (eager, captured), strict=True):
        for (site, _), n in calls.items():
            total[site] = total.get(site, 0) + n
    assert by_site[0] == by_site[1]  # which product runs for how many rows may differ


def test_another_thread_may_run_the_steps(path):
    """As a server does, whose engine has a thread of its own."""
    llama, found = load(path, 1, 2, 4), []
    thread = threading.Thread(target=lambda: found.append(run(llama)))
    thread.start()
    thread.join()
    assert found == [run(load(path))]


# --- the command -----------------------------------------------------------------------------


def call(*arguments):
    return CliRunner().invoke(cli.main, [str(a) for a in arguments])


def test_the_command_says_what_was_captured(path):
    given = ("--model", path, "--prompt", "ab", "--max-tokens", 6)
    plain = json.loads(call(*given, "--json").stdout)
    result = call(*given, "--json", "--capture", "1,2")
    captured = json.loads(result.stdout)
    assert captured["results"] == plain["results"]
    assert "capture" not in plain
    steps = len(captured["results"][0]["ids"]) - 1  # the first token is the prompt's
    assert [r["replays"] for r in captured["capture"] if r["kind"] == "greedy"] == [steps, 0]
    assert steps
    assert result.stderr.startswith("captured decode (emulated): 1, 2 rows, 6 graphs, ")
    settings = {s["name"]: (s["value"], s["source"]) for s in captured["settings"]}
    assert settings["capture"] == ("1, 2", "command line")
    shown = call(*given, "--capture", "1").stdout
    assert "captured decode steps" in shown
    for capture in ("off", None):
        more = () if capture is None else ("--capture", capture)
        report = json.loads(call(*given, "--json", *more).stdout)
        assert {"name": "capture", "value": "off"}.items() <= {
            k: v for s in report["settings"] if s["name"] == "capture" for k, v in s.items()
        }.items()


@pytest.mark.parametrize("wrong", ["on", "0,1", "1,,2", "-1", ""])
def test_sizes_that_are_none_are_refused(path, wrong):
    result = call("--model", path, "--capture", wrong)
    assert result.exit_code == 2
    assert "neither off nor numbers of requests" in result.stderr


def test_times_and_traces_show_replays_as_one_row(path, tmp_path):
    trace = tmp_path / "t.json"
    result = call("--model", path, "--prompt", "ab", "--max-tokens", 6, "--capture", "1",
                  "--time", "--trace", trace, "--json")  # fmt: skip
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    steps = len(report["results"][0]["ids"]) - 1
    (row,) = (r for r in report["time"] if r["site"] == "(graph)")
    assert (row["calls"], row["implementation"]) == (steps, "captured")
    assert sum(r["share"] for r in report["time"]) == pytest.approx(1)
    spans = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    assert sum(span["name"] == "(graph)" for span in spans) == steps


def test_a_file_of_requests_is_answered_alike(path, tmp_path):
    source = tmp_path / "in.jsonl"
    lines = [{"prompt": "a" * n, "max_tokens": 4 + n, "seed": n, "temperature": n % 2 * 0.7}
             for n in range(1, 7)]  # fmt: skip
    source.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    texts = []
    for i, capture in enumerate(("off", "1,2,4")):
        target = tmp_path / f"{i}.jsonl"
        given = ("--model", path, "--batch-file", source, "--output", target, "--capture", capture)
        result = call(*given, "--observe")
        assert result.exit_code == 0, result.output
        found = map(json.loads, target.read_text(encoding="utf-8").splitlines())
        texts.append({line["custom_id"]: line["text"] for line in found})
    assert texts[0] == texts[1]


def test_without_a_word_hardware_captures_powers_of_two():
    def device(execution):
        word = SimpleNamespace(value=execution)
        return SimpleNamespace(capture=SimpleNamespace(execution=word))

    assert sizes(device("hardware"), None, 1)[1] == (1,)
    assert sizes(device("hardware"), None, 6)[1] == (1, 2, 4, 8)
    assert sizes(device("hardware"), None, 8)[1] == (1, 2, 4, 8)
    assert sizes(device("emulated"), None, 8) == ("capture", (), "device: emulated")
    assert sizes(device("hardware"), (), 8) == ("capture", (), "command line")
