"""What is right at a point: the fp64 oracle, the reference in the same dtype, and the budget.

Nothing here knows a provider, so that everything is computed once for all providers of an
operator. The operator's own oracle and its reference in float64 are two formulas; where they
disagree neither can judge, and that is an error of the declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from trivet.contracts.cases import Scores
from trivet.contracts.declaration import Operator
from trivet.errors import DeclarationError
from trivet.judging.statistics import (
    DRAWS,
    FINITE,
    MORE_DRAWS,
    SMALL,
    Allowance,
    Errors,
    errors,
    errors_of_several,
    judged_elements,
    kinds,
    row_errors,
    same_bits,
)
from trivet_conformance.calls.calling import compute, in_float64
from trivet_conformance.calls.mixes import is_one_number, is_ordinary
from trivet_conformance.calls.points import Point, arguments

T = TypeVar("T")

AGREE: Final = 2.0**-36
"""How far oracle and reference may be apart in float64, by the row's scale."""


AT_ONCE: Final = 1 << 16
"""Elements of a result that are measured together: draws of small calls are many, and alike."""


class Disagreement(Exception):
    """The operator's oracle and its reference contradict each other, or one of them raised."""


@dataclass
class Shown:
    """How many wrong results the judge refused at a truth, and how often it was asked."""

    count: int = 0
    turn: int = 0


@dataclass(frozen=True)
class Truth:
    """What is known about the right results of one call.

    Args:
        point: where.
        arguments: the stored inputs, on the CPU.
        oracle: right results; float64 where the budget is statistical.
        native: the reference's results in the call's dtypes.
        allowances: the budget of each result; empty where results must be equal.
        settled: for each result, the elements on which both formulas agree.
        judged: those of them whose value counts: finite, and the reference is near the oracle.
        scores: for choices, the bounds among which was chosen.
        notes: remarks on disagreements that are allowed (only among numbers that are not finite).
        shown: what the judge was shown here.
    """

    point: Point
    arguments: Mapping[str, Any]
    oracle: list[Tensor]
    native: list[Tensor]
    allowances: tuple[Allowance, ...] = ()
    settled: tuple[Tensor, ...] = ()
    judged: tuple[Tensor, ...] = ()
    scores: Scores | None = None
    notes: tuple[str, ...] = ()
    shown: Shown = field(default_factory=Shown, compare=False)

    @cached_property
    def kinds(self) -> list[tuple[Tensor, Tensor]]:
        """The kinds of numbers of each result: as the oracle has them, and as the reference."""
        pairs = zip(self.oracle, self.native, strict=True)
        return [(kinds(o.to(n.dtype)), kinds(n)) for o, n in pairs]


