"""Fixtures: the real model, loaded once, and a tiny one that is written by hand."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer as Codec
from tokenizers import decoders, models, pre_tokenizers

from llm import gguf
from llm.fetch import fetch
from llm.tests.served import running_server
from llm.tokenizer import Tokenizer

_TYPES = {bool: (7, "?"), int: (4, "I"), float: (6, "f")}


def _text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> tuple[int, bytes]:
    if isinstance(value, str):
        return 8, _text(value)
    if isinstance(value, list):
        kind = _value(value[0])[0]
        return 9, struct.pack("<IQ", kind, len(value)) + b"".join(_value(v)[1] for v in value)
    kind, code = _TYPES[type(value)]
    return kind, struct.pack("<" + code, value)


@dataclass
class HandMade:
    """A GGUF file in parts; ``tensors``: name -> (type number, shape, bytes)."""

    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, tuple[int, tuple[int, ...], bytes]] = field(default_factory=dict)
    magic: bytes = b"GGUF"
    version: int = 3

    def put(self, name: str, tensor: torch.Tensor) -> None:
        raw = tensor.to(torch.float32).contiguous().numpy().tobytes()
        self.tensors[name] = (0, tuple(tensor.shape), raw)

    def to_bytes(self) -> bytes:
        head = [
            self.magic,
            struct.pack("<IQQ", self.version, len(self.tensors), len(self.metadata)),
        ]
        for key, value in self.metadata.items():
            kind, raw = _value(value)
            head += [_text(key), struct.pack("<I", kind), raw]
        body = b""
        for name, (kind, shape, raw) in self.tensors.items():
            dims = [len(shape), *reversed(shape)]
            head += [_text(name), struct.pack(f"<I{len(shape)}Q", *dims)]
            head.append(struct.pack("<IQ", kind, len(body)))
            body += raw + b"\0" * (-len(raw) % 32)
        front = b"".join(head)
        return front + b"\0" * (-len(front) % 32) + body

    def write(self, path: Path) -> Path:
        path.write_bytes(self.to_bytes())
        return path


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Threads that wait for each other spin: on a busy machine two are far slower than one."""
    torch.set_num_threads(1)


@pytest.fixture
def hand_made() -> HandMade:
    return HandMade()


