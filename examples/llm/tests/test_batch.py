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
        run.said = result.stderr
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