class Bench:
    """Truths of one run, kept while an operator is judged.

    Args:
        seed: seed of the run.
        quick: whether the grids are small (never enough for a certificate).
    """

    def __init__(self, seed: int, *, quick: bool = False) -> None:
        self.seed = seed
        self.quick = quick
        self._known: dict[tuple[str, Point], Truth | Disagreement] = {}
        self._inputs: dict[tuple[str, Point, int], dict[str, Any]] = {}
        self._calls: dict[tuple[str, Point], bool] = {}
        self._agreed: set[tuple[str, Point]] = set()
        self._made: dict[Hashable, Any] = {}

    def forget(self) -> None:
        """Drops everything that is kept."""
        self._known.clear()
        self._inputs.clear()
        self._calls.clear()
        self._agreed.clear()
        self._made.clear()

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What a family works out for an operator and needs again, for another provider say."""
        if key not in self._made:
            self._made[key] = make()
        made: T = self._made[key]
        return made

    def arguments(self, op: Operator, point: Point, draw: int = 0) -> dict[str, Any]:
        """The inputs of a point; whoever takes them must not write them."""
        key = op.name, point, draw
        if key not in self._inputs:
            self._inputs[key] = _arguments(op, point, self.seed, draw)
        return self._inputs[key]

    def is_call(self, op: Operator, point: Point) -> bool:
        """Whether an operator knows such a call: its generator makes it and its reference takes it.

        Dims that were moved into a domain, or out of it, may no longer fit each other; only the
        reference says so. What it takes must also agree with the oracle, or that is an error.
        """
        key = op.name, replace(point, mix="normal", dtypes=())
        if key not in self._calls:
            try:
                given = self.arguments(op, point)
                results = _run(op, "reference", given)
                want = op.result_meta(given)
                shapes = [(tuple(r.shape), r.dtype) for r in results]
                self._calls[key] = op.inplace_only or shapes == want
            except (Disagreement, DeclarationError):
                self._calls[key] = False
        return self._calls[key]

    def truth(self, op: Operator, point: Point) -> Truth:
        """What is right at a point.

        Raises:
            Disagreement: oracle and reference contradict each other, or one of them raised.
        """
        key = op.name, point
        if key not in self._known:
            try:
                self._known[key] = self._find(op, point)
            except Disagreement as problem:
                self._known[key] = problem
        found = self._known[key]
        if isinstance(found, Disagreement):
            raise found
        return found

    def _find(self, op: Operator, point: Point) -> Truth:
        given = self.arguments(op, point)
        native = _run(op, "reference", given)
        if op.budget.kind == "exact":
            return _exact(op, point, given, native)
        wide = in_float64(given)
        if op.budget.kind == "choice":
            oracle = _run(op, "oracle", wide)
            if not all(map(_same_choice, oracle, _run(op, "reference", wide))):
                raise Disagreement(f"oracle and reference choose differently at {point.text}")
            return Truth(point, given, oracle, native, scores=_scores(op, wide))
        oracle, settled, notes = self._oracle(op, point, wide, native)
        judged = tuple(
            judged_elements(n, o) & s for n, o, s in zip(native, oracle, settled, strict=True)
        )
        own = [errors(*row) for row in zip(native, oracle, judged, strict=True)]
        allowances = self._budget(op, point, own, native)
        return Truth(point, given, oracle, native, allowances, settled, judged, notes=notes)

    def _oracle(
        self, op: Operator, point: Point, wide: Mapping[str, Any], native: list[Tensor]
    ) -> tuple[list[Tensor], tuple[Tensor, ...], tuple[str, ...]]:
        """Right results in float64, the elements that are settled, and remarks.

        The second formula may be slow, and stored inputs of another dtype are as good for a
        comparison in float64: ordinary values are compared once for all dtypes of a point. The
        reference's numbers are given, so that they do not depend on what was compared before.
        """
        reference = _run(op, "reference", wide)
        key = op.name, replace(point, dtypes=())
        if is_ordinary(point.mix) and key in self._agreed:
            return reference, tuple(torch.ones_like(r, dtype=torch.bool) for r in reference), ()
        oracle = _run(op, "oracle", wide)
        settled, notes = _agree(oracle, reference, [n.dtype for n in native], point)
        self._agreed.add(key)
        return reference, settled, notes

    def _budget(
        self, op: Operator, point: Point, own: list[Errors], native: list[Tensor]
    ) -> tuple[Allowance, ...]:
        """The budget of each result, from the reference's worst of fresh draws and this one.

        Every other draw lies transposed in memory: libraries sum such inputs in another order,
        with other errors, and a budget from one order alone refuses plain sums. Where all numbers
        are one, a draw has one error, however many elements have it: it takes as many draws as
        for few numbers.
        """
        largest = max(n.numel() for n in native)
        few = largest < SMALL or is_one_number(point.mix)
        draws = range(1, (MORE_DRAWS if few else DRAWS) + 1)
        at_once = max(1, AT_ONCE // max(largest, 1))
        found = [[e] for e in own]
        for start in range(0, len(draws), at_once):
            pairs = [self._draw(op, point, draw) for draw in draws[start : start + at_once]]
            for i, several in enumerate(found):
                several.extend(errors_of_several([(near[i], right[i]) for near, right in pairs]))
        return tuple(
            Allowance.from_native(Errors.worst(several), result.dtype, op.budget.factor)
            for several, result in zip(found, native, strict=True)
        )

    def _draw(self, op: Operator, point: Point, draw: int) -> tuple[list[Tensor], list[Tensor]]:
        """The reference's results on fresh numbers, and what they would be in float64."""
        fresh = _arguments(op, point, self.seed, draw)
        right = _run(op, "reference", in_float64(fresh))
        return _run(op, "reference", _transposed(fresh) if draw % 2 else fresh), right


