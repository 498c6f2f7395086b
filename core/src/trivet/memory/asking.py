"""Asking an allocator: what it answers is checked, and what it raises has one type."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import torch

from trivet.contracts.memory import Allocator, Traits
from trivet.errors import PluginBroken, TrivetError
from trivet.memory.exhaustion import is_exhaustion, typed
from trivet.memory.unraisable import noted
from trivet.memory.upstream import allocator_problem
from trivet.plugins.describe import said, shown

ALIGNMENT: Final = 64
"""The least alignment of every buffer."""


def name_of(allocator: object) -> str:
    """How an allocator is called in errors."""
    return f"the allocator {type(allocator).__qualname__}"


def traits_of(allocator: Allocator) -> Traits:
    """What an allocator says of its buffers.

    Raises:
        PluginBroken: it says nothing that can be true.
    """
    if problem := allocator_problem(allocator):
        fix = "an object with traits(), allocate(nbytes, *, tag) and deallocate(buffer)"
        raise PluginBroken(problem, fix=fix)
    traits = allocator.traits()
    alignment: object = traits.alignment
    if type(alignment) is not int or alignment < ALIGNMENT or alignment & alignment - 1:
        msg = f"{name_of(allocator)} aligns to {shown(alignment)} bytes"
        raise PluginBroken(msg, fix=f"a power of two, at least {ALIGNMENT}")
    return traits


def ask(
    allocator: Allocator,
    traits: Traits,
    nbytes: int,
    tag: str,
    places: Mapping[int, object] = MappingProxyType({}),
    where: str = "",
) -> torch.Tensor:
    """A buffer of an allocator.

    Args:
        allocator: who is asked.
        traits: what it says of its buffers.
        nbytes: the size.
        tag: what it is for.
        places: addresses of those that are live.
        where: the device as trivet names it; as torch does when empty.

    Raises:
        OutOfMemory: there is no room.
        PluginBroken: it returned something that is no such buffer, which it got back, or the
            memory of one that is live; or it raised what no allocator raises.
    """
    try:
        raw = allocator.allocate(nbytes, tag=tag)
    except TrivetError:
        raise
    except Exception as error:
        with typed(where or traits.device, nbytes, tag=tag, free_bytes=None):
            if isinstance(error, RuntimeError) and is_exhaustion(error):
                raise
        msg = f"{name_of(allocator)} was asked for {nbytes} bytes and raised {said(error)}"
        raise PluginBroken(msg, fix="OutOfMemory, or another error of trivet") from error
    if not _fits(raw, traits, nbytes):
        raise _odd(allocator, traits, nbytes, raw)
    if nbytes and (address := raw.data_ptr()) in places:
        # and it stays: giving it back would take it from its owner
        msg = f"{name_of(allocator)} was asked for {nbytes} bytes and returned those at "
        msg += f"{address:#x}, where buffer {places[address]} lies"
        raise PluginBroken(msg, fix="memory that no live buffer has")
    return raw


def give_back(allocator: Allocator, raw: torch.Tensor) -> None:
    """Has an allocator take a buffer back.

    Raises:
        PluginBroken: it raised what no allocator raises.
    """
    try:
        allocator.deallocate(raw)
    except TrivetError:
        raise
    except Exception as error:
        msg = f"{name_of(allocator)} does not take {raw.numel()} bytes back: {said(error)}"
        fix = "see its own error; the buffer is as it was, and can be freed again"
        raise PluginBroken(msg, fix=fix) from error


def _fits(raw: Any, traits: Traits, nbytes: int) -> bool:
    return (
        isinstance(raw, torch.Tensor)
        and raw.dtype == torch.uint8
        and raw.shape == (nbytes,)
        and raw.is_contiguous()
        and raw.device.type == traits.device.type
        and traits.start_of(raw) % traits.alignment == 0
    )


def _odd(allocator: Allocator, traits: Traits, nbytes: int, raw: Any) -> PluginBroken:
    """The error for what is no buffer of that size, after giving it back."""
    found = type(raw).__name__
    if isinstance(raw, torch.Tensor):
        found = f"{raw.dtype} {list(raw.shape)} on {raw.device}{_address(raw)}"
    msg = f"{name_of(allocator)} was asked for {nbytes} bytes and returned {found}"
    fix = f"a contiguous uint8 tensor of that size, aligned to {traits.alignment} bytes"
    broken = PluginBroken(msg, fix=fix)
    if isinstance(raw, torch.Tensor):
        with noted(broken, "it did not take that back either"):
            allocator.deallocate(raw)
    return broken


def _address(raw: torch.Tensor) -> str:
    try:
        return f" at {raw.data_ptr():#x}"
    except RuntimeError:  # a layout without one address
        return ""
