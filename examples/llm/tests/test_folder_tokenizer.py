"""The tokenizer of a directory: what its files mean, and what is refused."""

from __future__ import annotations

import pytest

from llm import source
from llm.errors import ModelFileError, RequestError

BPE = {"type": "BPE", "vocab": {"a": 0}, "merges": []}


@pytest.fixture
def model(directory):
    return directory()


def tokenizer(model, tmp_path):
    return source.read(model.write(tmp_path / "m")).tokenizer()


def test_text_survives_and_special_words_are_tokens(model, tmp_path):
    codec = tokenizer(model, tmp_path)
    ids = codec.encode("the <|end|>ß")
    assert ids[0] == 256
    assert 258 in ids
    assert codec.decode(ids, special=True) == "the <|end|>ß"
    assert codec.decode(ids) == "the ß"


@pytest.mark.parametrize("wrap", [False, True])
def test_the_first_token_is_added_once(model, tmp_path, wrap):
    word = "<|start|>"
    model.tokenizer_config = {
        "bos_token": {"content": word} if wrap else word,
        "add_bos_token": True,
        "chat_template": "{{ bos_token }}{{ messages[0].content }}",
    }
    codec = tokenizer(model, tmp_path)
    assert codec.encode("a") == [257, ord("a")]
    assert codec.encode(codec.chat("a")) == [257, ord("a")]


def test_the_first_token_may_come_from_the_codec(model, tmp_path):
    model.tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<|start|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<|start|>": {"id": "<|start|>", "ids": [257], "tokens": ["<|start|>"]}},
    }
    assert tokenizer(model, tmp_path).encode("a") == [257, ord("a")]
    model.tokenizer_config = {"add_bos_token": False}
    assert tokenizer(model, tmp_path).encode("a") == [ord("a")]


def test_a_length_that_the_codec_would_cut_at_is_ignored(model, tmp_path):
    cut = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    model.tokenizer["truncation"] = cut
    assert len(tokenizer(model, tmp_path).encode("abcdefgh")) == 8


@pytest.mark.parametrize(
    ("generation", "config", "own", "wanted"),
    [
        ({"eos_token_id": [258, 7]}, 5, "<|start|>", {258, 7}),
        ({}, 5, "<|start|>", {5}),
        (None, None, "<|end|>", {258}),
        (None, None, None, set()),
    ],
)
def test_end_tokens_are_those_of_the_first_file_that_has_some(
    model, tmp_path, generation, config, own, wanted
):
    model.generation, model.config["eos_token_id"] = generation, config
    model.tokenizer_config = {"eos_token": own}
    assert tokenizer(model, tmp_path).eos == wanted


@pytest.mark.parametrize("value", [272, -1, "258", True, [258, 272], {"a": 1}])
def test_an_end_token_that_does_not_exist_is_named(model, tmp_path, value):
    model.generation = {"eos_token_id": value}
    with pytest.raises(ModelFileError, match=r"eos_token_id [01] is"):
        tokenizer(model, tmp_path)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model": None}, "tokenizer of the model fails"),
        (
            {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}},
            "tokenizer of the model fails",
        ),
        ({"model": BPE | {"vocab": {"a": 272}}}, "token with id 272"),
        ({"version": 7}, "tokenizer of the model fails"),
    ],
)
def test_a_codec_that_does_not_fit_is_refused(model, tmp_path, change, named):
    model.tokenizer |= change
    with pytest.raises(ModelFileError, match=named):
        tokenizer(model, tmp_path)


def test_a_codec_that_panics_is_one_clear_error(model, tmp_path):
    steps = [
        {"type": "Prepend", "prepend": "_"},
        {"type": "Replace", "pattern": {"String": ""}, "content": "_"},
    ]
    model.tokenizer["normalizer"] = {"type": "Sequence", "normalizers": steps}
    codec = tokenizer(model, tmp_path)
    with pytest.raises(ModelFileError, match="the tokenizer of the model fails"):
        codec.encode("a the")
    model.tokenizer["model"]["continuing_subword_prefix"] = "<|end|>"
    with pytest.raises(ModelFileError, match="the tokenizer of the model fails"):
        tokenizer(model, tmp_path)


@pytest.mark.parametrize("key", ["bos_token", "eos_token", "chat_template"])
def test_a_word_or_template_of_another_type_is_named(model, tmp_path, key):
    model.tokenizer_config = {key: 5}
    with pytest.raises(ModelFileError, match=key):
        tokenizer(model, tmp_path)


def test_a_template_of_its_own_file_wins_and_named_ones_are_understood(model, tmp_path):
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    model.tokenizer_config = {"chat_template": named}
    assert tokenizer(model, tmp_path).chat("x") == "d"
    (tmp_path / "m" / "chat_template.jinja").write_text("file {{ messages[0].content | tojson }}")
    assert tokenizer(model, tmp_path).chat("<ß>") == 'file "<ß>"'


@pytest.mark.parametrize(
    "template", ["{{ raise_exception('no') }}", "{{ ''.__class__.__mro__ }}", "{% if %}"]
)
def test_a_hostile_template_is_one_clear_error(model, tmp_path, template):
    model.tokenizer_config = {"chat_template": template}
    with pytest.raises(RequestError, match="--raw"):
        tokenizer(model, tmp_path).chat("x")
