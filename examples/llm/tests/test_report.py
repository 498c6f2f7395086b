from __future__ import annotations

import io

import pytest
from rich.console import Console

from llm import report
from llm.schedule import Request
from llm.timing import shares

FOREIGN = "[/red] [bold]x"


def row(site, implementation, calls, why="it is fast"):
    named = {"site": site, "operator": "rms_norm", "form": "functional"}
    return named | {"implementation": implementation, "calls": calls, "why": why}


def shown(*calls, reason=FOREIGN, **more):
    console = Console(file=io.StringIO(), width=200)
    given = {
        "settings": [{"name": "device", "value": reason, "source": reason}],
        "calls": [row(*call) for call in calls],
        "memory": {"weights": 5_000_000, "kv_cache": 1_600_000},
        "cache": {"prompt_tokens": 90, "reused_tokens": 48, "preemptions": 0},
        "load_seconds": 1.0,
        "first_token_seconds": 0.1,
        "tokens_per_second": 9.0,
        **more,
    }
    report.show(given, console)
    return console.file.getvalue()


def streamed(prompts, finishes):
    """What is printed when each request gives ``a`` and then ``b``, the last request first."""
    console = Console(file=io.StringIO())
    requests = {Request([1], 2, "length"): prompt for prompt in prompts}
    texts = report.Texts(requests, console)
    for request, finish in reversed(list(zip(requests, finishes, strict=True))):
        for token in b"ab":
            request.output.append(token)
            request.finish = finish if token == ord("b") else ""
            texts.push(request, chr(token))
    assert list(texts.texts.values()) == ["ab"] * len(prompts)
    return console.file.getvalue()


def test_foreign_text_is_shown_and_never_read_as_markup():
    text = shown((FOREIGN, FOREIGN, 1), (FOREIGN, FOREIGN, 2))
    assert text.count(FOREIGN) == 6
    assert shown((FOREIGN, "reference", 1, FOREIGN)).count(FOREIGN) == 6
    assert shown((FOREIGN, FOREIGN, None)).count(FOREIGN) == 4


def test_what_ran_comes_before_the_settings():
    text = shown(("norm", "vendor/vec", 7))
    assert text.index("what ran") < text.index("vendor/vec") < text.index("settings")
    assert "calls" in text
    assert "what is bound" not in text


def test_what_is_bound_has_one_line_a_site_and_no_calls():
    text = shown(("down", "vendor/wide", None), ("down", "vendor/torch", None))
    assert "what is bound" in text
    assert "vendor/wide, vendor/torch" in text
    assert "calls" not in text
    assert "what ran" not in text


@pytest.mark.parametrize("count", [None, 3])
def test_sites_on_the_reference_are_counted_once(count):
    calls = ("a", "reference", count), ("a", "vendor/vec", count), ("b", "vendor/vec", count)
    assert "1 of 2 sites run on the reference of trivet" in shown(*calls)
    assert "reference" not in shown(*calls[1:])


@pytest.mark.parametrize("count", [None, 3])
def test_a_site_on_the_reference_says_why_and_what_to_ask(count):
    text = shown(("a", "reference", count, "preferred by FILE"), ("b", "vendor/vec", count))
    assert "  a, trivet explain rms_norm: preferred by FILE\n" in text
    assert "  b," not in text


def test_operator_form_and_reason_stand_beside_the_counts():
    changed = row("norm", "vendor/vec", 7) | {"form": "inplace"}
    console = Console(file=io.StringIO(), width=200)
    report.show_calls([changed], console)
    assert "rms_norm, inplace" in console.file.getvalue()
    assert "it is fast" in console.file.getvalue()


def test_time_is_shown_with_share_and_mean():
    ran = [row("norm", "vendor/vec", 3) | {"seconds": 0.75}]
    text = shown(("norm", "vendor/vec", 3), time=shares(ran, 1.0))
    (line,) = (line.split() for line in text.splitlines() if "75.0%" in line)
    assert line == ["norm", "rms_norm", "vendor/vec", "3", "750.0", "75.0%", "250000.0"]
    assert "(engine)" in text


def test_each_prompt_stands_before_its_answer():
    text = streamed([FOREIGN, "two\nlines"], ["stop", "stop"])
    assert text == f"> {FOREIGN}\nab\n\n> two\n> lines\nab\n\n"


@pytest.mark.parametrize(
    ("finish", "said"),
    [
        ("length", "[2 tokens, cut]"),
        ("cache", "[2 tokens, cut: the KV cache is full]"),
        ("context", "[2 tokens, cut: the context of the model is full]"),
    ],
)
def test_an_answer_that_was_cut_says_why(finish, said):
    assert streamed(["p"], [finish]) == f"> p\nab\n{said}\n\n"


def test_memory_is_shown_by_what_it_is_for():
    assert "memory: weights 5 MB, kv cache 2 MB" in shown(("norm", "vendor/vec", 7))


def test_the_cache_says_what_it_saved_and_cost():
    assert "KV cache: 48 of 90 prompt tokens were there already\n" in shown()
    cost = {"prompt_tokens": 9, "reused_tokens": 0, "preemptions": 3}
    assert "there already, requests put aside: 3\n" in shown(cache=cost)
