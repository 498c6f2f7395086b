"""Model files that parse and make no sense: each is one clear error of the command."""

from __future__ import annotations

import pytest
import torch
from click.testing import CliRunner

from llm import cli

NAN, INF = float("nan"), float("inf")
SIZES = (
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
)
REALS = ("rope.freq_base", "attention.layer_norm_rms_epsilon")


@pytest.fixture
def outcome(tiny, tmp_path):
    """Runs the command on the tiny model with some metadata replaced (None: left out)."""

    def run(changes, *more):
        for key, value in changes.items():
            tiny.metadata[key] = value
            if value is None:
                del tiny.metadata[key]
        path = tiny.write(tmp_path / "m.gguf")
        arguments = ["--json", "--model", str(path), "--max-tokens", "2", *more]
        return CliRunner().invoke(cli.main, arguments)

    return run


@pytest.fixture
def refusal(outcome):
    def run(changes):
        result = outcome(changes)
        assert (result.exit_code, result.stdout) == (2, ""), repr(result.exception)
        assert result.stderr.startswith("error: ")
        return result.stderr

    return run


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize("value", [None, 0, 0.5, 2.0, True, "2", [2, 2], NAN])
def test_a_size_that_is_no_whole_number_is_named(refusal, key, value):
    assert f"llama.{key}" in refusal({f"llama.{key}": value})


@pytest.mark.parametrize("key", REALS)
@pytest.mark.parametrize("value", [None, 0.0, -1.0, NAN, INF, True, "1", [1.0]])
def test_a_factor_that_is_not_positive_and_finite_is_named(refusal, key, value):
    assert f"llama.{key}" in refusal({f"llama.{key}": value})


@pytest.mark.parametrize(
    "sizes",
    [
        {"attention.head_count": 3},
        {"attention.head_count_kv": 3},
        {"attention.head_count": 64},
        {"embedding_length": 65},
    ],
)
def test_heads_that_do_not_divide_are_refused(refusal, sizes):
    assert "do not divide" in refusal({f"llama.{key}": value for key, value in sizes.items()})


@pytest.mark.parametrize(
    "key", ["rope.dimension_count", "attention.key_length", "attention.value_length"]
)
def test_heads_of_another_size_or_rotated_in_part_are_refused(refusal, outcome, key):
    assert outcome({f"llama.{key}": 32}).exit_code == 0
    assert f"llama.{key} is 16, a head has 32" in refusal({f"llama.{key}": 16})


@pytest.mark.parametrize("size", [2**32 - 1, 10**6])
def test_sizes_that_the_tensors_contradict_are_refused(refusal, size):
    refusal({"llama.feed_forward_length": size})
    refusal({"llama.block_count": size})


def test_the_angles_are_those_of_the_cache_whatever_the_context(outcome):
    plain = outcome({})
    assert plain.exit_code == 0
    huge = outcome({"llama.context_length": 2**32 - 1})
    assert huge.exit_code == 0, repr(huge.exception)


@pytest.mark.parametrize("name", ["tokens", "token_type", "merges"])
@pytest.mark.parametrize("value", [None, 5, "word", [0.5] * 258])
def test_a_part_of_the_tokenizer_of_another_type_is_named(refusal, name, value):
    assert f"tokenizer.ggml.{name}" in refusal({f"tokenizer.ggml.{name}": value})


def test_words_and_types_of_different_counts_are_refused(refusal):
    assert "258 tokens, 258 different ones, 1 types" in refusal({"tokenizer.ggml.token_type": [1]})


def test_a_word_that_is_there_twice_is_refused(refusal, tiny):
    tiny.metadata["tokenizer.ggml.tokens"][7] = "th"
    assert "257 different ones" in refusal({})


@pytest.mark.parametrize("merge", ["th", "", " ", "t ", "t x", "q u", "t h h", "no such"])
def test_a_merge_that_joins_no_two_tokens_is_quoted(refusal, merge):
    assert repr(merge) in refusal({"tokenizer.ggml.merges": ["t h", merge]})


@pytest.mark.parametrize("name", ["bos", "eos", "eot", "eom"])
@pytest.mark.parametrize("value", [258, "256", 0.5, True, [1]])
def test_a_special_token_that_does_not_exist_is_named(refusal, name, value):
    changes = {"tokenizer.ggml.add_bos_token": True, f"tokenizer.ggml.{name}_token_id": value}
    assert f"{name}_token_id" in refusal(changes)


@pytest.mark.parametrize("template", [5, True, ["a"]])
def test_a_template_that_is_no_text_is_refused(refusal, template):
    assert "chat template" in refusal({"tokenizer.chat_template": template})


@pytest.mark.parametrize(
    "name", ["token_embd", "output_norm", "blk.1.attn_norm", "blk.0.ffn_down", "output"]
)
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_weights_that_are_not_finite_are_named(refusal, tiny, name, value):
    made = tiny.tensors.get(f"{name}.weight", tiny.tensors["token_embd.weight"])
    weight = torch.zeros(made[1])
    weight.view(-1)[3] = value
    tiny.put(f"{name}.weight", weight)
    assert f"'{name}.weight' holds numbers that are not finite" in refusal({})


def test_large_finite_weights_are_no_reason_to_refuse(outcome, tiny):
    tiny.put("output_norm.weight", torch.full((64,), 3e38))  # their sum is infinite
    tiny.put("output.weight", torch.zeros(258, 64))
    assert outcome({}).exit_code == 0
