from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.answer import Answer


class Letters:
    """A tokenizer whose tokens are bytes of UTF-8."""

    def decode(self, ids):
        return bytes(ids).decode(errors="replace")


def pieces(text, *stops):
    answer, raw = Answer(Letters(), stops), text.encode()
    said = []
    for i, byte in enumerate(raw):
        said.append(answer.push(byte, last=i + 1 == len(raw)))
        if answer.stopped:
            break
    return said, answer.stopped


@pytest.mark.parametrize(
    ("text", "stops", "want"),
    [
        ("one. two", [". "], "one"),
        ("aab", ["ab"], "a"),
        ("abab", ["abc"], "abab"),
        ("xyz", ["yz", "xy"], ""),
        ("a\u00e9b", ["\u00e9"], "a"),
        ("plain", [], "plain"),
    ],
)
def test_a_stop_string_ends_the_text_wherever_tokens_end(text, stops, want):
    said, stopped = pieces(text, *stops)
    assert "".join(said) == want
    assert stopped == (want != text)


@settings(deadline=None, max_examples=200)
@given(st.text("ab\u00e9", max_size=20), st.lists(st.text("ab\u00e9", min_size=1, max_size=4)))
def test_pieces_are_the_text_before_the_first_stop_string(text, stops):
    said, stopped = pieces(text, *stops)
    found = [text.find(stop) for stop in stops if stop in text]
    assert stopped == bool(found)
    # with several stop strings, the one that is whole first wins
    if stopped:
        assert text.startswith("".join(said))
        assert not any(stop in "".join(said) for stop in stops)
    else:
        assert "".join(said) == text


def test_what_may_become_a_stop_string_is_held_back_and_then_given():
    assert pieces("a.b", ".!") == (["a", "", ".b"], False)


def test_half_a_character_is_never_said():
    assert pieces("\u20ac!") == (["", "", "\u20ac", "!"], False)
