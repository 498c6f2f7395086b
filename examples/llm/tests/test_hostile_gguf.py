"""GGUF headers: mutated bytes and odd metadata are a model, or one clear error."""

from __future__ import annotations

import struct

import torch
from hypothesis import strategies as st

from fuzzing import amounts, fuzz, mutated, outcome
from llm import gguf
from llm.errors import ModelFileError

BIG = [0, 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]
TOKENS = [
    b"\0" * 8,
    b"\xff",
    *[struct.pack("<Q", n) for n in BIG],
    struct.pack("<I", 9) * 3,
    *[struct.pack("<I", n) for n in (0, 1, 2, 3, 4, 7, 8, 9, 12, 13, 2**32 - 1)],
    struct.pack("<d", float("nan"))[4:],
    struct.pack("<Q", 1) + b"a" + struct.pack("<I", 4),
    struct.pack("<Q", 17) + b"general.alignment" + struct.pack("<IQ", 10, 2**63),
]
KEYS = ["block_count", "context_length", "embedding_length", "feed_forward_length",
        "attention.head_count", "attention.head_count_kv", "rope.freq_base",
        "attention.layer_norm_rms_epsilon", "rope.dimension_count", "vocab_size"]  # fmt: skip
OTHERS = [
    "general.architecture",
    "general.alignment",
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.model",
    "tokenizer.ggml.merges",
    "tokenizer.ggml.token_type",
    "tokenizer.ggml.eos_token_id",
    "tokenizer.chat_template",
    "tokenizer.ggml.pre",
]
VALUES = [
    0,
    1,
    2,
    7,
    64,
    2**32 - 1,
    0.0,
    0.5,
    -1.0,
    1e38,
    float("nan"),
    float("inf"),
    True,
    False,
    "",
    "llama",
    "x" * 300,
    "{% for",
    "{{ 1/0 }}",
    [1],
    [0.5],
    ["a", "a"],
    ["a"] * 258,
]


def used(path) -> None:
    """What the engine does with a file before it computes anything."""
    file = gguf.read(path)
    for tensor in file.tensors.values():
        assert tensor.dequantise().shape == tensor.shape
    assert file.config.layers > 0
    file.tokenizer().encode("three")


@amounts("GGUF headers", parts=2)
def test_a_damaged_header_is_read_or_refused(amount, hand_made, tiny, tmp_path):
    hand_made.metadata = {"a": 1, "b": ["x", "yy"], "c": "text", "d": 0.5, "general.alignment": 32}
    hand_made.put("first", torch.ones(2, 3))
    hand_made.tensors["packed"] = (8, (32,), bytes(34))
    hand_made.tensors["four"] = (3, (2, 32), bytes(40))
    whole = tiny.to_bytes()
    body = sum(len(raw) + -len(raw) % 32 for _, _, raw in tiny.tensors.values())
    head, rest = whole[: len(whole) - body], whole[len(whole) - body :]
    path = tmp_path / "m.gguf"

    def check(data):
        path.write_bytes(data)
        outcome(lambda: used(path), ModelFileError)

    small = mutated([hand_made.to_bytes()], TOKENS)
    fuzz(amount, st.one_of(small, small, mutated([head], TOKENS).map(lambda h: h + rest)), check)


@amounts("GGUF headers", parts=2)
def test_odd_metadata_and_tensors_are_a_model_or_refused(amount, tiny, tmp_path):
    path, metadata, tensors = tmp_path / "m.gguf", dict(tiny.metadata), dict(tiny.tensors)
    names = [f"llama.{key}" for key in KEYS] + OTHERS
    changes = st.dictionaries(st.sampled_from(names), st.sampled_from(VALUES), max_size=3)
    shapes = st.tuples(st.sampled_from([0, 1, 3, 8]),
                       st.lists(st.sampled_from([0, 1, 2, 32, 64, 2**40, 2**63]), max_size=4),
                       st.sampled_from([0, 2, 34, 128, 4096]))  # fmt: skip
    odd = st.dictionaries(st.sampled_from(sorted(tensors)), shapes, max_size=2)

    def check(one):
        tiny.metadata = metadata | one[0]
        tiny.tensors = tensors | {n: (k, tuple(s), bytes(b)) for n, (k, s, b) in one[1].items()}
        tiny.write(path)
        outcome(lambda: used(path), ModelFileError)

    fuzz(amount, st.tuples(changes, odd), check)
