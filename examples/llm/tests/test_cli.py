from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import trivet
from llm import cli, options, schedule, start
from llm.errors import FetchError

EXAMPLES = Path(__file__).resolve().parents[2]


@pytest.fixture
def path(tiny, tmp_path):
    return tiny.write(tmp_path / "tiny.gguf")


def call(*arguments):
    return CliRunner().invoke(cli.main, [str(a) for a in arguments])


def refused(*arguments):
    """The one message of a run that is refused."""
    result = call(*arguments)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    assert result.stdout == ""
    return result.stderr


def answers(*arguments):
    result = call("--json", *arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_text_settings_and_speed_are_shown(path):
    result = call("--model", path, "--prompt", "one", "--max-tokens", 5, "--dtype", "float32")
    assert result.exit_code == 0, result.output
    assert "command line" in result.stdout
    assert "tokens/s" in result.stdout


def test_several_prompts_keep_their_order_and_texts(path):
    many = ["--model", path, "--raw", "--max-tokens", 6, "--prompt", "one", "--prompt", "three"]
    report = answers(*many)
    for prompt, result in zip(("one", "three"), report["results"], strict=True):
        (alone,) = answers("--model", path, "--raw", "--max-tokens", 6, "--prompt", prompt)[
            "results"
        ]
        assert result == alone
    shown = call(*many).stdout
    first, second = (result["text"] for result in report["results"])
    cut = "\n[6 tokens, cut]\n\n"
    assert all(result["finish"] == "length" for result in report["results"])
    assert shown.startswith(f"> one\n{first}{cut[:-1]}\n> three\n{second}{cut[:-1]}")


def test_the_template_is_applied_unless_raw(path):
    chat, raw = (
        answers("--model", path, "--prompt", "ab", "--max-tokens", 1, *more)["results"][0]
        for more in ((), ("--raw",))
    )
    assert (chat["prompt_tokens"], raw["prompt_tokens"]) == (3, 2)


def test_the_user_wins_over_the_device_and_both_are_named(path):
    proposed, own = (
        {s["name"]: s for s in answers("--model", path, "--max-tokens", 1, *more)["settings"]}
        for more in ((), ("--block-size", 8))
    )
    assert proposed["block_size"]["source"] != "command line"
    assert own["block_size"] == {"name": "block_size", "value": 8, "source": "command line"}
    assert own["dtype"] == proposed["dtype"]


def test_observation_counts_every_site(path):
    report = answers("--model", path, "--observe", "--max-tokens", 3, "--prompt", "a")
    calls = {}
    for row in report["calls"]:
        calls[row["site"]] = calls.get(row["site"], 0) + row["calls"]
    assert calls["embed"] == calls["norm"] == calls["head"] == calls["sample"] == 3
    assert calls["qkv"] == calls["attention"] == calls["rotary_kv"] == 2 * 3
    assert calls["add_norm"] == 4 * 3
    (row,) = (r for r in report["calls"] if r["site"] == "attention")
    assert (row["operator"], row["form"]) == ("paged_attention", "functional")
    assert row["why"] == "first in the order of its package"
    assert "time" not in report


def test_a_site_that_somebody_moved_to_the_reference_says_who(path, monkeypatch):
    monkeypatch.setenv("TRIVET_PROVIDERS", "paged_attention=reference")
    shown = call("--model", path, "--observe", "--max-tokens", 2, "--prompt", "a").stdout
    reason = "preferred by TRIVET_PROVIDERS paged_attention"
    assert f"  attention, trivet explain paged_attention: {reason}\n" in shown
    report = answers("--model", path, "--max-tokens", 1)
    assert {
        "name": "trivet.providers",
        "value": "paged_attention=reference",
        "source": "TRIVET_PROVIDERS",
    } in report["settings"]
    monkeypatch.delenv("TRIVET_PROVIDERS")
    report = answers("--model", path, "--max-tokens", 1, "--strict")
    assert {"name": "strict", "value": True, "source": "command line"} in report["settings"]


def test_times_are_taken_where_they_are_asked_for(path, tmp_path):
    trace = tmp_path / "t.json"
    given = ("--model", path, "--max-tokens", 3, "--prompt", "a")
    report = answers(*given, "--time", "--trace", trace)
    assert report["results"] == answers(*given)["results"]
    times = report["time"]
    assert sum(row["share"] for row in times) == pytest.approx(1)
    assert [row["seconds"] for row in times] == sorted((r["seconds"] for r in times), reverse=True)
    ran = {row["site"]: row["calls"] for row in times}
    assert ran["attention"] == 2 * 3
    assert ran["(engine)"] is None
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    steps = [e for e in events if e["name"] == "step"]
    calls = [e for e in events if e["name"] == "attention"]
    assert [c["args"]["operator"] for c in calls] == ["paged_attention"] * 6
    for call in calls:
        inside = [s for s in steps if s["ts"] <= call["ts"] <= s["ts"] + s["dur"]]
        assert len(inside) == 1


def test_a_lock_is_written_and_holds_the_next_run(path, tmp_path, monkeypatch):
    lock = tmp_path / "lock.json"
    given = ("--model", path, "--max-tokens", 1)
    said = call(*given, "--save-lock", lock).stderr
    assert said.startswith(f"{lock}: lock of 14 sites, digest ")
    monkeypatch.setenv("TRIVET_LOCK", str(lock))
    chosen = {s["name"]: s["source"] for s in answers(*given)["settings"]}
    assert chosen["trivet.lock"] == "TRIVET_LOCK"
    monkeypatch.setenv("TRIVET_FORBID", "paged_attention=cpu/vec")
    error = refused(*given)
    assert error.startswith("error: the lock and this process differ in 1 field(s)\n")
    assert "sites.attention.choices: locked " in error
    assert "restore what changed, or write a new lock" in error


def test_a_lock_that_cannot_be_written_is_one_clear_error(path, tmp_path):
    where = tmp_path / "no" / "lock.json"
    error = refused("--model", path, "--max-tokens", 1, "--save-lock", where)
    assert error.startswith("error: the lock cannot be written: ")


def test_every_promise_to_the_plan_holds(path, monkeypatch):
    prompts = [a for i in range(3) for a in ("--prompt", "w" * (3 * i + 1))]
    options = ("--model", path, "--raw", "--budget", 8, "--max-tokens", 4, *prompts)
    plain = answers(*options)["results"]
    monkeypatch.setenv("TRIVET_CHECK", "1")
    assert answers(*options)["results"] == plain


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_dtype_generates(path, dtype):
    (result,) = answers("--model", path, "--dtype", dtype, "--max-tokens", 4)["results"]
    assert 0 < len(result["ids"]) <= 4


def test_a_drawn_seed_is_told_and_gives_the_text_again(path):
    options = ("--model", path, "--raw", "--prompt", "ab", "--temperature", 2, "--max-tokens", 12)
    first = answers(*options)
    (seed,) = (row["value"] for row in first["settings"] if row["name"] == "seed")
    (result,) = first["results"]
    assert result["seed"] == seed
    assert answers(*options, "--seed", seed)["results"] == [result]
    assert answers(*options, "--seed", seed + 1 - 2 * (seed > 9))["results"] != [result]


def test_a_stop_string_ends_an_answer(path):
    options = ("--model", path, "--raw", "--prompt", "ab", "--max-tokens", 12)
    (whole,) = answers(*options)["results"]
    stop = whole["text"][2:4]
    (cut,) = answers(*options, "--stop", stop)["results"]
    assert cut["text"] == whole["text"][: whole["text"].index(stop)]
    assert cut["finish"] == "stop"
    assert len(cut["ids"]) < 12
    assert "stop string is empty" in refused(*options, "--stop", "")


def test_a_trace_is_written(path, tmp_path):
    answers("--model", path, "--trace", tmp_path / "t.json", "--max-tokens", 2)
    events = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))["traceEvents"]
    assert {"step", "request", "decode"} <= {event["name"] for event in events}


