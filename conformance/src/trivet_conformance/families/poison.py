"""Poison: results do not depend on memory that the operator does not read.

What is around and between views, what ``out`` held before, memory that was freed, and rows that
the operator does not read are filled with NaN, an ordinary number and the largest one. What is
unread is not declared: rows are unread where the reference's results do not depend on them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from trivet.contracts.declaration import Operator
from trivet_conformance.calls.calling import (
    compute,
    lay_out,
    on_cpu,
)
from trivet_conformance.calls.layouts import Layout, Placed
from trivet_conformance.calls.points import Point
from trivet_conformance.families.around import Around, equal
from trivet_conformance.families.case import (
    Case,
    call,
    on_bases,
)
from trivet_conformance.judging.truth import Bench, Disagreement
from trivet_conformance.result import Finding
from trivet_conformance.subject.subject import Target

NAME: Final = "poison"
LEVEL: Final = "L2"
TOKENS: Final = 6
RUNS: Final = 240
"""Runs of the reference to find what is unread; groups that are not resolved count as read."""

VALUES: Final = ("nan", "123", "max")


def cases(target: Target, bench: Bench) -> Iterator[Case]:
    """Each call in its plainest layout and with gaps between rows."""

    def making(point: Point, home: Layout, first: bool) -> Iterator[Case]:
        del first
        for layout in _layouts(target, bench, point, home):
            name = f"{target.label}:{point.text}:{layout.text}"
            one = Around(target, bench, point, layout)
            yield Case(name, point.dtype_text, partial(one.guarded, partial(_finding, one)))

    return on_bases(target, bench, TOKENS, 1 if bench.quick else 3, making)


def _layouts(target: Target, bench: Bench, point: Point, home: Layout) -> Iterator[Layout]:
    op, given = target.op, bench.arguments(target.op, point)
    starred = [n for n in op.tensors if given[n] is not None and op.shapes[n].star]
    rows = tuple((n, "rows64") for n in starred if op.shapes[n].inner)
    if target.form == "out":
        rows += (("out", "rows64"),)
    yield home
    if rows:
        placed = target.lay_out(bench, point, wide := replace(home, kinds=rows))
        if placed is not None and not target.refusal(placed):
            yield wide


def _finding(one: Around) -> Finding:
    target, op = one.target, one.target.op
    given = one.bench.arguments(op, one.point)
    masks = one.bench.once(("unread", op.name, one.point), partial(unread, op, given))
    found: list[tuple[str, list[Any]]] = []
    for value in ("", *VALUES):
        spoilt = given if not value else filled(given, masks, value)
        placed = _placed(target, spoilt, one.point, one.home, value)
        if placed is None:
            return one.no_call()
        _leave_behind(op, given, value, target.device.torch)
        name = f"where unread memory holds {value}" if value else "the call as it is"
        found.append((name, on_cpu(call(target, placed).results)))
    rows = {n: int(m.sum()) for n, m in masks.items()}
    told = ", ".join(f"{n} {c}" for n, c in rows.items()) or "none"
    finding = one.settled(found, (f"unread rows: {told}",))
    return replace(finding, inputs={**finding.inputs, "layout": one.home.text})


def _placed(
    target: Target, given: Mapping[str, Any], point: Point, layout: Layout, value: str
) -> Placed | None:
    """The call with everything that no view covers, and ``out``, full of a value."""
    own = target.adapted(given, point, layout)
    placed = lay_out(target.op, target.form, own, layout, target.device.torch)
    if placed is None or target.refusal(placed):
        return None
    for base in placed.bases:
        if value and base.memory.dtype.is_floating_point:
            outs = [n for n in base.views if n.startswith("out[")]
            kept = [n for n in base.views if n not in outs]
            base.memory[base.outside(kept)] = number(value, base.memory.dtype)
    return placed


def number(value: str, dtype: torch.dtype) -> float:
    """What memory is filled with."""
    return torch.finfo(dtype).max if value == "max" else float(value)


def _leave_behind(op: Operator, given: Mapping[str, Any], value: str, device: torch.device) -> None:
    """Frees memory of the results' sizes, full of a value: a new result may get it."""
    if not value:
        return
    meta = () if op.inplace_only else op.result_meta(given)
    made = [
        torch.full(shape, number(value, dtype), dtype=dtype, device=device)
        for shape, dtype in meta
        if dtype.is_floating_point
        for _ in range(4)
    ]
    del made


def filled(given: Mapping[str, Any], masks: Mapping[str, Tensor], value: str) -> dict[str, Any]:
    """The arguments with their unread rows full of a value."""
    found = dict(given)
    for name, mask in masks.items():
        spoilt = given[name].clone()
        rows_of(spoilt)[mask] = number(value, spoilt.dtype)
        found[name] = spoilt
    return found


def rows_of(t: Tensor) -> Tensor:
    """A dense tensor as rows: the first dim, and the second too where a third follows."""
    lead = 2 if t.dim() > 2 else 1
    return t.view(math.prod(t.shape[:lead]), -1)


def unread(op: Operator, given: Mapping[str, Any]) -> dict[str, Tensor]:
    """For each floating tensor with unread rows, which they are.

    Rows are changed in groups and the reference runs again; a group on which its results depend
    is halved.

    Raises:
        Disagreement: the reference reads rows of NaN and tells nobody.
    """
    right = compute(op, op.reference, given)
    found = {}
    for name in op.tensors:
        t = given[name]
        if not isinstance(t, Tensor) or not t.dtype.is_floating_point or t.dim() < 2:
            continue
        if not t.is_contiguous() or not t.numel():
            continue
        mask = _unread_rows(op, given, name, right)
        if bool(mask.any()):
            found[name] = mask
    for value in VALUES:
        if found and not _same(op, filled(given, found, value), right):
            msg = f"the reference's results depend on {value} in rows where NaN changes nothing"
            raise Disagreement(msg)
    return found


def _unread_rows(op: Operator, given: Mapping[str, Any], name: str, right: list[Tensor]) -> Tensor:
    count = rows_of(given[name]).shape[0]
    mask, groups = torch.zeros(count, dtype=torch.bool), [(0, count)]
    for _ in range(RUNS):
        if not groups:
            break
        start, end = groups.pop(0)
        trial = torch.zeros(count, dtype=torch.bool)
        trial[start:end] = True
        if all(_same(op, filled(given, {name: trial}, value), right) for value in VALUES[:2]):
            mask |= trial
        elif end - start > 1:
            middle = (start + end) // 2
            groups += [(start, middle), (middle, end)]
    return mask


def _same(op: Operator, given: Mapping[str, Any], right: list[Tensor]) -> bool:
    return equal(compute(op, op.reference, given), right)