def _byte_words() -> list[str]:
    """The 256 words of a byte-level vocabulary, in order of their bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = {b: 256 + i for i, b in enumerate(b for b in range(256) if b not in plain)}
    return [chr(moved.get(b, b)) for b in range(256)]


@pytest.fixture
def tiny() -> HandMade:
    """A Llama of two layers with random weights and a byte-level vocabulary."""
    words = [*_byte_words(), "<|end|>", "th"]
    hidden, inter, heads, kv_heads, head_dim = 64, 96, 2, 1, 32
    made = HandMade(
        metadata={
            "general.architecture": "llama",
            "llama.block_count": 2,
            "llama.context_length": 256,
            "llama.embedding_length": hidden,
            "llama.feed_forward_length": inter,
            "llama.attention.head_count": heads,
            "llama.attention.head_count_kv": kv_heads,
            "llama.rope.freq_base": 10000.0,
            "llama.attention.layer_norm_rms_epsilon": 1e-5,
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "smollm",
            "tokenizer.ggml.tokens": words,
            "tokenizer.ggml.token_type": [1] * 256 + [3, 1],
            "tokenizer.ggml.merges": ["t h"],
            "tokenizer.ggml.eos_token_id": 256,
            "tokenizer.chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}<|end|>",
        }
    )
    rng = torch.Generator().manual_seed(7)

    def put(name: str, *shape: int) -> None:
        made.put(name, torch.randn(shape, generator=rng) / shape[-1] ** 0.5)

    put("token_embd.weight", len(words), hidden)
    put("output_norm.weight", hidden)
    for i in range(2):
        for name, *shape in (
            ("attn_norm", hidden),
            ("attn_q", heads * head_dim, hidden),
            ("attn_k", kv_heads * head_dim, hidden),
            ("attn_v", kv_heads * head_dim, hidden),
            ("attn_output", hidden, heads * head_dim),
            ("ffn_norm", hidden),
            ("ffn_gate", inter, hidden),
            ("ffn_up", inter, hidden),
            ("ffn_down", hidden, inter),
        ):
            put(f"blk.{i}.{name}.weight", *shape)
    return made


@dataclass
class Directory:
    """A model directory in parts; ``shards`` spreads its tensors over that many files."""

    config: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    tokenizer: dict[str, Any]
    tokenizer_config: dict[str, Any] = field(default_factory=dict)
    generation: dict[str, Any] | None = None
    shards: int = 1

    def write(self, path: Path) -> Path:
        path.mkdir(exist_ok=True)
        texts = {
            "config": self.config,
            "tokenizer": self.tokenizer,
            "tokenizer_config": self.tokenizer_config,
        }
        if self.generation is not None:
            texts["generation_config"] = self.generation
        for name, value in texts.items():
            (path / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
        if self.shards == 1:
            save_file(self.tensors, path / "model.safetensors")
            return path
        placed = {}
        for i in range(self.shards):
            part = dict(list(self.tensors.items())[i :: self.shards])
            name = f"model-{i + 1:05}-of-{self.shards:05}.safetensors"
            save_file(part, path / name)
            placed |= dict.fromkeys(part, name)
        index = json.dumps({"metadata": {}, "weight_map": placed})
        (path / "model.safetensors.index.json").write_text(index, encoding="utf-8")
        return path


def _codec() -> dict[str, Any]:
    """A byte-level tokenizer with one merge and two special words, as tokenizer.json has it."""
    ids = {word: i for i, word in enumerate([*_byte_words(), "th"])}
    codec = Codec(models.BPE(ids, [("t", "h")]))
    codec.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    codec.decoder = decoders.ByteLevel()
    codec.add_special_tokens(["<|start|>", "<|end|>"])
    return json.loads(codec.to_str())


@pytest.fixture
def directory() -> Callable[..., Directory]:
    """Makes the directory of a small random model; keywords are keys of its config.json."""

    def make(model_type: str = "llama", **keys: Any) -> Directory:
        config = {
            "model_type": model_type,
            "num_hidden_layers": 2,
            "hidden_size": 48,
            "intermediate_size": 80,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "vocab_size": 272,
            "max_position_embeddings": 256,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            **keys,
        }
        rng = torch.Generator().manual_seed(11)
        tensors = {}

        def put(name: str, *shape: int) -> None:
            made = torch.randn(shape, generator=rng)
            tensors[name] = made / shape[-1] ** 0.5 if len(shape) > 1 else 1 + made / 4

        hidden, width, inter = (
            config["hidden_size"],
            config["head_dim"],
            config["intermediate_size"],
        )
        rows = {"q": 4 * width, "k": 2 * width, "v": 2 * width}
        put("model.embed_tokens.weight", config["vocab_size"], hidden)
        for i in range(2):
            layer = f"model.layers.{i}"
            for part, count in rows.items():
                put(f"{layer}.self_attn.{part}_proj.weight", count, hidden)
                if model_type == "qwen2" or config.get("attention_bias"):
                    put(f"{layer}.self_attn.{part}_proj.bias", count)
                if model_type == "qwen3" and part != "v":
                    put(f"{layer}.self_attn.{part}_norm.weight", width)
            put(f"{layer}.self_attn.o_proj.weight", hidden, rows["q"])
            if config.get("attention_bias"):
                put(f"{layer}.self_attn.o_proj.bias", hidden)
            put(f"{layer}.input_layernorm.weight", hidden)
            put(f"{layer}.post_attention_layernorm.weight", hidden)
            put(f"{layer}.mlp.gate_proj.weight", inter, hidden)
            put(f"{layer}.mlp.up_proj.weight", inter, hidden)
            put(f"{layer}.mlp.down_proj.weight", hidden, inter)
        put("model.norm.weight", hidden)
        if not config["tie_word_embeddings"]:
            put("lm_head.weight", config["vocab_size"], hidden)
        return Directory(config, tensors, _codec())

    return make


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The real model; where it cannot be fetched, its tests fail with that reason."""
    return fetch(print)


@pytest.fixture(scope="session")
def model_file(model_path: Path) -> gguf.ModelFile:
    return gguf.read(model_path)


@pytest.fixture(scope="session")
def tokenizer(model_file: gguf.ModelFile) -> Tokenizer:
    return model_file.tokenizer()


@pytest.fixture(scope="session")
def reference() -> list[dict[str, Any]]:
    """Four prompts with 64 greedy tokens each, computed by another implementation."""
    text = (Path(__file__).parent / "data" / "smol_reference.json").read_text(encoding="utf-8")
    return json.loads(text)["prompts"]


@pytest.fixture
def server():
    """For tests that shut the gate, break the model, or count."""
    with running_server() as made:
        yield made


@pytest.fixture(scope="module")
def shared():
    """For tests that only ask."""
    with running_server() as made:
        yield made
