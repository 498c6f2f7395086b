"""Points of the grid: everything a call is made of besides random numbers and layout."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from trivet.binding.example_calls import arguments as example
from trivet.contracts.declaration import ACTIVATION, Operator
from trivet_conformance.calls.mixes import apply


def plain_dtype(dtype: torch.dtype) -> str:
    """The name of a dtype without torch's prefix."""
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Point:
    """One kind of call.

    Args:
        dims: value of each dim.
        scalars: scalar arguments that differ from the defaults.
        dtypes: dtype of each dtype variable, the activations' (``T``) among them.
        mix: which value distribution the drawn tensors have.
        absent: optional tensors that are left out although their dims are known.
    """

    dims: tuple[tuple[str, int], ...]
    scalars: tuple[tuple[str, Any], ...] = ()
    dtypes: tuple[tuple[str, torch.dtype], ...] = ((ACTIVATION, torch.float32),)
    mix: str = "normal"
    absent: tuple[str, ...] = ()

    @property
    def dtype_text(self) -> str:
        """``bfloat16``, or ``bfloat16,W=float32`` where a variable differs."""
        own = dict(self.dtypes)
        main = own[ACTIVATION]
        others = [f"{v}={plain_dtype(d)}" for v, d in self.dtypes if d != main]
        return ",".join([plain_dtype(main), *others])

    @property
    def text(self) -> str:
        """The point as part of a case's name."""
        parts = [self.dtype_text, ",".join(f"{n}={v}" for n, v in self.dims)]
        if self.scalars:
            parts.append(",".join(f"{n}={v}" for n, v in self.scalars))
        parts += [f"no-{name}" for name in self.absent]
        return ":".join([*parts, self.mix])

    def to_json(self) -> dict[str, Any]:
        """Plain values for a report."""
        return {
            "dims": dict(self.dims),
            "scalars": dict(self.scalars),
            "dtypes": {v: plain_dtype(d) for v, d in self.dtypes},
            "values": self.mix,
            "absent": list(self.absent),
        }

    def with_dims(self, **dims: int) -> Point:
        """This point with some dims replaced."""
        return replace(self, dims=tuple((dict(self.dims) | dims).items()))


def make(
    dims: Mapping[str, int],
    scalars: Mapping[str, Any],
    dtypes: Mapping[str, torch.dtype],
    mix: str = "normal",
    absent: tuple[str, ...] = (),
) -> Point:
    """A point from mappings."""
    return Point(tuple(dims.items()), tuple(scalars.items()), tuple(dtypes.items()), mix, absent)


def generator(seed: int, op: Operator, point: Point, draw: int) -> torch.Generator:
    """Randomness that only the seed of the run, the point and the number of the draw decide."""
    text = f"{seed}|{op.name}|{point.text}|{draw}"
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
    return torch.Generator().manual_seed(number)


def arguments(op: Operator, point: Point, seed: int, draw: int = 0) -> dict[str, Any]:
    """The arguments of a call at a point, on the CPU, contiguous, one leading dim for a star."""
    rng = generator(seed, op, point, draw)
    dtypes = dict(point.dtypes)
    made = example(
        op,
        dict(point.dims),
        dtypes[ACTIVATION],
        rng,
        scalars=dict(point.scalars),
        dtypes=dtypes,
    )
    for name in point.absent:
        made[name] = None
    given = supplied(op, point)
    drawn = [n for n in op.tensors if made[n] is not None and n not in given]
    floats = [n for n in drawn if made[n].dtype.is_floating_point]
    apply(point.mix, made, floats, {n: op.dtypes[n] for n in floats}, rng)
    return made


def supplied(op: Operator, point: Point) -> frozenset[str]:
    """Arguments that the operator's own generator makes; their values mean something."""
    if op.cases.inputs is None:
        return frozenset()
    rng = torch.Generator().manual_seed(0)
    return frozenset(op.cases.inputs(dict(point.dims), dict(point.dtypes)[ACTIVATION], rng))
