"""The sizes of a model, read from the metadata of its file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from llm.errors import ModelFileError

_ARCHITECTURE = "llama"
_HEAD_SIZES = ("rope.dimension_count", "attention.key_length", "attention.value_length")
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
            ModelFileError: Another architecture, an unknown feature, or a size that is missing,
                senseless, or does not fit the others.
        """
        found = metadata.get("general.architecture")
        if found != _ARCHITECTURE:
            what = f"the model has architecture {found!r}, this engine runs {_ARCHITECTURE!r}"
            raise ModelFileError(what, fix="use a model of the Llama family")
        for key in _UNKNOWN_FEATURES:
            if metadata.get(f"{_ARCHITECTURE}.{key}") not in (None, 0, "none"):
                raise ModelFileError(f"the model uses {key}, which this engine does not know")

        def number(key: str, *kinds: type) -> Any:
            value: Any = metadata.get(f"{_ARCHITECTURE}.{key}")
            if type(value) not in kinds or not math.isfinite(value) or value <= 0:
                raise ModelFileError(f"the metadata has no valid {_ARCHITECTURE}.{key}: {value!r}")
            return value

        words = metadata.get("tokenizer.ggml.tokens")
        if not isinstance(words, list) or not words:
            raise ModelFileError("the metadata has no valid tokenizer.ggml.tokens")
        hidden, heads = number("embedding_length", int), number("attention.head_count", int)
        config = cls(
            layers=number("block_count", int),
            hidden=hidden,
            inter=number("feed_forward_length", int),
            heads=heads,
            kv_heads=number("attention.head_count_kv", int),
            head_dim=hidden // heads,
            vocab=len(words),
            context=number("context_length", int),
            theta=number("rope.freq_base", int, float),
            eps=number("attention.layer_norm_rms_epsilon", int, float),
        )
        config.refuse_what_does_not_fit(metadata)
        return config

    def refuse_what_does_not_fit(self, metadata: dict[str, Any]) -> None:
        """Refuses heads that do not share their elements out evenly, or are of several sizes.

        Raises:
            ModelFileError: Two sizes contradict each other, or only a part of a head is rotated.
        """
        if self.hidden % self.heads or self.heads % self.kv_heads or self.head_dim % 2:
            sizes = f"{self.hidden} elements, {self.heads} heads, {self.kv_heads} of keys"
            raise ModelFileError(f"the sizes of the attention do not divide each other: {sizes}")
        for key in _HEAD_SIZES:
            value = metadata.get(f"{_ARCHITECTURE}.{key}", self.head_dim)
            if value != self.head_dim:
                what = f"{_ARCHITECTURE}.{key} is {value!r}, a head has {self.head_dim} elements"
                raise ModelFileError(what, fix="this engine runs models where both are equal")
