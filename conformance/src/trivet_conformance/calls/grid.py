"""Sizes, scalars and dtypes that the kit tries for an operator, all from its declaration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch

from trivet.contracts.declaration import ACTIVATION, Operator

ACTIVATIONS: Final = (torch.float32, torch.bfloat16, torch.float16)
LEADING: Final = (2, 64, 130)
"""Values of a leading dim, besides those of the operator's cases."""

ROWS: Final = 7
"""Leading dim of the sizes that vary the last one: a single number says little of an error."""

LAST: Final = (1, 2, 8, 129, 1000)
"""Values of the last dim of the first floating tensor, besides those of the cases."""


def variables(op: Operator) -> list[str]:
    """The dtype variables of an operator besides the activations'."""
    found = dict.fromkeys(op.dtypes.values())
    return [v for v in found if v != ACTIVATION and not is_dtype(v)]


def is_dtype(name: str) -> bool:
    """Whether a declared dtype is fixed rather than a variable."""
    return isinstance(getattr(torch, name, None), torch.dtype)


def dtype_sets(op: Operator) -> list[dict[str, torch.dtype]]:
    """Dtypes to try: each activation dtype, every variable equal to it, then each one different."""
    found = []
    own = variables(op)
    for dtype in ACTIVATIONS:
        same = {ACTIVATION: dtype} | dict.fromkeys(own, dtype)
        found.append(same)
        other = torch.bfloat16 if dtype == torch.float32 else torch.float32
        found += [same | {name: other} for name in own]
    return found


def sizes(op: Operator, *, quick: bool = False) -> list[dict[str, int]]:
    """Dims to try: the declared cases, then leading and last dims of the kit's own."""
    found = [dict(s) for s in op.cases.sizes]
    if quick:
        return found
    base = next((s for s in found if all(s.values())), found[0])
    for star in op.stars:
        found += [base | {star: n} for n in LEADING]
    if (last := last_dim(op)) in base:
        several = base | dict.fromkeys(op.stars, ROWS)
        found += [several | {last: n} for n in LAST]
    return found


def last_dim(op: Operator) -> str:
    """The name of the last dim of the first tensor that is no index; empty when there is none."""
    for arg, shape in op.shapes.items():
        declared = op.dtypes[arg]
        if shape.inner and not (
            is_dtype(declared) and not getattr(torch, declared).is_floating_point
        ):
            return shape.inner[-1].name
    return ""


def scalar_sets(op: Operator) -> list[dict[str, Any]]:
    """Scalars to try: those of the cases, then each other declared choice."""
    found = [dict(s) for s in op.cases.scalars]
    for name, allowed in op.choices.items():
        seen = {s.get(name, op.parameters[name].default) for s in found}
        found += [{name: value} for value in allowed if value not in seen]
    return found


def absent_sets(op: Operator) -> list[tuple[str, ...]]:
    """Which optional tensors are left out: none, each one, all."""
    optional = [p.name for p in op.signature.parameters if p.optional]
    found: dict[tuple[str, ...], None] = {(): None}
    found |= {(name,): None for name in optional}
    if optional:
        found[tuple(optional)] = None
    return list(found)


def spread(
    op: Operator, mixes: Sequence[str], *, quick: bool = False
) -> Iterator[tuple[dict[str, int], dict[str, Any], tuple[str, ...], str]]:
    """Combinations: every declared size meets every mix, each of the kit's sizes two of them.

    Scalars and absent optionals go round, so that they meet sizes and mixes in pairs.
    """
    scalars, absents = scalar_sets(op), absent_sets(op)
    for i, dims in enumerate(sizes(op, quick=quick)):
        own = i >= len(op.cases.sizes)
        chosen = [mixes[(i + j) % len(mixes)] for j in range(2)] if own else mixes
        if not all(dims.values()):
            chosen = mixes[:1]
        for j, mix in enumerate(chosen):
            k = i + j
            yield dims, scalars[k % len(scalars)], absents[(k // 2) % len(absents)], mix
