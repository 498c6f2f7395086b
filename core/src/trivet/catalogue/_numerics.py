"""What the references share: promotion, and arithmetic that autocast cannot change."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from trivet.errors import DomainError


def floating(t: Tensor) -> Tensor:
    """The tensor itself, if its numbers have fractions.

    Raises:
        DomainError: they have none, so that a result, rounded back, would mean nothing.
    """
    if not t.is_floating_point():
        msg = f"a tensor of {t.dtype} is given where a floating dtype is declared"
        raise DomainError(msg, fix="convert it, for instance with .to(torch.float32)")
    return t


def up(t: Tensor) -> Tensor:
    """A floating tensor in at least float32: references compute there and round once at the end.

    Raises:
        DomainError: it is no floating tensor.
    """
    return floating(t).to(torch.promote_types(t.dtype, torch.float32))


def exactly(t: Tensor) -> AbstractContextManager[object]:
    """A scope in which autocast changes nothing on the device of ``t``."""
    kind = t.device.type
    if torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Matrix product in the dtype of ``a``, whatever autocast says."""
    with exactly(a):
        return torch.matmul(a, b)


def linear_map(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias`` in the dtype of ``x``, whatever autocast says.

    Raises:
        DomainError: ``x`` is no floating tensor.
    """
    with exactly(floating(x)):
        return torch.nn.functional.linear(x, weight, bias)
