"""What the files of a model directory say: its sizes, the names of its tensors, its tokenizer."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Final

from tokenizers import Tokenizer as Codec

from llm.config import Config
from llm.errors import ModelFileError
from llm.tokenizer import Tokenizer, contained, known_ids
from trivet.errors import ConfigError
from trivet.rope import from_config

_MOST: Final = 2**32  # no size of a model is larger; products of two still fit 64 bits
_MOST_LAYERS: Final = 2**16


@dataclass(frozen=True)
class Family:
    """What distinguishes one ``model_type`` from another, beside its sizes.

    Args:
        qk_norm: Heads of queries and keys are normalised.
        bias: Whether query, key, value and output have one; None when ``attention_bias`` says it.
        qkv_bias: The same for query, key and value alone, where they differ.
        head_dim: Elements of a head where config.json has no ``head_dim``; 0 divides ``hidden``.
        window: The ``sliding_window`` of a config.json without one; 0 where models have none.
        switched: The window is used only where ``use_sliding_window`` says so.
    """

    qk_norm: bool = False
    bias: bool | None = None
    qkv_bias: bool | None = None
    head_dim: int = 0
    window: int = 0
    switched: bool = False


FAMILIES: Final = {
    "llama": Family(),
    "mistral": Family(bias=False, window=4096),
    "qwen2": Family(bias=False, qkv_bias=True, window=4096, switched=True),
    "qwen3": Family(qk_norm=True, head_dim=128, window=4096, switched=True),
}
# key -> the values under which it changes nothing
_OFF: Final[dict[str, tuple[Any, ...]]] = {
    "hidden_act": (None, "silu"),
    "mlp_bias": (None, False),
    "quantization_config": (None,),
}

NAMES: Final = {
    "embedding": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "layer.norm": "model.layers.{}.input_layernorm",
    "layer.q": "model.layers.{}.self_attn.q_proj",
    "layer.k": "model.layers.{}.self_attn.k_proj",
    "layer.v": "model.layers.{}.self_attn.v_proj",
    "layer.q_norm": "model.layers.{}.self_attn.q_norm",
    "layer.k_norm": "model.layers.{}.self_attn.k_norm",
    "layer.out": "model.layers.{}.self_attn.o_proj",
    "layer.mlp_norm": "model.layers.{}.post_attention_layernorm",
    "layer.gate": "model.layers.{}.mlp.gate_proj",
    "layer.up": "model.layers.{}.mlp.up_proj",
    "layer.down": "model.layers.{}.mlp.down_proj",
}


def _wrong(key: str, value: object) -> ModelFileError:
    return ModelFileError(f"config.json has no valid {key}: {value!r}")


def _count(
    config: dict[str, Any],
    key: str,
    default: int | None = None,
    *,
    least: int = 1,
    most: int = _MOST,
) -> int:
    value = config.get(key)
    value = default if value is None else value
    if type(value) is not int or not least <= value <= most:
        raise _wrong(key, value)
    return value


def _flag(config: dict[str, Any], key: str) -> bool:
    value = config.get(key)
    if value is not None and type(value) is not bool:
        raise _wrong(key, value)
    return bool(value)


def read_config(config: dict[str, Any]) -> Config:
    """Reads what the engine needs and refuses what it would compute wrongly.

    Raises:
        ModelFileError: Another family, an unknown feature, or a size that is missing, senseless,
            or does not fit the others.
    """
    kind = config.get("model_type")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        what = f"config.json has model_type {kind!r}"
        raise ModelFileError(what, fix=f"use a model of {', '.join(FAMILIES)}")
    for key, harmless in _OFF.items():
        if config.get(key) not in harmless:
            what = f"config.json has {key} {config[key]!r}, which this engine does not know"
            raise ModelFileError(what, fix="use a model without it")
    hidden, heads = _count(config, "hidden_size"), _count(config, "num_attention_heads")
    head_dim = _count(config, "head_dim", family.head_dim or hidden // heads)
    eps: Any = config.get("rms_norm_eps")
    if type(eps) not in (int, float) or not 0 < eps < 1 or not math.isfinite(eps):
        raise _wrong("rms_norm_eps", eps)
    bias = _flag(config, "attention_bias") if family.bias is None else family.bias
    try:
        rope = from_config(config, default_theta=10000.0, head_dim=head_dim)
    except ConfigError as error:
        raise ModelFileError(f"config.json: {error.what}", fix=error.fix) from error
    layers = _count(config, "num_hidden_layers", most=_MOST_LAYERS)
    return Config(
        layers=layers,
        hidden=hidden,
        inter=_count(config, "intermediate_size"),
        heads=heads,
        kv_heads=_count(config, "num_key_value_heads", heads),
        head_dim=head_dim,
        vocab=_count(config, "vocab_size"),
        context=_count(config, "max_position_embeddings"),
        eps=float(eps),
        rope=rope,
        window=_window(config, family, layers),
        qk_norm=family.qk_norm,
        qkv_bias=bias if family.qkv_bias is None else family.qkv_bias,
        out_bias=bias,
        tied=_flag(config, "tie_word_embeddings"),
    )


def _window(config: dict[str, Any], family: Family, layers: int) -> int:
    """The window of all layers; 0 where they see everything."""
    used = family.window and (not family.switched or _flag(config, "use_sliding_window"))
    if used and not ("sliding_window" in config and config["sliding_window"] is None):
        window = _count(config, "sliding_window", family.window)
    else:
        window = 0
    kinds = config.get("layer_types")
    if kinds is None:
        first = _count(config, "max_window_layers", 28, least=0) if family.switched else 0
        kinds = [
            "sliding_attention" if window and i >= first else "full_attention"
            for i in range(layers)
        ]
    if not isinstance(kinds, list) or kinds != kinds[:1] * len(kinds):
        what = "config.json has layers with and without a sliding window"
        raise ModelFileError(what, fix="use a model whose layers are all alike")
    if kinds[:1] == ["full_attention"]:
        return 0
    if kinds[:1] != ["sliding_attention"] or not window:
        raise _wrong("layer_types", kinds[:1])
    return window


def read_tokenizer(texts: dict[str, Any], vocab: int) -> Tokenizer:
    """The tokenizer of the model: text is split and joined by what tokenizer.json describes.

    Raises:
        ModelFileError: A file is damaged, or names tokens that the model does not have.
    """
    given = texts["tokenizer_config.json"]
    with contained():
        codec = Codec.from_str(json.dumps(texts["tokenizer.json"]))
        prefix = list(codec.encode("").ids)
    codec.no_padding()
    codec.no_truncation()
    largest = max(codec.get_vocab(with_added_tokens=True).values(), default=-1)
    if largest >= vocab:
        what = f"tokenizer.json has a token with id {largest}, the model has {vocab} tokens"
        raise ModelFileError(what, fix="use the tokenizer that belongs to the model")
    words = {k: w for k in ("bos_token", "eos_token") if (w := _word(given, k)) is not None}
    ids = {key: codec.token_to_id(word) for key, word in words.items()}
    if type(given.get("add_bos_token")) is bool:
        bos = ids.get("bos_token")
        prefix = [bos] if given["add_bos_token"] and bos is not None else []
    return Tokenizer(
        codec,
        template=_template(texts),
        prefix=prefix,
        eos=_ends(texts, ids.get("eos_token"), vocab),
        words=words,
    )


def _word(given: dict[str, Any], key: str) -> str | None:
    """A special word; some files wrap it into an object."""
    value = given.get(key)
    value = value.get("content") if isinstance(value, dict) else value
    if value is not None and not isinstance(value, str):
        raise ModelFileError(f"tokenizer_config.json has no valid {key}: {value!r}")
    return value


def _template(texts: dict[str, Any]) -> Any:
    """The chat template: a file of its own, or a key; of several named ones the default."""
    value = texts["chat_template.jinja"] or texts["tokenizer_config.json"].get("chat_template")
    if isinstance(value, list):
        named = [v for v in value if isinstance(v, dict) and v.get("name") == "default"]
        value = named[0].get("template") if named else None
    if value is not None and not isinstance(value, str):
        raise ModelFileError(f"tokenizer_config.json has no valid chat_template: {value!r:.80}")
    return value


def _ends(texts: dict[str, Any], eos: int | None, vocab: int) -> list[int]:
    """The ids that end an answer: generation_config.json wins, then config.json."""
    for name in ("generation_config.json", "config.json"):
        value = texts[name].get("eos_token_id")
        if value is not None:
            listed = value if isinstance(value, list) else [value]
            keys = {f"{name}: eos_token_id {i}": v for i, v in enumerate(listed)}
            return known_ids(keys, vocab)
    return [] if eos is None else [eos]
