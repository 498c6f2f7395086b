"""Whether results are right: the budget that the operator declares, measured for one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from trivet.cli.comparison import results
from trivet.contracts.cases import Scores
from trivet.contracts.declaration import Operator
from trivet.judging.choices import open_candidates, possible_score
from trivet.judging.statistics import (
    DRAWS,
    FINITE,
    MORE_DRAWS,
    SMALL,
    Allowance,
    Errors,
    errors,
    errors_of_rows,
    judged_elements,
    kinds,
    same_bits,
)

LARGE: Final = 1 << 22
"""Elements from which on two fresh inputs say enough."""


@dataclass(frozen=True)
class Verdict:
    """What was found about the results of one provider.

    Args:
        share: of the budget that was used, 1 is the limit; None where results must be equal.
        wrong: elements outside the budget.
    """

    share: float | None
    wrong: int

    @property
    def right(self) -> bool:
        """Whether the results are within the budget."""
        return self.wrong == 0 and (self.share is None or self.share <= 1)


class Judge:
    """The right results of one call, and how far others may be from them.

    Args:
        op: the operator.
        given: the arguments, on the CPU.
        right: what the oracle gives for them, in float64.
        draw: makes fresh arguments like ``given`` from a number.
    """

    def __init__(
        self,
        op: Operator,
        given: Mapping[str, Any],
        right: Sequence[Tensor],
        draw: Callable[[int], Mapping[str, Any]],
    ) -> None:
        self.op = op
        self.right = right
        self.native = results(op, op.reference, given)
        self.scores: Scores | None = None
        self.allowed: list[Allowance] = []
        if op.budget.kind == "choice" and op.budget.scores is not None:
            self.scores = op.budget.scores(*(wide(given[n]) for n in op.signature.names()))
        elif op.budget.kind == "statistical":
            self.allowed = self._budget(draw)

    def _budget(self, draw: Callable[[int], Mapping[str, Any]]) -> list[Allowance]:
        """For each result how large its errors may be."""
        numel = max((n.numel() for n in self.native), default=0)
        count = MORE_DRAWS if numel < SMALL else 2 if numel > LARGE else DRAWS
        found = [list(map(_errors, self.native, self.right))]
        for number in range(1, count + 1 if numel else 1):
            fresh = dict(draw(number))
            right = results(self.op, self.op.reference, {n: wide(a) for n, a in fresh.items()})
            # another order in memory is summed in another order, with other errors
            fresh = {n: _swapped(a) for n, a in fresh.items()} if number % 2 else fresh
            near = results(self.op, self.op.reference, fresh)
            found.append(list(map(_errors, near, right)))
        return [
            Allowance.from_native(
                Errors.worst(draws),
                n.dtype if n.is_floating_point() else torch.float32,
                self.op.budget.factor,
            )
            for n, draws in zip(self.native, zip(*found, strict=True), strict=True)
        ]

    def verdict(self, got: Sequence[Tensor]) -> Verdict:
        """The verdict on the results of a provider."""
        pairs = list(enumerate(t.cpu() for t in got))
        if self.op.budget.kind == "exact":
            return Verdict(None, sum(_differing(t, self.native[i]) for i, t in pairs))
        if self.op.budget.kind == "choice":
            return Verdict(None, sum(self._chosen(t, self.right[i]) for i, t in pairs))
        shares, wrong = [0.0], 0
        for i, result in pairs:
            if not result.is_floating_point():
                wrong += _differing(result, self.native[i])
            elif result.numel():
                share, outside = self._share(i, result)
                shares.append(share)
                wrong += outside
        return Verdict(max(shares), wrong)

    def _share(self, i: int, result: Tensor) -> tuple[float, int]:
        right, native, allowed = self.right[i], self.native[i], self.allowed[i]
        have = kinds(result)
        stray = (have != kinds(right.to(native.dtype))) & (have != kinds(native))
        judged = judged_elements(native, right) & (have == FINITE)
        share, _ = allowed.used(errors(result, right, judged), result.numel())
        beyond = errors_of_rows(result, right, judged).elements > allowed.maximum
        return share, int(beyond.sum()) + int(stray.sum())

    def _chosen(self, result: Tensor, right: Tensor) -> int:
        """How many choices differ that the scores do not leave open."""
        if self.scores is None:
            return _differing(result, right.to(result.dtype))
        if result.is_floating_point():
            return int((~possible_score(self.scores, result)).sum())
        at, count = result.long() - self.scores.first, self.scores.upper.shape[-1]
        known = (at >= 0) & (at < count)
        chosen = at.clamp(0, count - 1).unsqueeze(-1)
        open_ = known & open_candidates(self.scores).gather(-1, chosen).squeeze(-1)
        return int(((result != right) & ~open_).sum())


def wide(value: Any) -> Any:
    """An argument in float64, on the CPU."""
    if isinstance(value, list):
        return [wide(v) for v in value]
    if isinstance(value, Tensor):
        return (value.double() if value.is_floating_point() else value).cpu()
    return value


def _swapped(value: Any) -> Any:
    """The same values with the last two dims of a floating tensor swapped in memory."""
    if isinstance(value, list):
        return [_swapped(v) for v in value]
    floating = isinstance(value, Tensor) and value.is_floating_point() and value.dim() > 1
    return value.mT.contiguous().mT if floating else value


def _errors(native: Tensor, right: Tensor) -> Errors:
    if not native.is_floating_point():
        return Errors()
    return errors(native, right, judged_elements(native, right))


def _differing(a: Tensor, b: Tensor) -> int:
    return int((~same_bits(a, b.to(a.dtype), any_nan=True)).sum())
