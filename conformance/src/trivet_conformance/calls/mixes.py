"""Value distributions: what the numbers of a call look like.

``MIXES`` are ordinary values on which errors are measured. ``SPECIALS`` put numbers at which
kernels go wrong into one tensor; their names are ``special@argument``. ``same@a+b`` gives two
arguments equal values and ``repeat@a`` repeats the first row, for calls that share memory;
``opposite@a+b`` makes two arguments nearly cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from trivet.contracts.declaration import ACTIVATION


def _tiny(t: Tensor) -> Tensor:
    return t * 1e-4


def _big(t: Tensor) -> Tensor:
    return t * 300


def _outlier(t: Tensor) -> Tensor:
    t = t.clone()
    t.view(-1)[::97] *= 100
    return t


def _shifted(t: Tensor) -> Tensor:
    return t + 3


def _powers(t: Tensor) -> Tensor:
    return t.sign() * torch.exp2(t.abs().clamp_min(2**-10).log2().round())


def _rising(t: Tensor) -> Tensor:
    """The largest of each row comes last: an index that is cut short misses it."""
    return t.sort(-1).values if t.dim() else t


MIXES: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    "normal": torch.clone,
    "tiny": _tiny,
    "big": _big,
    "outlier": _outlier,
    "shifted": _shifted,
    "powers": _powers,
    "rising": _rising,
}


def _one(value: float) -> Callable[[Tensor, torch.dtype, torch.Generator], Tensor]:
    def put(t: Tensor, dtype: torch.dtype, rng: torch.Generator) -> Tensor:
        del dtype
        at = int(torch.randint(0, t.numel(), (1,), generator=rng))
        t.view(-1)[at] = value
        return t

    return put


def _negative_zero(t: Tensor, dtype: torch.dtype, rng: torch.Generator) -> Tensor:
    del dtype, rng
    t.view(-1)[::2] = -0.0
    return t


def _largest(t: Tensor, dtype: torch.dtype, rng: torch.Generator) -> Tensor:
    at = int(torch.randint(0, t.numel(), (1,), generator=rng))
    t.view(-1)[at] = torch.finfo(dtype).max
    return t


def _denormal(t: Tensor, dtype: torch.dtype, rng: torch.Generator) -> Tensor:
    del rng
    return t * torch.finfo(dtype).tiny / 8


def _zero_rows(t: Tensor, dtype: torch.dtype, rng: torch.Generator) -> Tensor:
    del dtype, rng
    t[::2] = 0
    return t


def _graded(t: Tensor, dtype: torch.dtype, rng: torch.Generator) -> Tensor:
    """Rows of ever smaller numbers, down to where an epsilon decides alone."""
    del dtype, rng
    powers = -(torch.arange(t.shape[0], dtype=torch.float64) % 8)
    return t * (10.0**powers).view(-1, *[1] * (t.dim() - 1))


def _raised(t: Tensor, dtype: torch.dtype, rng: torch.Generator) -> Tensor:
    """A mean far larger than what is around it: squares of both nearly cancel."""
    del dtype, rng
    return t + 64


def _mixed(t: Tensor, dtype: torch.dtype, rng: torch.Generator) -> Tensor:
    """Huge and tiny numbers side by side."""
    del rng
    t.view(-1)[::2] *= torch.finfo(dtype).max ** 0.25
    t.view(-1)[1::2] *= torch.finfo(dtype).tiny ** 0.25
    return t


def _equal(t: Tensor, dtype: torch.dtype, rng: torch.Generator) -> Tensor:
    """One number everywhere, another one in every draw: its error is one error, not many.

    A budget from draws of one and the same number would be that number's luck. Six bits, so that
    sums of it stay exact.
    """
    del dtype
    return torch.full_like(t, int(torch.randint(33, 64, (1,), generator=rng)) / 64)


SPECIALS: Final[Mapping[str, Callable[[Tensor, torch.dtype, torch.Generator], Tensor]]] = {
    "nan": _one(torch.nan),
    "inf": _one(torch.inf),
    "minus-inf": _one(-torch.inf),
    "minus-zero": _negative_zero,
    "largest": _largest,
    "denormal": _denormal,
    "zero-rows": _zero_rows,
    "graded": _graded,
    "raised": _raised,
    "huge-and-tiny": _mixed,
    "all-equal": _equal,
}

EVERY_ARGUMENT: Final = ("nan", "inf", "minus-inf")
"""Specials that are put into every drawn tensor in turn; the others into activations only."""


def is_one_number(mix: str) -> bool:
    """Whether all elements of a mix are one number, so that they have one error together."""
    return SPECIALS.get(mix.partition("@")[0]) is _equal


def is_ordinary(mix: str) -> bool:
    """Whether all numbers of a mix are ordinary ones, on which two formulas must agree."""
    return mix.partition("@")[0] not in SPECIALS


def apply(
    mix: str,
    made: dict[str, Any],
    floats: Sequence[str],
    variables: Mapping[str, str],
    rng: torch.Generator,
) -> None:
    """Gives drawn tensors the values of a mix, in place of those in ``made``.

    Args:
        mix: name of the mix.
        made: arguments by name.
        floats: drawn floating-point tensors, those that may be changed.
        variables: dtype variable of each of them; ordinary mixes shape activations only.
        rng: source of positions.
    """
    kind, _, where = mix.partition("@")
    if kind in MIXES:
        for name in floats:
            if variables[name] == ACTIVATION:
                made[name] = MIXES[kind](made[name].double()).to(made[name].dtype)
    elif kind == "same":
        first, *others = where.split("+")
        for name in others:
            made[name] = made[first].to(made[name].dtype).clone()
    elif kind == "opposite":
        first, *others = where.split("+")
        for name in others:
            near = made[first].double() * (2.0**-9 * made[name].double().sign() - 1)
            made[name] = near.to(made[name].dtype)
    elif kind == "repeat":
        made[where] = made[where][:1].expand_as(made[where]).clone()
    elif made[where].numel():
        t = made[where]
        made[where] = SPECIALS[kind](t.double().clone(), t.dtype, rng).to(t.dtype)