def test_a_batch_that_is_too_large_queues(path):
    prompts = [a for i in range(5) for a in ("--prompt", "x" * (i + 1))]
    few = answers("--model", path, "--raw", "--batch", 2, "--max-tokens", 4, *prompts)
    all_ = answers("--model", path, "--raw", "--batch", 8, "--max-tokens", 4, *prompts)
    assert few["results"] == all_["results"]
    assert len(few["results"]) == 5


def test_a_cache_that_is_too_small_for_all_queues(path):
    prompts = [a for i in range(4) for a in ("--prompt", "y" * (i + 9))]
    options = ("--model", path, "--raw", "--block-size", 4, "--max-tokens", 8, *prompts)
    assert answers("--cache-tokens", 24, *options)["results"] == answers(*options)["results"]


def test_a_missing_model_is_refused(tmp_path):
    assert "No such file" in refused("--model", tmp_path / "none.gguf")


def test_a_truncated_model_is_refused(path):
    path.write_bytes(path.read_bytes()[:-5000])
    assert "truncated" in refused("--model", path)


def test_another_architecture_is_refused(tiny, tmp_path):
    tiny.metadata["general.architecture"] = "gpt2"
    assert "'gpt2'" in refused("--model", tiny.write(tmp_path / "m.gguf"))


def test_missing_and_left_over_parameters_are_refused(tiny, tmp_path):
    kept = tiny.tensors.pop("blk.0.ffn_up.weight")
    assert "is missing" in refused("--model", tiny.write(tmp_path / "m.gguf"))
    tiny.tensors |= {"blk.0.ffn_up.weight": kept, "odd.weight": kept}
    assert "not used: odd.weight" in refused("--model", tiny.write(tmp_path / "m.gguf"))


