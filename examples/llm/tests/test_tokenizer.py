from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.errors import ModelFileError, RequestError
from llm.gguf_model import read_tokenizer
from llm.tokenizer import TextStream

PROBES = [
    "The capital of France is",
    "x = [1, 22, 333]  # répété\n\n\tdef f():\n",
    "日本語 and emoji 🙂👩‍👩‍👧",
    "<|im_start|>user\nhi<|im_end|>",
    "  many   spaces \r\n",
    "",
]


@pytest.mark.parametrize("text", PROBES)
def test_decoding_gives_the_encoded_text_back(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text), special=True) == text


# The vocabulary has no word for some control characters and for bytes from U+40000 on.
@settings(deadline=None, max_examples=100)
@given(text=st.text(st.characters(max_codepoint=0x3FFFF, exclude_categories=["Cs", "Cc"])))
def test_any_text_survives(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text), special=True) == text


@settings(deadline=None, max_examples=50)
@given(text=st.text(alphabet="aé日🙂 \n1", max_size=30))
def test_a_stream_gives_the_text_of_its_tokens_and_no_half_characters(tokenizer, text):
    stream = TextStream(tokenizer)
    pieces = [stream.push(token) for token in tokenizer.encode(text)]
    assert all("\ufffd" not in piece for piece in pieces)
    assert "".join(pieces) + stream.close() == text


def test_a_stream_that_ends_inside_a_character_says_so(tokenizer):
    ids = tokenizer.encode("🙂")
    assert len(ids) > 1
    stream = TextStream(tokenizer)
    assert stream.push(ids[0]) == ""
    assert "\ufffd" in stream.close()


def test_ids_are_those_of_another_implementation(tokenizer, reference):
    for prompt in reference:
        assert tokenizer.encode(prompt["text"]) == prompt["prompt_ids"]
        assert tokenizer.decode(prompt["fp32"]["ids"], special=True) == prompt["fp32"]["text"]


def test_the_chat_template_renders_as_elsewhere(tokenizer, reference):
    chats = [prompt for prompt in reference if prompt["kind"] == "chat"]
    assert len(chats) == 2
    for prompt in chats:
        (message,) = prompt["prompt"]
        assert tokenizer.chat(message["content"]) == prompt["text"]


def test_end_tokens_come_from_the_metadata(tokenizer, tiny):
    assert tokenizer.eos == {2}
    tiny.metadata["tokenizer.ggml.eot_token_id"] = 9
    assert read_tokenizer(tiny.metadata).eos == {256, 9}


def test_digits_are_single_tokens_and_merges_apply(tiny):
    tiny_tokenizer = read_tokenizer(tiny.metadata)
    assert tiny_tokenizer.encode("the") == [257, ord("e")]
    assert tiny_tokenizer.encode("12<|end|>") == [ord("1"), ord("2"), 256]
    assert tiny_tokenizer.decode([ord("a"), 256]) == "a"


def test_a_first_token_is_added_when_the_metadata_asks_for_it(tiny):
    tiny.metadata |= {"tokenizer.ggml.bos_token_id": 3, "tokenizer.ggml.add_bos_token": True}
    assert read_tokenizer(tiny.metadata).encode("a") == [3, ord("a")]


@pytest.mark.parametrize("key", ["model", "pre"])
def test_another_tokenizer_is_refused(tiny, key):
    tiny.metadata[f"tokenizer.ggml.{key}"] = "other"
    with pytest.raises(ModelFileError, match="other"):
        read_tokenizer(tiny.metadata)


def test_a_model_without_template_asks_for_raw_prompts(tiny):
    del tiny.metadata["tokenizer.chat_template"]
    with pytest.raises(RequestError, match="--raw"):
        read_tokenizer(tiny.metadata).chat("hi")


@pytest.mark.parametrize("template", ["{% if %}", "{{ ''.__class__.__mro__ }}", "{{ 1 / 0 }}"])
def test_a_bad_or_hostile_template_is_one_clear_error(tiny, template):
    tiny.metadata["tokenizer.chat_template"] = template
    with pytest.raises(RequestError, match="chat template of the model fails"):
        read_tokenizer(tiny.metadata).chat("hi")
