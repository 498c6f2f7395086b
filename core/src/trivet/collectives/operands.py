"""Tensors on their way into and out of a collective: flat, contiguous, checked, copied back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch

from trivet.contracts.collectives import REDUCTIONS
from trivet.errors import CommArgumentError, GradUnsupported

AVG: Final = "avg"
"""The reduction that core makes of a sum."""

_BITWISE: Final = frozenset({"band", "bor", "bxor"})
_ORDERED: Final = frozenset({"max", "min"})
_ARITHMETIC: Final = frozenset({"sum", "prod", AVG})


def require_tensor(x: torch.Tensor, device: torch.device, what: str) -> None:
    """Refuse what no collective takes.

    Raises:
        GradUnsupported: a gradient would be lost without a word.
        CommArgumentError: ``x`` lies on another kind of device.
    """
    if x.requires_grad and torch.is_grad_enabled():
        raise GradUnsupported(
            f"{what} has no gradient, and its input requires one",
            fix="call it under torch.no_grad() or torch.inference_mode(), or detach the input",
        )
    if x.device.type != device.type:
        raise CommArgumentError(f"{what}: the group is of {device}, the tensor is on {x.device}")


def flat(x: torch.Tensor) -> torch.Tensor:
    """The elements of ``x`` in order, ``[numel]``; a view where that is possible."""
    if x.dim() == 1 and not x.requires_grad and x.is_contiguous() and not x.is_conj():
        return _dense(x if not x.is_neg() else x.resolve_neg())
    return _dense(x.detach().resolve_conj().resolve_neg().contiguous().view(-1))


def _dense(x: torch.Tensor) -> torch.Tensor:
    """A flat contiguous tensor with stride 1: torch lets that of a single element be any."""
    return x if x.stride(0) == 1 else x.as_strided(x.shape, (1,))


def fresh(x: torch.Tensor) -> torch.Tensor:
    """A flat copy of ``x``, ``[numel]``."""
    return flat(x).clone()


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    """The bytes of a flat tensor, as a view."""
    return x.view(torch.uint8)


def writable(x: torch.Tensor, what: str) -> tuple[torch.Tensor, Callable[[], object] | None]:
    """A flat tensor to write into instead of ``x``, and how its content gets into ``x``.

    Returns:
        A view of ``x`` and None, or a copy and the function that copies it back.

    Raises:
        CommArgumentError: elements of ``x`` share their place.
    """
    target = x.detach() if x.requires_grad else x
    if target.is_contiguous() and not target.is_conj() and not target.is_neg():
        return _dense(target if target.dim() == 1 else target.view(-1)), None
    if any(n > 1 and stride == 0 for n, stride in zip(x.shape, x.stride(), strict=True)):
        raise CommArgumentError(
            f"{what} cannot write into an expanded tensor: its elements share their place",
            fix="pass x.contiguous(), or call the form that returns a new tensor",
        )
    copy = fresh(x)
    return copy, lambda: target.copy_(copy.view(x.shape))


def require_reduction(x: torch.Tensor, op: str, what: str) -> None:
    """Refuse reductions that do not exist, or mean nothing for a dtype.

    Raises:
        CommArgumentError: says which.
    """
    if op not in REDUCTIONS and op != AVG:
        raise CommArgumentError(
            f"{what}: no reduction {op!r}", fix=f"one of {', '.join((*REDUCTIONS, AVG))}"
        )
    dtype = x.dtype
    if op in _BITWISE and (dtype.is_floating_point or dtype.is_complex):
        raise CommArgumentError(f"{what}: {op} of {dtype} has no meaning", fix="view it as bits")
    if dtype.is_complex and op in _ORDERED:
        raise CommArgumentError(f"{what}: complex numbers have no order for {op}")
    if dtype == torch.bool and op in _ARITHMETIC:
        raise CommArgumentError(
            f"{what}: {op} of bool has no meaning",
            fix="op='max' is any, op='min' is all; or convert to int32 to count",
        )


def reduced(x: torch.Tensor) -> torch.Tensor:
    """A flat tensor as reductions take it: ``bool`` as its bytes, everything else as it is."""
    return as_bytes(x) if x.dtype == torch.bool else x


def rows_by_rank(x: torch.Tensor, size: int, what: str) -> int:
    """Rows of dimension 0 that each rank gets.

    Raises:
        CommArgumentError: ``x`` is a scalar, or its rows cannot be shared out evenly.
    """
    if x.dim() == 0 or x.shape[0] % size:
        raise CommArgumentError(
            f"{what}: dimension 0 of {list(x.shape)} cannot be divided by {size} ranks",
            fix="pad it",
        )
    return x.shape[0] // size


def require_splits(splits: Sequence[int], size: int, what: str, rows: int | None = None) -> None:
    """Refuse splits that are not one count a rank, or do not add up to ``rows``.

    Raises:
        CommArgumentError: says which.
    """
    total = "" if rows is None else f" that add up to {rows}"
    bad_sum = rows is not None and sum(splits) != rows
    if len(splits) != size or bad_sum or any(n < 0 for n in splits):
        raise CommArgumentError(f"{what}: splits {list(splits)} are not {size} counts{total}")
