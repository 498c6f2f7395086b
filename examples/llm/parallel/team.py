"""What a model asks of the other ranks: sums, the joined logits, and that they do the same step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch

from llm.inputs import Inputs
from llm.parallel.channel import Channel
from llm.parallel.shards import Shard
from llm.timing import RANKS
from trivet.capture import boundary, capturing
from trivet.collectives import DeviceGroup

STEP = "step"
"""The order to run a step; the kinds of captured steps are orders, too."""

Lookup = Callable[[torch.Tensor, Any], torch.Tensor]
Timed = Callable[[str, str, Callable[..., Any]], Callable[..., Any]]


class Team:
    """The ranks of one model.

    Args:
        shard: The part of it that this rank has.
        data: The group of all ranks, on their devices.
        channel: What they tell each other on the host.
        dtype: In which the model computes.
    """

    def __init__(
        self,
        shard: Shard,
        data: DeviceGroup | None,
        channel: Channel | None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.shard, self.steps = shard, Counter[tuple[int, int]]()
        self._data, self._channel, self._dtype = data, channel, dtype
        self._sum: Callable[[torch.Tensor], torch.Tensor] = self._summed
        self._join: Callable[[torch.Tensor], torch.Tensor] = self._gathered

    @property
    def rank(self) -> int:
        """Which rank this is; the first one has the requests."""
        return self.shard.rank

    def timed(self, call: Timed) -> None:
        """Lets the time be taken of what waits for other ranks."""
        self._sum, self._join = (call(RANKS, "collectives", f) for f in (self._sum, self._join))

    def embedded(self, lookup: Lookup, ids: torch.Tensor, weight: Any) -> torch.Tensor:
        """Rows of an embedding, each of which one rank has."""
        mine = self.shard.part("vocab")
        own = ids - mine.start
        outside = (own < 0) | (own >= len(mine))
        x = lookup(own.masked_fill(outside, 0), weight)
        return self.total(x.masked_fill(outside.unsqueeze(1), 0))

    def total(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks, written into ``x``."""
        return self._outside(self._sum, "all_reduce", x)

    def joined(self, logits: torch.Tensor) -> torch.Tensor:
        """On the first rank the logits of the whole vocabulary; elsewhere there is nothing."""
        every = self._outside(self._join, "gather", logits)
        if self.rank:
            return every
        rows, vocab = len(logits), self.shard.whole.vocab
        whole = every.view(self.shard.size, rows, -1).transpose(0, 1).reshape(rows, -1)
        return whole[:, :vocab].contiguous()

    def tell(self, order: str, n: Inputs) -> None:
        """On the first rank: lets the others run the same step."""
        if self._channel is not None:
            self._channel.tell_all(order, n)

    def rows(self, replays: Mapping[tuple[int, int], int]) -> list[dict[str, Any]]:
        """What the group did, as rows beside those of the sites.

        Args:
            replays: How many captured steps there were of so many tokens and rows.
        """
        if self._data is None:
            return []
        layers, hidden = self.shard.whole.layers, self.shard.whole.hidden
        each, found = len(self.shard.part("vocab")), Counter[tuple[str, str, str, str]]()
        for (tokens, rows), steps in (self.steps + Counter(replays)).items():
            sums = self._who("all_reduce", tokens * hidden)
            for site, calls in (("embed", 1), ("out", layers), ("down", layers)):
                found[site, "all_reduce", *sums] += calls * steps
            if rows:
                found["head", "gather", *self._who("gather", rows * each)] += steps
        return [
            {"site": f"{site}, ranks", "operator": f"comm.{operation}", "form": "functional",
             "implementation": who, "calls": calls, "why": why}
            for (site, operation, who, why), calls in found.items()
        ]  # fmt: skip

    def _who(self, operation: str, numel: int) -> tuple[str, str]:
        """Who makes an operation of so many elements, and for which sizes."""
        assert self._data is not None  # noqa: S101  (asked by ``rows``)
        nbytes = numel * self._dtype.itemsize
        for row in self._data.table([str(self._dtype).removeprefix("torch.")]):
            most = row["to_bytes"]
            if row["operation"] == operation and (most is None or nbytes <= most):
                sizes = f"up to {most} bytes" if most is not None else "any size"
                return " or ".join(row["providers"]), sizes
        return "nobody", ""

    def _outside(
        self, call: Callable[[torch.Tensor], torch.Tensor], operation: str, x: torch.Tensor
    ) -> torch.Tensor:
        """A call of the group; in a capture between two graphs, unless they can hold it."""
        assert self._data is not None  # noqa: S101  (``Alone`` comes here never)
        if not capturing() or self._data.graph_safe(operation, x):
            return call(x)
        done: torch.Tensor = boundary(call, x)
        return done

    def _summed(self, x: torch.Tensor) -> torch.Tensor:
        assert self._data is not None  # noqa: S101  (as above)
        self._data.all_reduce_(x)
        return x

    def _gathered(self, x: torch.Tensor) -> torch.Tensor:
        assert self._data is not None  # noqa: S101  (as above)
        return self._data.gather(x)


class Alone(Team):
    """One rank that has everything."""

    def __init__(self, shard: Shard) -> None:
        super().__init__(shard, None, None)

    def embedded(self, lookup: Lookup, ids: torch.Tensor, weight: Any) -> torch.Tensor:
        """Rows of an embedding."""
        return lookup(ids, weight)

    def total(self, x: torch.Tensor) -> torch.Tensor:
        """It is the sum."""
        return x

    def joined(self, logits: torch.Tensor) -> torch.Tensor:
        """They are whole."""
        return logits


def waited(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row of what waits for other ranks among those of the sites, where time is taken."""
    named = {"site": RANKS, "operator": "", "form": "functional", "implementation": "collectives"}
    return {**named, **row, "why": "sums and joins over the ranks"}
