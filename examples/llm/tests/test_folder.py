"""Directories that anybody may have written: each flaw is one ModelFileError that names it."""

from __future__ import annotations

import contextlib
import json

import pytest
import torch
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from llm import cli, source, weights
from llm.config_json import read_config
from llm.errors import ModelFileError
from llm.parallel.shards import Shard

INDEX = "model.safetensors.index.json"
fuzz = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def model(directory):
    return directory()


def load(path):
    """Everything that reading a model does, without a device."""
    file = source.read(path)
    file.tokenizer()
    return weights.load(file, Shard(file.config), lambda w: w, lambda *given: given, lambda: None)


def refused(path, match):
    with pytest.raises(ModelFileError, match=match):
        load(path)


def test_the_parts_of_a_directory_are_found(model, tmp_path):
    tree = load(model.write(tmp_path / "m"))
    assert torch.equal(tree.embedding, model.tensors["model.embed_tokens.weight"])
    assert torch.equal(
        tree.layers[1].qkv[1][:128], model.tensors["model.layers.1.self_attn.q_proj.weight"]
    )
    assert tree.layers[0].qkv_bias is tree.layers[0].q_norm is None


def test_a_tensor_has_a_storage_of_its_own(model, tmp_path):
    stored = source.read(model.write(tmp_path / "m")).tensors["model.norm.weight"]
    stored.dequantise().zero_()
    assert torch.equal(stored.dequantise(), model.tensors["model.norm.weight"])
    assert stored.dequantise().untyped_storage().nbytes() == 48 * 4


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(model, tmp_path, name):
    path = model.write(tmp_path / "m")
    (path / name).unlink()
    refused(path, f"{name}.*no such file")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[1]", b"[" * 10**5, b'{"a": 1' + b"0" * 5000 + b"}"]
)
@pytest.mark.parametrize("name", ["config", "tokenizer", "tokenizer_config", "generation_config"])
def test_a_text_that_is_no_json_object_is_named(model, tmp_path, name, content):
    path = model.write(tmp_path / "m")
    (path / f"{name}.json").write_bytes(content)
    refused(path, rf"{name}\.json")


def test_a_text_of_absurd_size_is_not_read(model, tmp_path):
    path = model.write(tmp_path / "m")
    with (path / "tokenizer_config.json").open("wb") as file:
        file.truncate(2**40)  # a hole: it takes no place on the disk
    refused(path, "1099511627776 bytes")


@pytest.mark.parametrize(
    "name",
    [
        *("../model.safetensors", "/etc/passwd", "a/b.safetensors", "a\\b.safetensors"),
        *("..", ".", "", "a\0.safetensors", "config.json", 5, None, ["a"]),
    ],
)
def test_an_index_cannot_lead_out_of_its_directory(model, tmp_path, name):
    model.shards = 2
    path = model.write(tmp_path / "m")
    save_file({"model.norm.weight": torch.ones(48)}, tmp_path / "model.safetensors")
    index = json.loads((path / INDEX).read_text())
    index["weight_map"]["model.norm.weight"] = name
    (path / INDEX).write_text(json.dumps(index))
    refused(path, "is no file of this directory")


@pytest.mark.parametrize("content", ["{}", '{"weight_map": []}', '{"weight_map": {}}', "7"])
def test_an_index_without_a_map_is_refused(model, tmp_path, content):
    model.shards = 2
    path = model.write(tmp_path / "m")
    (path / INDEX).write_text(content)
    refused(path, "index")


def test_an_index_and_its_files_must_agree(model, tmp_path):
    model.shards = 2
    path = model.write(tmp_path / "m")
    index = json.loads((path / INDEX).read_text())
    moved = index["weight_map"].pop("model.norm.weight")
    (path / INDEX).write_text(json.dumps(index))
    refused(path, "disagree about 'model.norm.weight'")
    index["weight_map"] |= {"model.norm.weight": moved, "model.other": moved}
    (path / INDEX).write_text(json.dumps(index))
    refused(path, "disagree about 'model.other'")
    (path / moved).unlink()
    refused(path, f"{moved}.*no such file")


def test_tensors_of_other_types_are_refused(model, tmp_path):
    model.tensors["model.norm.weight"] = torch.ones(48, dtype=torch.int64)
    refused(model.write(tmp_path / "m"), "'model.norm.weight' has type I64")


@pytest.mark.parametrize("name", ["model.norm", "model.layers.1.mlp.down_proj", "lm_head"])
def test_a_missing_tensor_is_named(model, tmp_path, name):
    del model.tensors[f"{name}.weight"]
    refused(model.write(tmp_path / "m"), f"'{name}.weight' is missing")


def test_a_tensor_of_another_shape_or_too_many_are_named(model, tmp_path):
    model.tensors["model.layers.0.mlp.down_proj.bias"] = torch.ones(48)
    refused(model.write(tmp_path / "m"), "1 tensors are not used: model.layers.0.mlp.down_proj.b")
    model.tensors["model.layers.0.self_attn.k_proj.weight"] = torch.ones(64, 47)
    refused(model.write(tmp_path / "m"), r"k_proj.weight' has shape \[64, 47\].*\[64, 48\]")


