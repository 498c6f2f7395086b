"""The variants that reach beyond the length that a model was first trained with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from trivet.errors import ConfigError
from trivet.rope.plain import Rope, number, whole


@dataclass(frozen=True, kw_only=True)
class Linear(Rope):
    """Position interpolation (Chen et al. 2023, arXiv:2306.15595): positions by ``factor``."""

    kind: ClassVar[str] = "linear"

    factor: float

    def __post_init__(self) -> None:
        super().__post_init__()
        number("factor", self.factor, least=1.0)

    def inverse_frequencies(self, length: int | None = None) -> Tensor:
        """The plain frequencies divided by ``factor``."""
        return super().inverse_frequencies(length) / self.factor

    @classmethod
    def read(cls, keys: Mapping[str, Any]) -> dict[str, Any]:
        """See ``Rope.read``."""
        return {"factor": keys["factor"]}


@dataclass(frozen=True, kw_only=True)
class Dynamic(Rope):
    """NTK-aware scaling: the base grows with the length, so fast pairs keep their frequency.

    Source: the method "dynamic NTK" in section 3.3 of arXiv:2309.00071. Up to
    ``trained_length`` the frequencies are the plain ones.
    """

    kind: ClassVar[str] = "dynamic"

    factor: float
    trained_length: int

    def __post_init__(self) -> None:
        super().__post_init__()
        number("factor", self.factor, least=1.0)
        whole("max_position_embeddings", self.trained_length)
        if self.rotary_dim < 4:
            what = f"rotary embedding: rotary_dim is {self.rotary_dim}, kind 'dynamic' needs 4"
            raise ConfigError(what, fix="use kind 'default' or 'linear'")

    def inverse_frequencies(self, length: int | None = None) -> Tensor:
        """The plain frequencies of a base that grew with the length."""
        self._check_length(length)
        longer = max(length or 0, self.trained_length) / self.trained_length
        stretch = self.factor * longer - (self.factor - 1)
        return self._plain(self.theta * stretch ** (self.rotary_dim / (self.rotary_dim - 2)))

    @classmethod
    def read(cls, keys: Mapping[str, Any]) -> dict[str, Any]:
        """See ``Rope.read``."""
        return {"factor": keys["factor"], "trained_length": keys["max_position_embeddings"]}


@dataclass(frozen=True, kw_only=True)
class Yarn(Rope):
    """YaRN (Peng et al. 2023, arXiv:2309.00071): slow pairs are interpolated, fast ones are not.

    Args:
        factor: how many times longer than ``original_length`` sequences may become.
        original_length: tokens of a sequence before the model was extended.
        attention: factor on cos and sin; None follows from ``factor``: ``0.1 ln(factor) + 1``.
        beta_fast: pairs that turn at least this often over ``original_length`` are kept.
        beta_slow: pairs that turn at most this often are interpolated in full.
        mscale: with ``mscale_all_dim`` replaces the 0.1 by 0.1 times itself, in the quotient of
            both (DeepSeek).
        mscale_all_dim: see there.
        truncate: whether the range between fast and slow is widened to whole pairs.
    """

    kind: ClassVar[str] = "yarn"

    factor: float
    original_length: int
    attention: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        number("factor", self.factor, least=1.0)
        whole("original_max_position_embeddings", self.original_length)
        number("beta_slow", self.beta_slow)
        number("beta_fast", self.beta_fast, least=self.beta_slow)
        number("mscale", self.mscale, least=0.0, above=-1.0)
        number("mscale_all_dim", self.mscale_all_dim, least=0.0, above=-1.0)
        if self.attention is not None:
            number("attention_factor", self.attention)

    @property
    def attention_factor(self) -> float:
        """What cos and sin are multiplied by; dot products grow by its square."""
        if self.attention is not None:
            return self.attention

        def grown(by: float) -> float:
            return 0.1 * by * math.log(self.factor) + 1.0

        if self.mscale and self.mscale_all_dim:
            return grown(self.mscale) / grown(self.mscale_all_dim)
        return grown(1.0)

    def inverse_frequencies(self, length: int | None = None) -> Tensor:
        """A blend of the plain and the interpolated frequencies, pair by pair."""
        plain = super().inverse_frequencies(length)
        fast, slow = self._pair_of(self.beta_fast), self._pair_of(self.beta_slow)
        if self.truncate:
            fast, slow = math.floor(fast), math.ceil(slow)
        # The upper bound is an element of the head, not a pair: trained models have it so.
        fast, slow = max(fast, 0), min(slow, self.rotary_dim - 1)
        width = slow - fast or 0.001
        pairs = torch.arange(self.half, dtype=torch.float64)
        interpolated = ((pairs - fast) / width).clamp(0, 1)
        return plain / self.factor * interpolated + plain * (1 - interpolated)

    def _pair_of(self, turns: float) -> float:
        """The pair (not rounded) that turns this often over the original length."""
        wavelength = self.original_length / turns
        return self.rotary_dim * math.log(wavelength / math.tau) / (2 * math.log(self.theta))

    @classmethod
    def read(cls, keys: Mapping[str, Any]) -> dict[str, Any]:
        """See ``Rope.read``; a null factor is the ratio of the two lengths."""
        optional = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")
        if not isinstance(truncate := keys.get("truncate", True), bool):
            what = f"rotary embedding: truncate is {truncate!r}"
            raise ConfigError(what, fix="give true or false")
        return {
            "factor": _factor(keys),
            "original_length": keys["original_max_position_embeddings"],
            "attention": keys.get("attention_factor"),
            **{name: keys[name] for name in optional if keys.get(name) is not None},
        }


@dataclass(frozen=True, kw_only=True)
class Llama3(Rope):
    """The scaling of Llama 3.1: slow pairs are interpolated, with a smooth passage.

    Source: the reference code of Llama 3.1, section 3.4 of arXiv:2407.21783 for the long context.
    Pairs whose wave is longer than ``original_length / low_freq_factor`` are slowed down by
    ``factor``; those shorter than ``original_length / high_freq_factor`` are kept.
    """

    kind: ClassVar[str] = "llama3"

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_length: int

    def __post_init__(self) -> None:
        super().__post_init__()
        number("factor", self.factor, least=1.0)
        number("low_freq_factor", self.low_freq_factor)
        number("high_freq_factor", self.high_freq_factor, above=self.low_freq_factor)
        whole("original_max_position_embeddings", self.original_length)

    def inverse_frequencies(self, length: int | None = None) -> Tensor:
        """A blend of the plain and the interpolated frequencies, pair by pair."""
        plain = super().inverse_frequencies(length)
        turns = self.original_length * plain / math.tau
        low, high = self.low_freq_factor, self.high_freq_factor
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        return plain / self.factor * (1 - kept) + plain * kept

    @classmethod
    def read(cls, keys: Mapping[str, Any]) -> dict[str, Any]:
        """See ``Rope.read``."""
        names = ("factor", "low_freq_factor", "high_freq_factor")
        same = {name: keys[name] for name in names}
        return {**same, "original_length": keys["original_max_position_embeddings"]}


@dataclass(frozen=True, kw_only=True)
class LongRope(Rope):
    """LongRoPE (Ding et al. 2024, arXiv:2402.13753): a factor found by search for each pair.

    Args:
        short_factor: divisors of the frequencies for sequences up to ``original_length``, [half].
        long_factor: those for longer sequences, [half].
        original_length: tokens of a sequence before the model was extended.
        factor: how many times longer sequences may become; says the factor on cos and sin.
        attention: factor on cos and sin; None is ``sqrt(1 + ln(factor) / ln(original_length))``.
    """

    kind: ClassVar[str] = "longrope"

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_length: int
    factor: float = 1.0
    attention: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("original_max_position_embeddings", self.original_length)
        number("original_max_position_embeddings", self.original_length, above=1.0)
        number("factor", self.factor)
        if self.attention is not None:
            number("attention_factor", self.attention)
        for name in ("short_factor", "long_factor"):
            values = getattr(self, name)
            if not isinstance(values, tuple) or len(values) != self.half:
                what = f"rotary embedding: {name} is not a list of {self.half} numbers"
                raise ConfigError(what, fix="give one number a pair")
            for value in values:
                number(name, value)

    @property
    def attention_factor(self) -> float:
        """What cos and sin are multiplied by, whatever the length."""
        if self.attention is not None:
            return self.attention
        if self.factor <= 1:
            return 1.0
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original_length))

    def inverse_frequencies(self, length: int | None = None) -> Tensor:
        """The plain frequencies divided by the short or the long factors."""
        plain, longer = super().inverse_frequencies(length), (length or 0) > self.original_length
        chosen = self.long_factor if longer else self.short_factor
        return plain / torch.tensor(chosen, dtype=torch.float64)

    @classmethod
    def read(cls, keys: Mapping[str, Any]) -> dict[str, Any]:
        """See ``Rope.read``; without a factor it is the ratio of the two lengths."""
        lists = {name: keys[name] for name in ("short_factor", "long_factor")}
        return {
            **{n: tuple(v) if isinstance(v, list | tuple) else v for n, v in lists.items()},
            "original_length": keys["original_max_position_embeddings"],
            "factor": _factor(keys),
            "attention": keys.get("attention_factor"),
        }


def _factor(keys: Mapping[str, Any]) -> Any:
    """The factor, or where none is given the ratio of the new to the original length."""
    if keys.get("factor") is not None:
        return keys["factor"]
    new, old = keys["max_position_embeddings"], keys["original_max_position_embeddings"]
    whole("max_position_embeddings", new)
    whole("original_max_position_embeddings", old)
    return new / old
