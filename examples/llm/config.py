"""The sizes of a model, read from the metadata of its file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llm.errors import ModelFileError

_ARCHITECTURE = "llama"
_UNKNOWN_FEATURES = ("rope.scaling.type", "expert_count", "attention.sliding_window")


@dataclass(frozen=True)
class Config:
    """A decoder of the Llama family with grouped queries; sizes are counts of elements."""

    layers: int
    hidden: int
    inter: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    theta: float
    eps: float

    @classmethod
    def read(cls, metadata: dict[str, Any]) -> Config:
        """Reads what the engine needs and refuses what it would compute wrongly.

        Raises:
            ModelFileError: Another architecture, a missing size, or an unknown feature.
        """
        found = metadata.get("general.architecture")
        if found != _ARCHITECTURE:
            what = f"the model has architecture {found!r}, this engine runs {_ARCHITECTURE!r}"
            raise ModelFileError(what, fix="use a model of the Llama family")
        for key in _UNKNOWN_FEATURES:
            if metadata.get(f"{_ARCHITECTURE}.{key}") not in (None, 0, "none"):
                raise ModelFileError(f"the model uses {key}, which this engine does not know")

        def size(key: str) -> Any:
            value = metadata.get(f"{_ARCHITECTURE}.{key}")
            if not isinstance(value, int | float) or value <= 0:
                raise ModelFileError(f"the metadata has no valid {_ARCHITECTURE}.{key}: {value!r}")
            return value

        hidden, heads = size("embedding_length"), size("attention.head_count")
        return cls(
            layers=size("block_count"),
            hidden=hidden,
            inter=size("feed_forward_length"),
            heads=heads,
            kv_heads=size("attention.head_count_kv"),
            head_dim=hidden // heads,
            vocab=len(metadata.get("tokenizer.ggml.tokens", ())),
            context=size("context_length"),
            theta=size("rope.freq_base"),
            eps=size("attention.layer_norm_rms_epsilon"),
        )
