"""The plain rotary embedding, and what all variants of it share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from trivet.errors import ConfigError, DomainError

MOST: Final = 1e30
"""No configuration means more than this; what follows from it stays finite in float64."""

WIDEST: Final = 2**16
"""The largest head that is believed; tables of a wider one would be a reader's mistake."""


def number(name: str, value: Any, *, above: float = 0.0, least: float | None = None) -> None:
    """Refuses what is no finite number in its range.

    Raises:
        ConfigError: ``value`` is not a number, not above ``above``, or below ``least``.
    """
    real = isinstance(value, int | float) and not isinstance(value, bool)
    if real and above < value <= MOST and (least is None or value >= least):
        return
    bound = f"above {above:g}" if least is None else f"of at least {least:g}"
    raise ConfigError(f"rotary embedding: {name} is {value!r}", fix=f"give a finite number {bound}")


def whole(name: str, value: Any, most: int = 2**53) -> None:
    """Refuses what is no positive whole number.

    Raises:
        ConfigError: ``value`` is something else, or above ``most``.
    """
    if type(value) is not int or not 1 <= value <= most:
        what = f"rotary embedding: {name} is {value!r}"
        raise ConfigError(what, fix=f"give a whole number from 1 to {most}")


@dataclass(frozen=True, kw_only=True)
class Rope:
    """The angles of Su et al. 2021 (arXiv:2104.09864); subclasses change the frequencies.

    Args:
        rotary_dim: elements of a head that turn, even; smaller than the head for partial rotation.
        theta: base of the frequencies, above 1.
        sections: pairs of each kind of position of a multimodal model (M-RoPE, arXiv:2409.12191),
            together ``rotary_dim / 2``; empty for models with one position per token.
        interleaved: pair ``j`` belongs to section ``j % len(sections)`` for as long as that section
            has pairs left, the rest to the first one (Qwen3-VL); else sections lie one after the
            other (Qwen2-VL).
    """

    kind: ClassVar[str] = "default"

    rotary_dim: int
    theta: float = 10000.0
    sections: tuple[int, ...] = ()
    interleaved: bool = False

    def __post_init__(self) -> None:
        whole("rotary_dim", self.rotary_dim, WIDEST)
        if self.rotary_dim % 2:
            what = f"rotary embedding: rotary_dim is {self.rotary_dim}, pairs need an even number"
            raise ConfigError(what, fix="check head_dim and partial_rotary_factor")
        number("theta", self.theta, above=1.0)
        for size in self.sections:
            whole("a section", size)
        self._owners()

    @property
    def half(self) -> int:
        """Pairs that turn: the width of the tables."""
        return self.rotary_dim // 2

    @property
    def attention_factor(self) -> float:
        """What cos and sin are multiplied by."""
        return 1.0

    def inverse_frequencies(self, length: int | None = None) -> Tensor:
        """The angle of each pair for one step of position, float64 ``[half]``.

        Args:
            length: tokens of the longest sequence that the tables are for; only ``dynamic`` and
                ``longrope`` depend on it. None means the length that the model was trained with.
        """
        self._check_length(length)
        return self._plain()

    def tables(self, positions: Tensor, *, length: int | None = None) -> tuple[Tensor, Tensor]:
        """Cos and sin of each token, contiguous float32 ``[tokens, half]`` where positions are.

        All rows of keys in one cache must be made with the same ``length``.

        Args:
            positions: whole numbers ``[tokens]``, or ``[sections, tokens]`` with sections.
            length: as for ``inverse_frequencies``.

        Raises:
            DomainError: positions have another shape or dtype.
        """
        rows = len(self.sections)
        shape_fits = positions.dim() == 1 or (positions.dim() == 2 and len(positions) == rows)
        if not shape_fits or positions.is_floating_point() or positions.dtype is torch.bool:
            what = f"positions are {positions.dtype} of shape {list(positions.shape)}"
            wanted = f"[tokens] or [{rows}, tokens]" if rows else "[tokens]"
            raise DomainError(what, fix=f"give whole numbers of shape {wanted}")
        at = positions.to("cpu", torch.float64)  # not every device computes in float64
        at = at[:, None] if at.dim() == 1 else at[self._owners()].T
        angles, factor = at * self.inverse_frequencies(length), self.attention_factor
        cos, sin = ((f(angles) * factor).float().contiguous() for f in (torch.cos, torch.sin))
        return cos.to(positions.device), sin.to(positions.device)

    def _plain(self, theta: float | None = None) -> Tensor:
        exponents = torch.arange(0, self.rotary_dim, 2, dtype=torch.float64) / self.rotary_dim
        return torch.pow(float(theta or self.theta), -exponents)

    def _owners(self) -> Tensor:
        """The section of each pair, int64 ``[half]``."""
        sizes = self.sections or (self.half,)
        owners = torch.zeros(self.half, dtype=torch.int64)
        if sum(sizes) == self.half and not self.interleaved:
            owners = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        elif sum(sizes) == self.half:
            pairs = torch.arange(self.half)
            turn = pairs % len(sizes)
            owners = torch.where(pairs // len(sizes) < torch.tensor(sizes)[turn], turn, 0)
        if owners.bincount(minlength=len(sizes)).tolist() != list(sizes):
            how = "in turns " if self.interleaved else ""
            what = f"rotary embedding: sections {list(sizes)} do not fill {self.half} pairs {how}"
            raise ConfigError(what.rstrip(), fix="check mrope_section against the size of a head")
        return owners

    @staticmethod
    def _check_length(length: int | None) -> None:
        if length is not None and (type(length) is not int or length < 1):
            raise DomainError(f"the length is {length!r}", fix="give the tokens of a sequence")

    @classmethod
    def read(cls, keys: Mapping[str, Any]) -> dict[str, Any]:
        """The fields that this kind has beside those of every kind, from a configuration.

        Raises:
            ConfigError: a key is missing; the message names it.
        """
        del keys
        return {}
