"""One model on several ranks: the tokens of one rank, and one report when a rank ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from click.testing import CliRunner

from llm import cli

LLM = Path(__file__).resolve().parents[1]
PROMPTS = ("one two", "abc", "the thing is that", "one two three")
WARM = ("--temperature", 0.9, "--seed", 3, "--repetition-penalty", 1.2)


def call(*arguments):
    result = CliRunner().invoke(cli.main, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def asked(path, *more):
    prompts = [part for prompt in PROMPTS for part in ("--prompt", prompt)]
    given = ("--dtype", "float32", "--max-tokens", 30, "--raw", "--json", "--observe")
    return call("--model", path, *prompts, *given, *more)


def ids(report):
    return [result["ids"] for result in report["results"]]


def ran(rank):
    """Calls by site, whoever made them; the first rank alone chooses tokens."""
    total = {}
    for row in rank["calls"]:
        if row["operator"] not in {"sample_token", "penalize_logits"}:
            total[row["site"]] = total.get(row["site"], 0) + row["calls"]
    return total


@pytest.mark.parametrize(
    "more",
    [("--cache-tokens", 64, "--preempt", "swap"), ("--capture", "2", *WARM)],
    ids=["swap", "captured"],
)
def test_two_ranks_say_what_one_does(tiny, tmp_path, more):
    path = tiny.write(tmp_path / "tiny.gguf")  # one head of keys, which both ranks have
    alone, both = asked(path, *more), asked(path, *more, "--tp", 2)
    assert ids(both) == ids(alone)
    assert both["cache"] == alone["cache"]
    assert "ranks" not in alone
    first, second = both["ranks"]
    assert (first["rank"], second["rank"]) == (0, 1)
    assert first["process"] != second["process"]
    assert ran(first) == ran(second)
    sites = {row["site"]: row for row in first["calls"]}
    layers = 2
    assert ran(first)["out, ranks"] == layers * ran(first)["embed, ranks"] == ran(first)["out"]
    assert sites["head, ranks"]["operator"] == "comm.gather"
    assert {"name": "tp", "value": 2, "source": "command line"} in both["settings"]


def test_four_ranks_say_what_one_does(directory, tmp_path):
    """Two heads of keys on four ranks; biases, and an embedding that is the head."""
    keys = {"attention_bias": True, "tie_word_embeddings": True}
    path = directory("llama", **keys).write(tmp_path / "model")
    assert ids(asked(path, "--tp", 4)) == ids(asked(path))


def test_uneven_shares_and_where_the_time_goes(directory, tmp_path):
    """Four heads and 272 tokens on three ranks; norms of heads."""
    path = directory("qwen3").write(tmp_path / "model")
    three = asked(path, "--tp", 3, "--time")
    assert ids(three) == ids(asked(path))
    (row,) = (r for r in three["time"] if r["site"] == "(ranks)")
    assert row["calls"] > 0


def children(pid):
    tasks, found = Path(f"/proc/{pid}/task"), []
    for task in tasks.iterdir() if tasks.exists() else ():
        found += [int(n) for n in (task / "children").read_text(encoding="ascii").split()]
    return found


def ranks_of(pid):
    """Ranks that a process has started: what shares memory with others, below its fork server."""
    below = [p for child in children(pid) for p in children(child)]
    return [p for p in below if "memfd:trivet" in text_of(f"/proc/{p}/maps")]


def text_of(path):
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:  # it has just ended
        return ""


def until(true, seconds=60):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def requests(tmp_path):
    """A file of requests that takes minutes."""
    path = tmp_path / "in.jsonl"
    lines = [{"prompt": "abc" * (1 + n % 9), "max_tokens": 40} for n in range(5000)]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


def test_a_rank_that_is_killed_ends_the_run_with_one_report(directory, tmp_path, requests):
    path, target, victims = directory().write(tmp_path / "model"), tmp_path / "out.jsonl", []

    def kill():
        until(lambda: target.exists() and target.stat().st_size)
        victims.extend(ranks_of(os.getpid()))
        os.kill(victims[0], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    given = ("--model", path, "--raw", "--batch-file", requests, "--output", target, "--tp", 3)
    result = CliRunner().invoke(cli.main, [str(a) for a in given])
    thread.join()
    assert result.exit_code == 2
    assert re.match(r"error: rank \d, process \d+, ended by SIGKILL\n  PeerLost: ", result.stderr)
    assert f"process {victims[0]}," in result.stderr
    assert len(victims) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in victims)
    assert "memfd:trivet" not in text_of("/proc/self/maps")


@contextmanager
def launched(size, *arguments):
    """Ranks as a launcher starts them."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(size)}
    command = [sys.executable, str(LLM), *map(str, arguments)]
    ranks = [
        subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **where, "RANK": str(rank)},
        )
        for rank in range(size)
    ]  # fmt: skip
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


def test_a_server_on_ranks_of_a_launcher_refuses_and_reports_once_one_is_lost(tiny, tmp_path):
    path = tiny.write(tmp_path / "tiny.gguf")
    with launched(2, "serve", "--model", path, "--port", "0") as (first, second):
        where = re.fullmatch(r"tiny on (http://\S+)\n", first.stderr.readline()).group(1)
        body = {"prompt": "ab", "max_tokens": 8, "temperature": 0}
        answer = httpx2.post(where + "/v1/completions", json=body, timeout=60).json()
        alone = call("--model", path, "--prompt", "ab", "--raw", "--max-tokens", 8, "--json")
        assert answer["choices"][0]["text"] == alone["results"][0]["text"]
        second.kill()
        refused = httpx2.post(where + "/v1/completions", json=body, timeout=60)
        assert refused.status_code == 500
        assert "PeerLost" in refused.text
        first.send_signal(signal.SIGTERM)
        told = first.communicate(timeout=60)[1]
        assert first.returncode == 2
    assert told.count("error: ") == told.count("PeerLost: ") == 1, told


@pytest.mark.soak
def test_where_the_first_rank_is_lost_the_next_one_tells(directory, tmp_path, requests):
    path, target = directory().write(tmp_path / "model"), tmp_path / "out.jsonl"
    given = ("--model", path, "--raw", "--batch-file", requests, "--output", target)
    with launched(3, *given) as ranks:
        until(lambda: target.exists() and target.stat().st_size)
        ranks[0].kill()
        told = [rank.communicate(timeout=60)[1] for rank in ranks[1:]]
        assert [rank.returncode for rank in ranks[1:]] == [2, 2]
    assert told[0].startswith("error: PeerLost: "), told
    assert told[1] == ""


def test_what_cannot_be_shared_out_is_refused_by_name(tiny, tmp_path, monkeypatch):
    path = tiny.write(tmp_path / "tiny.gguf")
    result = CliRunner().invoke(cli.main, ["--model", str(path), "--tp", "3"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "3 ranks cannot share 2 heads" in result.stderr
    assert result.stderr.count("error: ") == 1
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    refusals = {"MASTER_ADDR": "the variables of the launcher cannot be right"}
    assert refusals["MASTER_ADDR"] in CliRunner().invoke(cli.main, []).stderr
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    result = CliRunner().invoke(cli.main, ["--tp", "3"])
    assert "--tp 3 was given, and torchrun has started 4 ranks" in result.stderr
