from __future__ import annotations

import pytest

from llm.errors import ModelFileError
from llm.gguf_model import read_config


def test_sizes_come_from_the_metadata(tiny):
    config = read_config(tiny.metadata)
    assert (config.layers, config.hidden, config.inter) == (2, 64, 96)
    assert (config.heads, config.kv_heads, config.head_dim) == (2, 1, 32)
    assert (config.vocab, config.context) == (258, 256)


def test_another_architecture_is_refused_by_name(tiny):
    tiny.metadata["general.architecture"] = "mamba"
    with pytest.raises(ModelFileError, match=r"'mamba'.*'llama'"):
        read_config(tiny.metadata)


@pytest.mark.parametrize("value", [None, 0, "x", -1])
def test_a_missing_or_senseless_size_is_named(tiny, value):
    tiny.metadata["llama.block_count"] = value
    with pytest.raises(ModelFileError, match="block_count"):
        read_config(tiny.metadata)


@pytest.mark.parametrize(
    ("key", "value"),
    [("rope.scaling.type", "yarn"), ("expert_count", 8), ("attention.sliding_window", 4096)],
)
def test_a_feature_that_would_be_computed_wrongly_is_refused(tiny, key, value):
    tiny.metadata[f"llama.{key}"] = value
    with pytest.raises(ModelFileError, match=key):
        read_config(tiny.metadata)


def test_features_that_are_off_are_accepted(tiny):
    tiny.metadata |= {"llama.rope.scaling.type": "none", "llama.expert_count": 0}
    assert read_config(tiny.metadata).layers == 2


def test_the_real_model_is_the_one_that_is_described(model_file):
    config = read_config(model_file.metadata)
    assert (config.layers, config.hidden, config.heads, config.kv_heads) == (30, 576, 9, 3)
    assert (config.head_dim, config.vocab, config.rope.theta) == (64, 49152, 1e5)
