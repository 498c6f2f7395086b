from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from llm import cli


@pytest.fixture
def call(tiny, tmp_path):
    path = tiny.write(tmp_path / "tiny.gguf")
    source, target = tmp_path / "in.jsonl", tmp_path / "in.out.jsonl"

    def run(lines, *more, code=0):
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        source.write_text("\n".join(texts) + "\n", encoding="utf-8")
        given = ["--model", path, "--batch-file", source, "--max-tokens", 3, *more]
        result = CliRunner().invoke(cli.main, [str(a) for a in given])
        assert result.exit_code == code, result.output
        run.said, run.shown = result.stderr, result.stdout
        if not target.exists():
            return {}
        answers = [json.loads(line) for line in target.read_text().splitlines()]
        run.order = [answer["custom_id"] for answer in answers]
        return {answer["custom_id"]: answer for answer in answers}

    run.target = target
    return run


def openai(name, **body):
    url = "/v1/chat/completions"
    return {"custom_id": name, "method": "POST", "url": url, "body": {"temperature": 0, **body}}


def test_both_kinds_of_lines_are_answered_alike(call):
    says = [{"role": "user", "content": "ab"}]
    answers = call([openai("a", messages=says), {"custom_id": "b", "prompt": "ab"}])
    body = answers["a"]["response"]["body"]
    assert answers["a"]["response"]["status_code"] == 200
    assert body["choices"][0]["message"]["content"] == answers["b"]["text"]
    assert body["usage"] == answers["b"]["usage"]
    assert answers["b"]["finish_reason"] == "length"


def test_answers_come_as_they_are_finished(call):
    call([{"custom_id": "long", "prompt": "a", "max_tokens": 9}, {"prompt": "b", "max_tokens": 1}])
    assert call.order == ["line-2", "long"]


@pytest.mark.parametrize(
    ("line", "param"),
    [
        ("{", None),
        ("[1]", None),
        ({"prompt": ""}, "messages"),
        ({"prompt": "a", "max_tokens": "many"}, "max_tokens"),
        ({"prompt": "a", "stream": True}, "stream"),
        ({"prompt": "a", "colour": 1}, "colour"),
        ({"body": 3}, "body"),
        ({"body": {}, "url": "/v1/embeddings"}, "url"),
        ({"prompt": "a" * 300}, None),
    ],
)
def test_a_line_that_is_refused_says_why_and_the_others_go_on(call, line, param):
    tokens = {"prompt": []} if line == {"prompt": ""} else None
    answers = call(
        [tokens or line, {"custom_id": "good", "prompt": "a"}], *(["--raw"] * bool(tokens))
    )
    error = answers["line-1"]["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == ("prompt" if tokens else param)
    assert error["line"] == 1
    assert answers["good"]["error"] is None
    assert "1 answered, 1 refused" in call.said


def test_an_id_that_is_there_twice_is_refused(call):
    call([{"custom_id": "a", "prompt": "a"}, {"custom_id": "a", "prompt": "b"}])
    assert sorted(call.order) == ["a", "a"]
    assert "1 answered, 1 refused" in call.said


def test_a_run_goes_on_where_the_output_ends(call):
    lines = [{"custom_id": f"{i}", "prompt": "x" * (i + 1)} for i in range(5)]
    whole = call(lines)
    kept = call.target.read_text().splitlines(keepends=True)
    call.target.write_text("".join(kept[:2]) + kept[2][:9])
    assert call(lines) == whole
    assert "3 answered, 2 kept" in call.said


def test_another_file_is_not_written_to(call):
    call.target.write_text("my diary\n")
    with pytest.raises(json.JSONDecodeError):
        call([{"prompt": "a"}], code=2)
    assert call.target.read_text() == "my diary\n"


def test_a_seed_gives_the_text_again_in_another_batch(call):
    line = {"prompt": "ab", "temperature": 1.5, "max_tokens": 9}
    (first,) = call([line]).values()
    call.target.unlink()
    again = {**line, "custom_id": "again", "seed": first["seed"]}
    others = [{"prompt": "c" * n, "temperature": 1} for n in range(1, 6)]
    assert call([*others, again])["again"]["text"] == first["text"]


def test_a_run_can_be_traced(call, tmp_path):
    call([{"prompt": "a"}, {"prompt": "b"}], "--trace", tmp_path / "t.json", "--observe")
    document = json.loads((tmp_path / "t.json").read_text())
    assert sum(e["name"] == "request" for e in document["traceEvents"]) == 2
    assert document["otherData"]["sites"]


def test_a_file_that_is_not_there_is_one_clear_error(call, tmp_path):
    call([], "--batch-file", tmp_path / "none", "--output", tmp_path / "o", code=2)
    assert "none: No such file" in call.said


def test_options_of_sampling_hold_where_a_line_says_nothing(call):
    lines = [
        {"custom_id": "as given", "prompt": "ab"},
        {"custom_id": "own seed", "prompt": "ab", "seed": 8},
        {"custom_id": "own", "prompt": "ab", "temperature": 1.5, "top_k": 9, "seed": 7},
        {"custom_id": "cold", "prompt": "ab", "temperature": 0},
        openai("theirs", messages=[{"role": "user", "content": "ab"}], temperature=None),
    ]
    options = ("--temperature", 1.5, "--top-k", 9, "--seed", 7, "--max-tokens", 9)
    answers = call(lines, *options)
    assert answers["as given"]["seed"] == answers["own"]["seed"] == 7
    assert answers["as given"]["text"] == answers["own"]["text"] != answers["own seed"]["text"]
    assert answers["own seed"]["seed"] == 8
    assert "seed" not in answers["cold"]
    assert answers["theirs"]["response"]["body"]["seed"] == 7
    assert "seed 7 where a line has none" in call.said


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--top-k", 1),
        ("--top-p", 0),
        ("--min-p", 1),
        ("--repetition-penalty", 0.01),
        ("--presence-penalty", 2),
        ("--frequency-penalty", 2),
    ],
)
def test_no_option_of_sampling_is_lost_and_a_line_wins_over_it(call, option, value):
    """What the line says must give what the option gives, and what is off in it turns it off."""
    name = option[2:].replace("-", "_")
    off = {"top_k": 0, "top_p": 1, "repetition_penalty": 1}.get(name, 0)
    base = {"prompt": "ab" * 9, "temperature": 0.4, "seed": 3, "max_tokens": 40}
    said = call([{**base, name: value}, {**base, name: off}])
    call.target.unlink()
    given = call([base, {**base, name: off}], option, value)
    assert given == said
    assert said["line-1"]["text"] != said["line-2"]["text"]


def test_options_that_a_file_has_no_use_for_are_refused_by_name(call):
    call([], "--prompt", "a", "--json", "--stop", "b", code=2)
    assert "takes no --prompt and no --json and no --stop" in call.said
    assert "lines of the file" in call.said


def test_an_output_without_a_file_is_refused(tmp_path):
    result = CliRunner().invoke(cli.main, ["--output", str(tmp_path / "o")])
    assert result.exit_code == 2
    assert "--output" in result.stderr
    assert result.stderr.startswith("error: ")


def test_what_ran_is_shown_at_the_end(call):
    call([{"prompt": "a"}])
    assert "what ran" not in call.shown
    call.target.unlink()
    call([{"prompt": "a"}], "--observe")
    assert "what ran" in call.shown
    assert "rotary_kv" in call.shown
    call.target.unlink()
    call([{"prompt": "a"}], "--time")
    assert "what ran" not in call.shown
    assert "where the time of the steps went" in call.shown