def _arguments(op: Operator, point: Point, seed: int, draw: int) -> dict[str, Any]:
    try:
        return arguments(op, point, seed, draw)
    except Exception as error:
        msg = f"the generator raised {type(error).__name__}: {error} at {point.text}"
        raise Disagreement(msg) from error


def _run(op: Operator, what: str, given: Mapping[str, Any]) -> list[Tensor]:
    function = op.oracle if what == "oracle" else op.reference
    try:
        return compute(op, function, given)
    except Exception as error:
        text = (str(error).strip().splitlines() or [""])[0]
        msg = f"the {what} raised {type(error).__name__}: {text}"
        raise Disagreement(msg) from error


def _transposed(given: Mapping[str, Any]) -> dict[str, Any]:
    """The same values with the last two dims of every floating tensor swapped in memory."""
    return {n: _swapped(v) for n, v in given.items()}


def _swapped(value: Any) -> Any:
    if isinstance(value, list):
        return [_swapped(t) for t in value]
    floating = isinstance(value, Tensor) and value.dtype.is_floating_point and value.dim() > 1
    return value.mT.contiguous().mT if floating else value


def _exact(op: Operator, point: Point, given: Mapping[str, Any], native: list[Tensor]) -> Truth:
    oracle = _run(op, "oracle", given)
    for a, b in zip(oracle, native, strict=True):
        if (
            a.shape != b.shape
            or a.dtype != b.dtype
            or not bool(same_bits(a, b, any_nan=True).all())
        ):
            raise Disagreement(f"oracle and reference differ in bits at {point.text}")
    return Truth(point, given, oracle, native)


def _agree(
    oracle: list[Tensor], second: list[Tensor], dtypes: list[torch.dtype], point: Point
) -> tuple[tuple[Tensor, ...], tuple[str, ...]]:
    """The elements on which two formulas agree in float64.

    Raises:
        Disagreement: they do not, on ordinary values. At extremes a formula may overflow or
            cancel even in float64; such rows are judged by kind of number only, and noted.
    """
    settled, notes = [], []
    for i, (a, b, dtype) in enumerate(zip(oracle, second, dtypes, strict=True)):
        if a.shape != b.shape:
            msg = f"result {i}: oracle has shape {list(a.shape)}, reference {list(b.shape)}"
            raise Disagreement(f"{msg} at {point.text}")
        same_kind = kinds(a) == kinds(b)
        both = same_kind & (kinds(a) == FINITE)
        near = row_errors(b, a, both, dtype) <= AGREE
        settled.append(same_kind & near)
        if bool(settled[-1].all()):
            continue
        text = f"result {i}: oracle and reference disagree in float64 at {point.text}"
        if is_ordinary(point.mix):
            raise Disagreement(text)
        notes.append(text)
    return tuple(settled), tuple(notes)


def _same_choice(a: Tensor, b: Tensor) -> bool:
    """Equal indices, and equal scores of them up to the last rounding."""
    if a.dtype.is_floating_point:
        near = 4 * torch.finfo(a.dtype).eps
        return a.dtype == b.dtype and torch.allclose(a, b, rtol=near, atol=near, equal_nan=True)
    return torch.equal(a, b)


def _scores(op: Operator, wide: Mapping[str, Any]) -> Scores | None:
    """Among what a choice was made, where the operator's budget declares it."""
    find = op.budget.scores
    return find(*(wide[name] for name in op.signature.names())) if find else None
