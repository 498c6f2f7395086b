"""Decode steps as captured graphs: one token of each request, replayed at the next larger size.

A row without a request has slot -1, which writes nothing, and a sequence of length 0, which reads
nothing. There are three kinds of step, each with the inputs that its choice of tokens needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

import trivet
from llm import sampling
from llm.inputs import Inputs, lay_out
from llm.schedule import Piece
from llm.timing import GRAPH
from trivet.capture import Input

if TYPE_CHECKING:
    from llm.model import Llama

KINDS: dict[str, tuple[str, ...]] = {
    "greedy": (),
    "random": sampling.CHOICE,
    "penalized": (*sampling.CHOICE, "history", *sampling.PENALTIES),
}
"""Columns of sampling that a kind of step reads."""


class Decode:
    """Captured decode steps of a model.

    Args:
        device: Captures.
        model: What is captured; its weights and caches are there.
        sizes: Numbers of requests that are captured.
        reach: Most tokens of a sequence.
    """

    def __init__(
        self, device: trivet.Device, model: Llama, sizes: Sequence[int], reach: int
    ) -> None:
        self._model, self._reach = model, reach
        self._width = model.pool.blocks_for(reach)
        where = device.torch
        self._starts = torch.arange(max(sizes) + 1, dtype=torch.int32, device=where)
        self._rows = torch.arange(max(sizes), device=where)
        self.execution = device.capture.execution.value
        self._chooses = model.team.rank == 0  # the other ranks have no logits to choose by
        self.graphs = {
            kind: device.capture.buckets(
                model.plan,
                self._work,
                inputs=self._inputs(columns if self._chooses else ()),
                sizes=sizes,
                at=lambda rows: {"tokens": rows, "rows": rows, "max_query_len": 1},
            )
            for kind, columns in KINDS.items()
        }
        self._largest = max(sizes)
        self._replay: Callable[..., Any] = lambda graphs, **inputs: graphs(model.plan, **inputs)

    def timed(self, call: Callable[[str, str, Callable[..., Any]], Callable[..., Any]]) -> None:
        """Lets the time of each replay be taken."""
        self._replay = call(GRAPH, self.execution, self._replay)

    def takes(self, pieces: Sequence[Piece]) -> bool:
        """Whether a step is one that was captured."""
        fits = 0 < len(pieces) <= self._largest
        return fits and all(p.samples and len(p.ids) == 1 for p in pieces)

    def step(self, pieces: list[Piece]) -> list[int]:
        """The next token of each piece."""
        n = lay_out(pieces, self._model.pool, blocks=self._width)
        asked = sampling.asked(pieces, whole=True, width=self._reach)
        kind = next(kind for kind, columns in KINDS.items() if asked.keys() == {*columns})
        self._model.team.tell(kind, n)
        return list(self.replay(kind, n, **asked).tolist())

    def replay(self, kind: str, n: Inputs, **asked: torch.Tensor) -> Any:
        """Replays a step of one kind: its tokens, where this rank chooses them."""
        inputs = {"ids": n.ids, "positions": n.positions, "slots": n.slots}
        inputs |= {"table": n.table, "lengths": n.lengths, **asked}
        return self._replay(self.graphs[kind], **inputs)

    def counts(self) -> dict[tuple[str, str], int]:
        """Calls that the replays stand for, by site and implementation."""
        total: Counter[tuple[str, str]] = Counter()
        for graphs in self.graphs.values():
            total.update(graphs.counts())
        return dict(total)

    def sizes(self) -> dict[tuple[int, int], int]:
        """Replays by tokens and rows of what was replayed."""
        total: Counter[tuple[int, int]] = Counter()
        for graphs in self.graphs.values():
            for row in graphs.report():
                total[row.size, row.size] += row.replays
        return dict(total)

    def report(self) -> list[dict[str, Any]]:
        """What each size of each kind cost, and how often it was replayed."""
        return [
            {
                "kind": kind,
                "rows": row.size,
                "seconds": row.seconds,
                "bytes": row.nbytes,
                "graphs": row.graphs,
                "replays": row.replays,
            }
            for kind, graphs in self.graphs.items()
            for row in graphs.report()
        ]

    def _inputs(self, columns: Sequence[str]) -> dict[str, Input]:
        longs = {name: Input(torch.int64) for name in ("ids", "positions")}
        found = {**longs, "slots": Input(torch.int64, padding=-1)}
        found |= {"table": Input(torch.int32, (self._width,)), "lengths": Input(torch.int32)}
        for name in columns:
            dtype, off = sampling.COLUMNS[name]
            shape = (self._reach,) if name == "history" else ()
            found[name] = Input(dtype, shape, off)
        return found

    def _work(
        self,
        op: Any,
        *,
        ids: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        table: torch.Tensor,
        lengths: torch.Tensor,
        **asked: torch.Tensor,
    ) -> Any:
        """What is captured: the model over one token a row, and the choice of the next ones."""
        size = len(ids)
        starts, rows = self._starts[: size + 1], self._rows[:size]
        n = Inputs(ids, positions, slots, table, starts, lengths, rows, 1, self._reach)
        logits = self._model.logits(op, n)
        return sampling.apply(op, logits, asked) if self._chooses else logits


def replayed(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row of all replays among those of the sites, where time is taken."""
    named = {"site": GRAPH, "operator": "", "form": "functional", "implementation": "captured"}
    return {**named, **row, "why": "decode steps; --capture off times their sites"}


def text(rows: Sequence[Mapping[str, Any]], execution: str) -> str:
    """One sentence about all captures."""
    seconds, size = sum(r["seconds"] for r in rows), sum(r["bytes"] for r in rows)
    graphs = sum(r["graphs"] for r in rows)
    each = ", ".join(str(n) for n in sorted({r["rows"] for r in rows}))
    return (
        f"captured decode ({execution}): {each} rows, {graphs} graphs, {seconds:.1f} s, "
        f"{size / 1e6:.1f} MB"
    )
