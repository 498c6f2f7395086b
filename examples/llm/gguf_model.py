"""What the metadata of a GGUF file says about a model: its sizes, names and tokenizer."""

from __future__ import annotations

import math
from typing import Any, Final

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Codec

from llm.config import Config
from llm.errors import ModelFileError
from llm.tokenizer import Tokenizer, known_ids
from trivet.errors import ConfigError
from trivet.rope import Rope

_ARCHITECTURE = "llama"
_HEAD_SIZES = ("rope.dimension_count", "attention.key_length", "attention.value_length")
_UNKNOWN_FEATURES = ("rope.scaling.type", "expert_count", "attention.sliding_window")
_CONTROL = 3  # the token type of GGUF for words such as <|im_end|>

NAMES: Final = {
    "embedding": "token_embd",
    "norm": "output_norm",
    "head": "output",
    "layer.norm": "blk.{}.attn_norm",
    "layer.q": "blk.{}.attn_q",
    "layer.k": "blk.{}.attn_k",
    "layer.v": "blk.{}.attn_v",
    "layer.out": "blk.{}.attn_output",
    "layer.mlp_norm": "blk.{}.ffn_norm",
    "layer.gate": "blk.{}.ffn_gate",
    "layer.up": "blk.{}.ffn_up",
    "layer.down": "blk.{}.ffn_down",
}


def read_config(metadata: dict[str, Any]) -> Config:
    """Reads what the engine needs and refuses what it would compute wrongly.

    Raises:
        ModelFileError: Another architecture, an unknown feature, or a size that is missing,
            senseless, or does not fit the others.
    """
    found = metadata.get("general.architecture")
    if found != _ARCHITECTURE:
        what = f"the model has architecture {found!r}, this engine runs {_ARCHITECTURE!r}"
        raise ModelFileError(what, fix="use a model of the Llama family, or a safetensors folder")
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
    head_dim = hidden // heads
    if hidden % heads or head_dim % 2:
        what = f"{hidden} elements, {heads} heads"
        raise ModelFileError(f"the sizes of the attention do not divide each other: {what}")
    for key in _HEAD_SIZES:
        value = metadata.get(f"{_ARCHITECTURE}.{key}", head_dim)
        if value != head_dim:
            what = f"{_ARCHITECTURE}.{key} is {value!r}, a head has {head_dim} elements"
            raise ModelFileError(what, fix="this engine runs models where both are equal")
    try:
        rope = Rope(rotary_dim=head_dim, theta=float(number("rope.freq_base", int, float)))
    except ConfigError as error:
        raise ModelFileError(f"{_ARCHITECTURE}.rope: {error.what}", fix=error.fix) from error
    return Config(
        layers=number("block_count", int),
        hidden=hidden,
        inter=number("feed_forward_length", int),
        heads=heads,
        kv_heads=number("attention.head_count_kv", int),
        head_dim=head_dim,
        vocab=len(words),
        context=number("context_length", int),
        eps=number("attention.layer_norm_rms_epsilon", int, float),
        rope=rope,
    )


def _listed(metadata: dict[str, Any], name: str, kind: type) -> list[Any]:
    values = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(values, list) or any(type(value) is not kind for value in values):
        raise ModelFileError(f"the metadata has no valid tokenizer.ggml.{name}")
    return values


def _pairs(merges: list[str], ids: dict[str, int]) -> list[tuple[str, str]]:
    """The two halves of each merge; the library trusts that they and the whole are words."""
    pairs = []
    for merge in merges:
        left, _, right = merge.partition(" ")
        if not (left in ids and right in ids and left + right in ids):
            raise ModelFileError(f"tokenizer.ggml.merges: {merge!r} does not join two tokens")
        pairs.append((left, right))
    return pairs


def read_tokenizer(metadata: dict[str, Any]) -> Tokenizer:
    """A byte-level BPE tokenizer with the pre-tokenizer that the SmolLM family uses.

    Raises:
        ModelFileError: Another tokenizer, or parts of it that contradict each other.
    """
    family = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if family != ("gpt2", "smollm"):
        raise ModelFileError(f"tokenizer {family} is not supported, only ('gpt2', 'smollm')")
    words = _listed(metadata, "tokens", str)
    kinds = _listed(metadata, "token_type", int)
    ids = {word: i for i, word in enumerate(words)}
    if not len(ids) == len(words) == len(kinds):
        sizes = f"{len(words)} tokens, {len(ids)} different ones, {len(kinds)} types"
        raise ModelFileError(f"the tokenizer of the model is damaged: {sizes}")
    codec = Codec(models.BPE(ids, _pairs(_listed(metadata, "merges", str), ids)))
    codec.pre_tokenizer = pre_tokenizers.Sequence(  # each digit is a token of its own
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    codec.decoder = decoders.ByteLevel()
    control = [w for w, kind in zip(words, kinds, strict=True) if kind == _CONTROL]
    codec.add_special_tokens([AddedToken(w, special=True, normalized=False) for w in control])

    def special(*names: str) -> list[int]:
        keys = [f"tokenizer.ggml.{name}_token_id" for name in names]
        return known_ids({key: metadata.get(key) for key in keys}, len(words))

    return Tokenizer(
        codec,
        template=metadata.get("tokenizer.chat_template"),
        prefix=special("bos") if metadata.get("tokenizer.ggml.add_bos_token") else [],
        eos=special("eos", "eot", "eom"),
    )