def test_frequencies_that_old_checkpoints_store_are_not_used(model, tmp_path):
    model.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(16)
    load(model.write(tmp_path / "m"))


def test_weights_that_are_not_finite_are_named(model, tmp_path):
    model.tensors["model.norm.weight"][3] = float("nan")
    refused(model.write(tmp_path / "m"), "'model.norm.weight' holds numbers that are not finite")


def test_a_tied_head_may_be_stored_and_may_not_differ(directory, tmp_path):
    model = directory(tie_word_embeddings=True)
    model.tensors["lm_head.weight"] = model.tensors["model.embed_tokens.weight"].clone()
    load(model.write(tmp_path / "m"))
    model.tensors["lm_head.weight"][0, 0] += 1
    refused(model.write(tmp_path / "m"), "tied to the embedding")


@pytest.mark.parametrize("size", [0, 4, 8, 100, 5000, -1])
def test_a_truncated_file_is_named(model, tmp_path, size):
    path = model.write(tmp_path / "m") / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    refused(path.parent, "model.safetensors: ")


@fuzz
@given(data=st.data())
def test_a_damaged_header_is_an_error_of_ours_or_harmless(model, tmp_path, data):
    path = model.write(tmp_path / "m") / "model.safetensors"
    raw = bytearray(path.read_bytes())
    size = 8 + int.from_bytes(raw[:8], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, size - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(raw))
    with contextlib.suppress(ModelFileError):
        load(path.parent)


COUNTS = (
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "max_position_embeddings",
    "head_dim",
)


@pytest.mark.parametrize("key", COUNTS)
@pytest.mark.parametrize("value", [0, -1, 0.5, 2.0, True, "2", [2], 10**12, float("nan")])
def test_a_size_that_makes_no_sense_is_named(model, key, value):
    with pytest.raises(ModelFileError, match=key):
        read_config(model.config | {key: value})


@pytest.mark.parametrize("key", [k for k in COUNTS if k not in {"num_key_value_heads", "head_dim"}])
def test_a_missing_size_is_named(model, key):
    del model.config[key]
    with pytest.raises(ModelFileError, match=key):
        read_config(model.config)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "mamba"}, "'mamba'"),
        ({"model_type": ["llama"]}, "model_type"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"attention_bias": "yes"}, "attention_bias"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps"),
        ({"num_key_value_heads": 3}, "do not divide"),
        ({"head_dim": 31}, "rotary_dim is 31"),
        ({"head_dim": 2**31}, "rotary_dim"),
        ({"rope_theta": "big"}, "rope_theta"),
        ({"rope_scaling": {"rope_type": "spiral"}}, "'spiral'"),
        ({"model_type": "mistral", "sliding_window": -4}, "sliding_window"),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 1},
            "layers with",
        ),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": "x"},
            "max_window",
        ),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layers with"),
        ({"layer_types": ["sliding_attention"] * 2}, "layer_types"),
        ({"layer_types": "full"}, "layers with"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(model, change, named):
    with pytest.raises(ModelFileError, match=named):
        read_config(model.config | change)


@pytest.mark.parametrize(
    ("change", "window"),
    [
        ({"model_type": "llama", "sliding_window": 8}, 0),
        ({"model_type": "mistral", "sliding_window": 8}, 8),
        ({"model_type": "mistral", "sliding_window": None}, 0),
        ({"model_type": "mistral"}, 4096),
        ({"model_type": "qwen2", "sliding_window": 8}, 0),
        ({"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": True}, 0),
        (
            {
                "model_type": "qwen3",
                "sliding_window": 8,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention"] * 2,
            },
            8,
        ),
    ],
)
def test_the_window_is_what_the_family_makes_of_the_keys(model, change, window):
    assert read_config(model.config | change).window == window


def test_sizes_that_may_be_left_out_have_the_value_of_the_family(model):
    for key in ("num_key_value_heads", "head_dim", "rope_theta", "tie_word_embeddings"):
        del model.config[key]
    config = read_config(model.config)
    assert (config.kv_heads, config.head_dim, config.rope.theta, config.tied) == (4, 12, 1e4, False)
    assert read_config(model.config | {"model_type": "qwen3"}).head_dim == 128


# --- the command -----------------------------------------------------------------------------


def test_the_command_answers_from_a_directory(model, tmp_path):
    path = model.write(tmp_path / "m")
    arguments = ["--json", "--raw", "--model", str(path), "--prompt", "the", "--max-tokens", "3"]
    done = CliRunner().invoke(cli.main, arguments)
    assert done.exit_code == 0, done.output
    (result,) = json.loads(done.stdout)["results"]
    assert (result["prompt_tokens"], len(result["ids"])) == (2, 3)


def test_the_command_refuses_a_directory_without_a_model(tmp_path):
    done = CliRunner().invoke(cli.main, ["--model", str(tmp_path)])
    assert done.exit_code == 2
    assert "config.json: there is no such file" in done.stderr.replace("\n", "")
