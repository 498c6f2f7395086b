"""What references refuse themselves, because no shape says it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trivet.errors import DomainError


def declared(argument: str, value: str, allowed: Sequence[str]) -> None:
    """Refuses a choice that is not declared, so that it never means another one.

    Raises:
        DomainError: names the argument, the value and what is allowed.
    """
    if value not in allowed:
        msg = f"{argument}={value!r}"
        raise DomainError(msg, fix=f"use one of {', '.join(map(repr, allowed))}")


def readable(t: Tensor) -> bool:
    """Whether a tensor's numbers can be read without waiting for a device, trace or capture."""
    watched = torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack()  # noqa: SLF001
    return type(t) is Tensor and t.device.type == "cpu" and not watched


def within(argument: str, t: Tensor | None, right: Tensor | None, allowed: str) -> None:
    """Refuses numbers that mean nothing, where they can be read.

    Args:
        argument: its name.
        t: its numbers; None where it is absent.
        right: which of them are allowed.
        allowed: what is allowed, in words.

    Raises:
        DomainError: names the argument, the first wrong number and what is allowed.
    """
    if t is None or right is None or not readable(t):
        return
    wrong = (~right).reshape(-1)
    if bool(wrong.any()):
        at = int(wrong.to(torch.uint8).argmax())
        msg = f"{argument}[{at}] is {t.reshape(-1)[at].item()}"
        raise DomainError(msg, fix=f"use {allowed}")
