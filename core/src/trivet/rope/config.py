"""Reads a rotary embedding from the configuration of a Hugging Face checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from trivet.errors import ConfigError
from trivet.rope.kinds import Dynamic, Linear, Llama3, LongRope, Yarn
from trivet.rope.plain import Rope, number, whole

KINDS: Final[dict[str, type[Rope]]] = {
    kind.kind: kind for kind in (Rope, Linear, Dynamic, Yarn, Llama3, LongRope)
}
_OLD_NAMES: Final = {"su": "longrope", "mrope": "default"}
_EVERY: Final = ("rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved")
_LENGTHS: Final = ("max_position_embeddings", "original_max_position_embeddings")
_KNOWN: Final = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor", *_LENGTHS),
    "yarn": (
        *("factor", *_LENGTHS, "attention_factor", "beta_fast", "beta_slow"),
        *("mscale", "mscale_all_dim", "truncate"),
    ),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", *_LENGTHS),
    "longrope": ("factor", "short_factor", "long_factor", "attention_factor", *_LENGTHS),
}
_OUTSIDE: Final = ("rope_theta", "partial_rotary_factor", *_LENGTHS)


def wrong(what: str, fix: str = "check the model's config.json") -> ConfigError:
    """The error of this module; its message starts with the subject."""
    return ConfigError(f"rotary embedding: {what}", fix=fix)


class Keys(Mapping[str, Any]):
    """The keys of the rotary embedding, and the few that a configuration keeps outside of them.

    A missing key is an error that names it, and so is one that both places hold with different
    values.
    """

    def __init__(self, kind: str, inside: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        self._kind = kind
        self._values = {k: v for k, v in inside.items() if k not in {"type", "rope_type"}}
        for name in self._values:
            if name not in _KNOWN[kind] and name not in _EVERY:
                fix = "remove it only if it has no meaning for this model"
                raise wrong(f"kind {kind!r} has no key {name!r}", fix)
        for name in _OUTSIDE:
            given = config.get(name)
            mine = self._values.get(name)
            if given is not None and mine is not None and mine != given:
                raise wrong(f"{name} is {mine!r} in the rope parameters and {given!r} outside")
            if mine is None and given is not None:
                self._values[name] = given

    def __getitem__(self, name: str) -> Any:
        if self._values.get(name) is None:
            raise wrong(f"kind {self._kind!r} needs the key {name!r}")
        return self._values[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The value, or the default where the key is missing or null."""
        value = self._values.get(name)
        return default if value is None else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def from_config(
    config: Mapping[str, Any],
    *,
    layer_type: str | None = None,
    default_theta: float | None = None,
    head_dim: int | None = None,
) -> Rope:
    """Reads ``rope_parameters`` (transformers 5) or ``rope_scaling`` and ``rope_theta`` (4).

    Args:
        config: the configuration of the language model, as parsed from config.json. Used keys:
            rope_parameters, rope_scaling, rope_theta, partial_rotary_factor, head_dim, hidden_size,
            num_attention_heads, max_position_embeddings, original_max_position_embeddings.
        layer_type: which of several embeddings, for models with one a type of layer.
        default_theta: what a configuration without ``rope_theta`` means; None makes that an error.
        head_dim: elements of a head that may turn, where the model's own rule is another one.

    Raises:
        ConfigError: an unknown kind or key, one that is missing, or two that contradict each other.
    """
    inside = _parameters(config, layer_type)
    kind = _kind(inside)
    keys = Keys(kind, inside, config)
    sections = keys.get("mrope_section", ())
    if not isinstance(sections, list | tuple):
        raise wrong(f"mrope_section is {sections!r}, not a list")
    interleaved = keys.get("mrope_interleaved", False)
    if not isinstance(interleaved, bool):
        raise wrong(f"mrope_interleaved is {interleaved!r}, not true or false")
    theta = keys["rope_theta"] if default_theta is None else keys.get("rope_theta", default_theta)
    number("rope_theta", theta, above=1.0)
    cls = KINDS[kind]
    return cls(
        rotary_dim=_rotary_dim(config, keys, head_dim),
        theta=float(theta),
        sections=tuple(sections),
        interleaved=interleaved,
        **cls.read(keys),
    )


def _parameters(config: Mapping[str, Any], layer_type: str | None) -> Mapping[str, Any]:
    names = ("rope_parameters", "rope_scaling")
    given = {name: config[name] for name in names if config.get(name)}
    if len(given) == 2 and given["rope_parameters"] != given["rope_scaling"]:
        raise wrong("rope_parameters and rope_scaling contradict each other")
    for name, value in given.items():
        if not isinstance(value, Mapping):
            raise wrong(f"{name} is {value!r}, not a mapping")
        if not all(isinstance(part, Mapping | None) for part in value.values()):
            return value
        if layer_type not in value:
            known = ", ".join(map(repr, value))
            raise wrong(f"{name} has no layer type {layer_type!r}", f"give layer_type, of {known}")
        return value[layer_type] or {}
    return {}


def _kind(inside: Mapping[str, Any]) -> str:
    named = [inside[name] for name in ("rope_type", "type") if inside.get(name) is not None]
    kinds = {_OLD_NAMES.get(name, name) if isinstance(name, str) else repr(name) for name in named}
    if len(kinds) > 1:
        raise wrong(f"rope_type and type contradict each other: {named[0]!r} and {named[1]!r}")
    kind = next(iter(kinds), "default")
    if not named and set(inside) - set(_EVERY):
        raise wrong("the rope parameters have no rope_type")
    if kind not in KINDS:
        raise wrong(f"rope_type {kind!r} is not known", f"known are {', '.join(KINDS)}")
    return kind


def _rotary_dim(config: Mapping[str, Any], keys: Keys, head_dim: int | None) -> int:
    if head_dim is None:
        head_dim = config.get("head_dim")
    if head_dim is None:
        hidden, heads = (config.get(k) for k in ("hidden_size", "num_attention_heads"))
        if hidden is None or heads is None:
            raise wrong("there is neither head_dim nor hidden_size and num_attention_heads")
        whole("hidden_size", hidden)
        whole("num_attention_heads", heads)
        head_dim = hidden // heads
    whole("head_dim", head_dim)
    part = keys.get("partial_rotary_factor", 1.0)
    number("partial_rotary_factor", part)
    if part > 1:
        raise wrong(f"partial_rotary_factor is {part!r}, more than a whole head")
    return int(head_dim * part)