def test_a_prompt_longer_than_the_cache_is_refused(path):
    error = refused("--model", path, "--raw", "--prompt", "z" * 40, "--cache-tokens", 32)
    assert "40 tokens, the KV cache holds 32" in error


def test_a_prompt_longer_than_the_context_is_refused(path):
    error = refused("--model", path, "--raw", "--prompt", "z" * 300)
    assert "context is 256" in error


def test_a_cache_that_no_machine_holds_is_refused(path):
    assert "out-of-memory" in refused("--model", path, "--cache-tokens", 10**13)


def test_an_empty_prompt_is_refused(path):
    assert "needs a prompt" in refused("--model", path, "--raw", "--prompt", "")


def test_a_budget_below_the_batch_is_refused(path):
    assert "budget of 4" in refused("--model", path, "--batch", 8, "--budget", 4)


def test_an_unknown_device_is_refused_by_name(path):
    assert "nosuch" in refused("--model", path, "--device", "nosuch")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--dtype", "float31"),
        ("--batch", "0"),
        ("--max-tokens", "many"),
        ("--threads", "0"),
        ("--threads", str(options.MOST_THREADS + 1)),
    ],
)
def test_a_bad_option_is_refused_by_name(path, option, value):
    assert option in refused("--model", path, option, value)


def test_a_dtype_that_a_device_proposes_is_checked():
    with pytest.raises(cli.RequestError, match="'int8' is not a floating dtype"):
        start.as_dtype("int8")


def test_a_prompt_that_is_no_text_is_refused(path):
    error = refused("--model", path, "--prompt", "ab\udcff")
    assert r"'ab\udcff' is not valid text at character 2" in error


def test_the_device_is_named_as_trivet_names_it(path):
    device = trivet.device("cpu")
    (row,) = (
        s
        for s in answers("--model", path, "--device", "cpu", "--max-tokens", 1)["settings"]
        if s["name"] == "device"
    )
    assert row["value"] == f"{device.info.kind}:{device.info.index} {device.info.name}"


def test_without_observation_every_provider_of_a_site_is_listed(path):
    bound = {}
    for row in answers("--model", path, "--device", "cpu", "--max-tokens", 1)["calls"]:
        assert row["calls"] is None
        bound.setdefault(row["site"], set()).add(row["implementation"])
    # steps of many tokens and of one may take different products; both must be listed
    ran = answers("--model", path, "--device", "cpu", "--observe", "--prompt", "a" * 20)["calls"]
    only_when_asked_for = {"sample_random", "penalize"}
    assert {row["site"] for row in ran} == set(bound) - only_when_asked_for
    for row in ran:
        assert row["implementation"] in bound[row["site"]]


def test_what_the_fetch_says_is_printed_as_it_is(monkeypatch):
    def fail(say):
        say("into [/red] [bold]x")
        raise FetchError("no [/red] network")

    monkeypatch.setattr(start, "fetch", fail)
    assert refused() == "into [/red] [bold]x\nerror: no [/red] network\n"


def test_a_model_that_cannot_be_fetched_is_refused(monkeypatch):
    def fail(say):
        say("downloading")
        raise FetchError("no network", fix="use --model PATH")

    monkeypatch.setattr(start, "fetch", fail)
    assert "no network\n  fix: use --model PATH" in refused()


def test_an_interrupt_ends_cleanly(path, monkeypatch):
    released = []
    monkeypatch.setattr(schedule.Scheduler, "cancel_all", lambda _: released.append(True))

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(start.Llama, "step", interrupt)
    result = call("--model", path)
    assert result.exit_code == 130
    assert released == [True]
    assert "stopped" in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize("start", [[EXAMPLES / "llm"], ["-m", "llm"]])
def test_the_command_starts_by_folder_and_by_name(start):
    done = subprocess.run(
        [sys.executable, *map(str, start), "--model", "none.gguf"],
        cwd=EXAMPLES,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: none.gguf: No such file" in done.stderr
    assert "Traceback" not in done.stderr


def started(*arguments, stdout=subprocess.PIPE, **environment):
    return subprocess.run(
        [sys.executable, EXAMPLES / "llm", *map(str, arguments)],
        env={**os.environ, **environment},
        stdout=stdout,
        stderr=subprocess.PIPE,
        check=False,
    )


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_an_output_that_cannot_be_written_is_one_clear_error(path, more):
    with Path(os.devnull).open("rb") as unwritable:
        done = started("--model", path, "--max-tokens", 2, *more, stdout=unwritable)
    assert done.returncode == 2
    assert done.stderr.decode().startswith("error: the output cannot be written: ")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_closed_pipe_ends_quietly(path, more):
    read, write = os.pipe()
    os.close(read)
    try:
        done = started("--model", path, "--max-tokens", 2, *more, stdout=write)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_terminal_that_cannot_show_a_character_gets_another(path):
    done = started(
        *("--model", path, "--raw", "--prompt", "café", "--max-tokens", 2),
        PYTHONIOENCODING="ascii",
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"> caf?")
