"""Which part of a model a rank holds: one rule for each parameter, all in ``RULES``.

A product whose outputs are shared out needs no communication; one whose inputs are shared out gives
each rank a part of a sum. Shares need not be equal: nine heads go on two ranks. Where there are
more ranks than heads of keys, ranks that serve the same one each hold a copy of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from typing import Final, Literal

import torch

from llm.config import Config
from llm.errors import RequestError

Axis = Literal["vocab", "heads", "kv_heads", "inter"]


@dataclass(frozen=True)
class Rule:
    """How a parameter is cut.

    Args:
        dim: 0 for the outputs of a matrix, which its bias goes with; 1 for its inputs: then the
            ranks add up their results, and the first one alone adds the bias.
        of: What is shared out.
    """

    dim: Literal[0, 1]
    of: Axis


RULES: Final = {
    "embedding": Rule(0, "vocab"),
    "q": Rule(0, "heads"),
    "k": Rule(0, "kv_heads"),
    "v": Rule(0, "kv_heads"),
    "out": Rule(1, "heads"),
    "gate": Rule(0, "inter"),
    "up": Rule(0, "inter"),
    "down": Rule(1, "inter"),
    "head": Rule(0, "vocab"),
}
"""The parameters that are shared out; every other one is whole on every rank."""

_UNIT = 64  # elements that stay together: kernels like whole vectors


@dataclass(frozen=True)
class Shard:
    """The part of one rank.

    Args:
        whole: The sizes of the model.
        rank: Which part.
        size: How many parts there are.

    Raises:
        RequestError: There are more ranks than heads of queries for them.
    """

    whole: Config
    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        c, most = self.whole, min(self.whole.heads, self.whole.inter, self.whole.vocab)
        if self.size > most:
            what = f"{self.size} ranks cannot share {c.heads} heads and {c.inter} inner elements"
            raise RequestError(what, fix=f"this model runs on {most} ranks at most")

    def part(self, of: Axis) -> range:
        """Which of them this rank has; of the vocabulary perhaps some that there are not."""
        c, r, n = self.whole, self.rank, self.size
        if of == "vocab":  # equal shares, which are joined again
            each = -(-c.vocab // n)
            return range(r * each, (r + 1) * each)
        if of == "inter":
            unit = gcd(c.inter, _UNIT)
            unit = unit if c.inter // unit >= n else 1
            return _cut(c.inter // unit, r, n, unit)
        group = c.heads // c.kv_heads
        if n <= c.kv_heads:
            return _cut(c.kv_heads, r, n, 1 if of == "kv_heads" else group)
        key = r * c.kv_heads // n
        if of == "kv_heads":
            return range(key, key + 1)
        mates = [rank for rank in range(n) if rank * c.kv_heads // n == key]
        own = _cut(group, mates.index(r), len(mates))
        return range(key * group + own.start, key * group + own.stop)

    @property
    def config(self) -> Config:
        """The sizes of the part: its own heads, inner elements and rows of the vocabulary."""
        return replace(
            self.whole,
            heads=len(self.part("heads")),
            kv_heads=len(self.part("kv_heads")),
            inter=len(self.part("inter")),
            vocab=len(self.part("vocab")),
        )

    @property
    def largest(self) -> Config:
        """The sizes of the part with the most heads of keys, of which the caches are made."""
        parts = (replace(self, rank=rank).config for rank in range(self.size))
        return max(parts, key=lambda c: c.kv_heads)

    def cut(self, name: str, tensor: torch.Tensor, *, kind: str = "weight") -> torch.Tensor:
        """The part of a parameter, in a storage of its own.

        Args:
            name: A key of ``RULES``, or a parameter that is whole everywhere.
            tensor: All of it.
            kind: ``weight`` or ``bias``.
        """
        rule = RULES.get(name)
        if rule is None or self.size == 1:
            return tensor
        if kind == "bias" and rule.dim == 1:
            return tensor if self.rank == 0 else torch.zeros_like(tensor)
        of, each = self.part(rule.of), self.whole.head_dim if "heads" in rule.of else 1
        there, shape = tensor.shape[rule.dim], list(tensor.shape)
        low, high = (min(end * each, there) for end in (of.start, of.stop))
        shape[rule.dim] = len(of) * each
        made = tensor.new_zeros(shape)
        made.narrow(rule.dim, 0, high - low).copy_(tensor.narrow(rule.dim, low, high - low))
        return made


def _cut(count: int, rank: int, size: int, unit: int = 1) -> range:
    """The share of a rank of so many units, as a range of elements."""
    return range(rank * count // size * unit, (rank + 1) * count // size * unit)
