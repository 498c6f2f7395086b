"""Which factor of the error budget accepts legal sums, for matrix products and attention.

Every legal way to compute is judged at every point of the kit's value grid. The budget of a point
is ``factor`` times the reference's worst error of its fresh draws plus a rounding floor; here the
share of the budget that is used is computed for several factors from the same results, so that the
factor in a declaration rests on figures. A share above 1 refuses legal code. No times are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import torch
from report import Row, publish
from torch import Tensor

from trivet.contracts import implements
from trivet.judging.statistics import (
    FINITE,
    Allowance,
    Errors,
    errors,
    kinds,
    rounding,
)
from trivet_conformance.calls.calling import invoke, on_cpu
from trivet_conformance.families.case import claimed
from trivet_conformance.families.value import points
from trivet_conformance.judging.truth import Bench, Disagreement, Truth
from trivet_conformance.selftest.mutants.attention_loop import Loop, softmax
from trivet_conformance.subject.subject import Target, from_functions

FACTORS = (1.0, 1.5, 2.0, 3.0, 4.0)
Matmul = Callable[[Tensor, Tensor], Tensor]
"""(x [n, k], w [k, m]) -> [n, m], float32 or wider, of float32 inputs."""


def in_order(x: Tensor, w: Tensor) -> Tensor:
    """One product after the other: the worst plain order."""
    total = torch.zeros(x.shape[0], w.shape[1])
    for k in range(x.shape[1]):
        total = total + x[:, k, None] * w[None, k]
    return total


def in_chunks(size: int) -> Matmul:
    """Tiles of the inner dim, one after the other."""

    def product(x: Tensor, w: Tensor) -> Tensor:
        total = torch.zeros(x.shape[0], w.shape[1])
        for k in range(0, x.shape[1], size):
            total = total + x[:, k : k + size] @ w[k : k + size]
        return total

    return product


def split_k(parts: int) -> Matmul:
    """Parts of the inner dim apart, then the sum of the parts, as split-K kernels do."""

    def product(x: Tensor, w: Tensor) -> Tensor:
        sums = [a @ b for a, b in zip(x.chunk(parts, 1), w.chunk(parts, 0), strict=True)]
        return torch.stack(sums).sum(0)

    return product


PRODUCTS: dict[str, Matmul] = {
    "one after the other": in_order,
    "tiles of 16": in_chunks(16),
    "tiles of 128": in_chunks(128),
    "split-K of 4": split_k(4),
    "float64": lambda x, w: (x.double() @ w.double()).float(),
}


def _rounded(dtype: torch.dtype) -> Matmul:
    return lambda weights, values: weights.to(dtype).float() @ values


def _base_two(scores: Tensor, hidden: Tensor) -> Tensor:
    return softmax(scores * 1.4426950408889634 * 0.6931471805599453, hidden)


ATTENTIONS: dict[str, Loop] = {
    "values one after the other": Loop(mix=in_order),
    "values in tiles of 16": Loop(mix=in_chunks(16)),
    "values split in 4": Loop(mix=split_k(4)),
    "scores scaled twice": Loop(softmax=_base_two),
    "weights rounded to bfloat16": Loop(mix=_rounded(torch.bfloat16)),
}
"""The last one is what tensor-core kernels do; in float32 it is wrong and must be refused."""


_way: dict[str, Any] = {}
"""The way to sum that the two providers below take; claims must be functions of a module."""


@implements("linear@1", name="summed")
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: D103
    rows = x.reshape(-1, x.shape[-1]).float()
    total: Tensor = _way["product"](rows, weight.float().T)
    total = total.reshape(*x.shape[:-1], weight.shape[0])
    return (total if bias is None else total + bias.float()).to(x.dtype)


@implements("paged_attention@1", name="summed")
def attention(  # noqa: D103
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    query_start: Tensor,
    seq_lens: Tensor,
    max_query_len: int,
    max_seq_len: int,
    scale: float,
    schedule: list[Tensor],
    window: int = 0,
    soft_cap: float = 0.0,
    layout: str = "NHD",
) -> Tensor:
    del max_query_len, max_seq_len, schedule, layout
    batch = (q, k_cache, v_cache, block_table, query_start, seq_lens)
    result: Tensor = _way["loop"](*batch, scale, window, soft_cap)
    return result


@dataclass
class Tally:
    """Shares of the budget, by factor."""

    calls: int = 0
    refused: dict[float, int] = field(default_factory=lambda: dict.fromkeys(FACTORS, 0))
    worst: dict[float, float] = field(default_factory=lambda: dict.fromkeys(FACTORS, 0.0))

    def add(self, shares: dict[float, float]) -> None:
        """Counts one judged result."""
        self.calls += 1
        for factor, share in shares.items():
            self.refused[factor] += share > 1
            self.worst[factor] = max(self.worst[factor], share)


def shares(target: Target, truth: Truth, results: Sequence[Any]) -> dict[float, float]:
    """The share of the budget that results use, for every factor."""
    used = dict.fromkeys(FACTORS, 0.0)
    for i, result in enumerate(results):
        own = truth.allowances[i]
        u, factor = rounding(result.dtype), target.op.budget.factor
        native = Errors(
            (own.maximum - 2 * u) / factor,
            (own.root_mean_square - u) / factor,
            (own.bias - u) / factor,
        )
        shaped = result.reshape(truth.native[i].shape)
        found = errors(shaped, truth.oracle[i], truth.judged[i] & (kinds(shaped) == FINITE))
        for k in FACTORS:
            share, _ = Allowance.from_native(native, result.dtype, k).used(found, shaped.numel())
            used[k] = max(used[k], share)
    return used


def judged(target: Target, bench: Bench) -> Iterator[tuple[str, dict[float, float]]]:
    """(dtype, shares) of every point of the value grid."""
    for dtypes, refusal in claimed(target):
        grid = {} if refusal else dict(points(target, bench, dtypes))
        for point, layout in grid.items():
            try:
                truth = bench.truth(target.op, point)
            except Disagreement:
                continue
            placed = target.lay_out(bench, point, layout)
            if placed is not None:
                outcome = invoke(target.op, target.form, target.implementation.function, placed)
                yield point.dtype_text, shares(target, truth, on_cpu(outcome.results))


def measure(seeds: int, *, quick: bool) -> list[Row]:
    """Refusals and worst shares of each way to compute, by dtype and factor."""
    tallies: dict[tuple[str, str], Tally] = {}
    ways: dict[str, dict[str, Any]] = {"product": PRODUCTS, "loop": ATTENTIONS}
    targets = {k: from_functions([f], "budget").targets[0] for k, f in PROVIDERS.items()}
    for seed in range(seeds):
        for kind, own in ways.items():
            bench = Bench(seed, quick=quick)
            for name, way in own.items():
                _way[kind] = way
                for dtype, used in judged(targets[kind], bench):
                    key = f"{targets[kind].op.name}: {name}", dtype
                    tallies.setdefault(key, Tally()).add(used)
    return [
        Row(
            f"{name}, {dtype}, factor {factor:g}",
            round(tally.worst[factor], 4),
            "share",
            f"{tally.refused[factor]} of {tally.calls} refused",
        )
        for (name, dtype), tally in tallies.items()
        for factor in FACTORS
    ]


PROVIDERS: dict[str, Callable[..., Any]] = {"product": linear, "loop": attention}


@click.command()
@click.option("--json", "target", type=click.Path(path_type=Path), help="Write figures here.")
@click.option("--quick", is_flag=True, help="One seed and small grids.")
def main(target: Path | None, quick: bool) -> None:
    """Measures which factors of the error budget accept legal code."""
    torch.set_num_threads(1)
    seeds = 1 if quick else 3
    rows = measure(seeds, quick=quick)
    publish("budgets", rows, target)


if __name__ == "__main__":
    main()
