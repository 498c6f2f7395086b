"""Judging results against the truth, and showing the judge results that are wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from trivet.contracts.cases import Scores
from trivet.contracts.declaration import Operator
from trivet.judging.choices import open_candidates, possible_score
from trivet.judging.statistics import FINITE, NAN, errors, kinds, rounding, same_bits
from trivet_conformance.judging.truth import Truth
from trivet_conformance.judging.worst import Worst, among, as_json, beyond
from trivet_conformance.result import Finding, Status


@dataclass(frozen=True)
class Verdict:
    """What is wrong with results (nothing, where ``problems`` is empty), and the budget used.

    ``worst`` says where, as far as a single element can be blamed.
    """

    problems: tuple[str, ...] = ()
    margin: float = 0.0
    notes: tuple[str, ...] = ()
    worst: Worst | None = None


@dataclass(frozen=True)
class _Judged:
    """What is wrong with one result, and where; a place takes longer to find than a problem."""

    problem: str = ""
    where: Callable[[], Worst] | None = None
    margin: float = 0.0
    notes: tuple[str, ...] = ()


def _wrong(problem: str, where: Callable[[], Worst]) -> _Judged:
    return _Judged(problem, where, 1.0)


def judge(op: Operator, truth: Truth, results: Sequence[Any]) -> Verdict:
    """Compares results on the CPU with what is right; leading dims may be folded differently."""
    if len(results) != len(truth.native):
        return Verdict((f"{len(results)} results, not {len(truth.native)}",), 1.0)
    problems: list[str] = []
    notes: list[str] = []
    margin = 0.0
    worst: Worst | None = None
    for i, result in enumerate(results):
        right = truth.native[i]
        if not isinstance(result, Tensor) or result.dtype != right.dtype:
            have = result.dtype if isinstance(result, Tensor) else type(result).__name__
            problems.append(f"result {i} is {have}, not {right.dtype}")
            continue
        if result.numel() != right.numel():
            shapes = f"{list(result.shape)}, not {list(right.shape)}"
            problems.append(f"result {i} has shape {shapes}")
            continue
        one = _of_kind(op)(truth, i, result.reshape(right.shape))
        if one.where is not None:
            found = one.where()
            problems.append(f"result {i}: {one.problem}; {found.text}")
            worst = worst or found
        margin = max(margin, one.margin)
        notes += one.notes
    return Verdict(tuple(problems), margin, tuple(notes), worst)


def _of_kind(op: Operator) -> Callable[[Truth, int, Tensor], _Judged]:
    return {"exact": _exact, "choice": _choice}.get(op.budget.kind, _statistical)


def _exact(truth: Truth, i: int, result: Tensor) -> _Judged:
    wrong = ~same_bits(result, truth.native[i], any_nan=True)
    if not bool(wrong.any()):
        return _Judged()
    where = partial(among, wrong, i, result, truth.native[i])
    return _wrong(f"{int(wrong.sum())} elements differ", where)


def _choice(truth: Truth, i: int, result: Tensor) -> _Judged:
    right, scores = truth.oracle[i], truth.scores
    if result.dtype.is_floating_point:
        return _score_of_choice(scores, i, right, result)
    differ = result != right
    if not bool(differ.any()):
        return _Judged()
    if scores is None:
        return _wrong("another choice", partial(among, differ, i, result, right, single=True))
    at = result - scores.first
    wild = (at < 0) | (at >= scores.upper.shape[-1])
    if bool(wild.any()):
        where = partial(among, wild, i, result, right, single=True)
        return _wrong(f"no candidate, of {scores.upper.shape[-1]}", where)
    wrong = differ & ~open_candidates(scores).gather(-1, at.unsqueeze(-1)).squeeze(-1)
    if bool(wrong.any()):
        return _wrong("another choice", partial(among, wrong, i, result, right, single=True))
    return _Judged(notes=(f"{int(differ.sum())} close choices were decided differently",))


def _score_of_choice(scores: Scores | None, i: int, right: Tensor, result: Tensor) -> _Judged:
    """The score beside an index lies within the bounds of the best."""
    if scores is None:
        wrong = ~same_bits(result, right.to(result.dtype), any_nan=True)
    else:
        wrong = ~possible_score(scores, result)
    if not bool(wrong.any()):
        return _Judged()
    return _wrong("another score", partial(among, wrong, i, result, right, single=True))


def _statistical(truth: Truth, i: int, result: Tensor) -> _Judged:
    oracle, allowed = truth.oracle[i], truth.allowances[i]
    (expected, alike), have = truth.kinds[i], kinds(result)
    wrong = (have != expected) & (have != alike) & truth.settled[i]
    if bool(wrong.any()):
        where = partial(among, wrong, i, result, oracle)
        return _wrong(f"{int(wrong.sum())} elements are of another kind", where)
    judged = truth.judged[i] & (have == FINITE)
    used, statistic = allowed.used(errors(result, oracle, judged), result.numel())
    if used <= 1:
        return _Judged(margin=used)
    where = partial(beyond, allowed, statistic, i, result, oracle, judged)
    return _wrong(f"{statistic} is {used:.3g} times what is allowed", where)


def _first(mask: Tensor) -> tuple[int, ...]:
    return tuple(mask.nonzero()[0].tolist())


# --- power -----------------------------------------------------------------------------------


def settle(op: Operator, truth: Truth, verdict: Verdict, more: Sequence[str] = ()) -> Finding:
    """The finding of a verdict; a pass only if the same judge refuses wrong results.

    Args:
        op: the operator.
        truth: what is right.
        verdict: on the provider's results.
        more: notes of the caller.
    """
    notes = (*truth.notes, *verdict.notes, *more)
    inputs = truth.point.to_json()
    if verdict.problems:
        reason, worst = "; ".join(verdict.problems), as_json(verdict.worst)
        return Finding(Status.FAIL, reason, verdict.margin, inputs, notes, worst=worst)
    if truth.judged and truth.native[0].numel() and not any(bool(j.any()) for j in truth.judged):
        reason = "no number can be judged: the reference itself is far from the oracle"
        return Finding(Status.NOT_RUN, reason, 0.0, inputs, notes)
    refused, accepted = power(op, truth)
    if accepted:
        reason = f"the check has no power: it accepts {', '.join(accepted)}"
        return Finding(Status.ERROR, reason, verdict.margin, inputs, notes, refused)
    return Finding(Status.PASS, "", verdict.margin, inputs, notes, refused)


def power(op: Operator, truth: Truth) -> tuple[int, list[str]]:
    """How many wrong results the judge refuses, and which it accepts.

    It is shown all of them when a truth is first asked for, and afterwards one at a time, in turn:
    what is wrong there depends on no provider, but a judge may be spoilt by one.
    """
    kind, shown = _of_kind(op), truth.shown
    start = shown.turn % shown.count if shown.count else 0
    tried, accepted = 0, []
    for name, i, wrong in islice(_wrong_ones(op, truth), start, start + 1 if shown.count else None):
        tried += 1
        if kind(truth, i, wrong).where is None:
            accepted.append(name)
    shown.turn += 1
    shown.count = shown.count or (0 if accepted else tried)
    return (shown.count or tried) - len(accepted), accepted


def wrong_results(op: Operator, truth: Truth) -> Iterator[tuple[str, list[Tensor]]]:
    """Right results with one thing wrong; those are left out that would still be right."""
    for name, i, wrong in _wrong_ones(op, truth):
        yield name, [*truth.native[:i], wrong, *truth.native[i + 1 :]]


def _wrong_ones(op: Operator, truth: Truth) -> Iterator[tuple[str, int, Tensor]]:
    """What is wrong, in which result, and that result."""
    makers: dict[str, Callable[[Truth, int], Iterator[tuple[str, Tensor]]]] = {
        "exact": _wrong_bits,
        "choice": _wrong_choices,
    }
    maker = makers.get(op.budget.kind, _wrong_numbers)
    for i, native in enumerate(truth.native):
        if not native.numel():
            continue
        for name, wrong in maker(truth, i):
            yield f"{name} in result {i}", i, wrong


def _wrong_bits(truth: Truth, i: int) -> Iterator[tuple[str, Tensor]]:
    right = truth.native[i]
    flipped = right.clone().reshape(-1)
    finite = (kinds(flipped) == FINITE).nonzero()
    if len(finite):
        at = int(finite[len(finite) // 2])
        integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        flipped.view(integer[right.dtype.itemsize])[at] ^= 1
        yield "one flipped bit", flipped.reshape(right.shape)
    for name, wrong in (("zeros", torch.zeros_like(right)), ("rolled rows", _rolled(right))):
        if not bool(same_bits(wrong, right, any_nan=True).all()):
            yield name, wrong


def _wrong_choices(truth: Truth, i: int) -> Iterator[tuple[str, Tensor]]:
    right, scores = truth.oracle[i], truth.scores
    if right.dtype.is_floating_point:
        yield "another score", torch.full_like(truth.native[i], 3.0e38)
        return
    if scores is None:
        yield "another index", right + 1
        return
    count, possible = scores.upper.shape[-1], open_candidates(scores)
    yield "an index past the end", torch.full_like(right, scores.first + count)
    moved = (right - scores.first + 1) % count
    if not bool(possible.gather(-1, moved.unsqueeze(-1)).all()):
        yield "the next index", moved + scores.first
    last = scores.upper.argmin(-1)
    if not bool(possible.gather(-1, last.unsqueeze(-1)).all()):
        yield "the least likely index", last + scores.first


def _wrong_numbers(truth: Truth, i: int) -> Iterator[tuple[str, Tensor]]:
    oracle, allowed, dtype = truth.oracle[i], truth.allowances[i], truth.native[i].dtype
    right = truth.native[i]
    judged = truth.judged[i]
    expected, alike = truth.kinds[i]
    agreed = truth.settled[i] & (expected == alike)
    if bool((agreed & (alike == NAN)).any()):
        yield "zeros for NaN", right.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf)
    if bool((agreed & (alike > NAN)).any()):
        yield "clamped Inf", right.clamp(torch.finfo(dtype).min, torch.finfo(dtype).max)
    if not bool((judged & agreed).any()):
        return
    at = _first(judged & agreed)
    spoilt = right.clone()
    spoilt[at] = torch.nan
    yield "a NaN", spoilt
    yield from _wrong_finite(oracle.where(judged, 0.0), right, judged, allowed.maximum)


def _wrong_finite(
    oracle: Tensor, right: Tensor, judged: Tensor, allowed: float
) -> Iterator[tuple[str, Tensor]]:
    """Errors twice as large as allowed, and results in the wrong place."""
    dtype = right.dtype
    smallest, u = torch.finfo(dtype).tiny, rounding(dtype)
    scale = oracle.abs().amax(-1, keepdim=True).clamp_min(smallest)
    step = (2 * allowed + 4 * u) * scale
    flat = int((oracle.abs() / scale).where(judged, -1.0).argmax())
    one = oracle.reshape(-1).clone()
    one[flat] += step.expand_as(oracle).reshape(-1)[flat]
    yield "one wrong element", one.reshape(oracle.shape).where(judged, right.double()).to(dtype)
    gained = oracle * (1 + 2 * allowed + 4 * u)
    if bool((oracle.abs().where(judged, 0.0) >= smallest).any()):
        yield "a gain", gained.where(judged, right.double()).to(dtype)
    for name, wrong in (("zeros", torch.zeros_like(oracle)), ("rolled rows", _rolled(oracle))):
        far = (wrong - oracle).abs().where(judged, 0.0) > step
        if bool(far.any()):
            yield name, wrong.where(judged, right.double()).to(dtype)


def _rolled(t: Tensor) -> Tensor:
    """Every row in its neighbour's place; a single row by one element."""
    rows = t.reshape(-1, t.shape[-1]) if t.dim() else t.reshape(1, 1)
    return rows.roll(1, 0 if rows.shape[0] > 1 else 1).reshape(t.shape)
