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

DRAWS: Final = 8
MORE_DRAWS: Final = 24
"""Fresh inputs on which the reference's errors are measured; results under ``SMALL`` vary more."""

SMALL: Final = 256
LARGE: Final = 1 << 22
"""Elements from which on two fresh inputs say enough."""

BLUNT: Final = 1 / 16
"""The reference's error by a row's scale from which on the row says nothing."""


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
        self.allowed: list[tuple[float, float]] = []
        if op.budget.kind == "choice" and op.budget.scores is not None:
            self.scores = op.budget.scores(*(wide(given[n]) for n in op.signature.names()))
        elif op.budget.kind == "statistical":
            self.allowed = self._budget(draw)

    def _budget(self, draw: Callable[[int], Mapping[str, Any]]) -> list[tuple[float, float]]:
        """For each result the largest error by its row's scale, and the root mean square."""
        numel = max((n.numel() for n in self.native), default=0)
        count = MORE_DRAWS if numel < SMALL else 2 if numel > LARGE else DRAWS
        found = [_worst(n, r) for n, r in zip(self.native, self.right, strict=True)]
        for number in range(1, count + 1 if numel else 1):
            fresh = dict(draw(number))
            right = results(self.op, self.op.reference, {n: wide(a) for n, a in fresh.items()})
            # another order in memory is summed in another order, with other errors
            fresh = {n: _swapped(a) for n, a in fresh.items()} if number % 2 else fresh
            near = results(self.op, self.op.reference, fresh)
            one = [_worst(n, r) for n, r in zip(near, right, strict=True)]
            found = [(max(a, c), max(b, d)) for (a, b), (c, d) in zip(found, one, strict=True)]
        factor = self.op.budget.factor
        rounding = [torch.finfo(n.dtype).eps / 4 if n.is_floating_point() else 0.0
                    for n in self.native]  # fmt: skip
        return [(factor * a + 2 * u, factor * b + u)
                for (a, b), u in zip(found, rounding, strict=True)]  # fmt: skip

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
        right, native = self.right[i], self.native[i]
        stray = (_kind(result) != _kind(right.to(native.dtype))) & (_kind(result) != _kind(native))
        by_scale, by_row = _errors(result, right, _judged(native, right) & result.isfinite())
        maximum, mean = self.allowed[i]
        share = max(float(by_scale.amax()) / maximum, float(by_row.amax()) / mean)
        return share, int((by_scale > maximum).sum()) + int(stray.sum())

    def _chosen(self, result: Tensor, right: Tensor) -> int:
        """How many choices differ that the scores do not leave open."""
        if self.scores is None:
            return _differing(result, right.to(result.dtype))
        lower, upper = self.scores.lower, self.scores.upper
        if result.is_floating_point():
            low, high = lower.amax(-1).to(result.dtype), upper.amax(-1).to(result.dtype)
            inside = (result >= low) & (result <= high)
            return int((~(inside | (result.isnan() & high.isnan()))).sum())
        at = result.long() - self.scores.first
        known = (at >= 0) & (at < upper.shape[-1])
        chosen = upper.gather(-1, at.clamp(0, upper.shape[-1] - 1).unsqueeze(-1)).squeeze(-1)
        best = lower.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf).amax(-1)
        open_ = known & ((chosen >= best) | chosen.isnan())
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


def _rows(t: Tensor) -> Tensor:
    return t.reshape((-1, t.shape[-1]) if t.dim() else (1, 1))


def _errors(result: Tensor, right: Tensor, judged: Tensor) -> tuple[Tensor, Tensor]:
    """Errors of elements by the scale of their row, and of rows by their norm."""
    keep = _rows(judged)
    o = _rows(right).where(keep, 0.0)
    d = (_rows(result).double() - _rows(right)).where(keep, 0.0)
    scale = o.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(result.dtype).tiny)
    d, o = d / scale, o / scale
    return d.abs(), d.norm(dim=-1) / o.norm(dim=-1).clamp_min(torch.finfo(result.dtype).tiny)


def _judged(native: Tensor, right: Tensor) -> Tensor:
    """Elements that are finite, in rows in which the reference itself is near the oracle."""
    finite = native.isfinite() & right.isfinite()
    if not native.numel():
        return finite
    near = _errors(native, right, finite)[0].amax(-1, keepdim=True) <= BLUNT
    return finite & near.expand(_rows(finite).shape).reshape(finite.shape)


def _worst(native: Tensor, right: Tensor) -> tuple[float, float]:
    if not native.is_floating_point() or not native.numel():
        return 0.0, 0.0
    by_scale, by_row = _errors(native, right, _judged(native, right))
    return float(by_scale.amax()), float(by_row.amax())


def _kind(t: Tensor) -> Tensor:
    """0 for a finite number, then NaN, infinity and minus infinity."""
    return t.isnan().byte() + 2 * t.isposinf().byte() + 3 * t.isneginf().byte()


def _differing(a: Tensor, b: Tensor) -> int:
    same = a == b
    if a.is_floating_point():
        same |= a.isnan() & b.isnan()
    return int((~same).sum())
