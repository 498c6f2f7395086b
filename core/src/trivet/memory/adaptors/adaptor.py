"""What every adaptor is: an allocator over another one."""

from __future__ import annotations

from typing import Any, Final

import torch

from trivet.contracts.memory import Allocator, Traits
from trivet.errors import InvalidBuffer, MemoryFault
from trivet.memory.upstream import allocator_problem
from trivet.plugins.describe import shown

PASSED: Final = (
    "trim",
    "preserves",
    "suspend",
    "resume",
    "export",
    "open",
    "close",
    "info",
    "stats",
)
"""Members of the other abilities of memory that an adaptor has where its upstream has them."""


class Adaptor:
    """An allocator that passes everything on; the others change what they are about.

    What the upstream can besides becomes an attribute of this object, so that it has exactly the
    abilities of its upstream (``isinstance(adaptor, Reclaimer)``), and each passes through
    ``_passed``, where an adaptor may stand in its way.

    Args:
        upstream: the allocator that is asked.

    Raises:
        MemoryFault: it is none; ``Buffers`` is the front of a stack and no allocator.
    """

    def __init__(self, upstream: Allocator) -> None:
        traits_of(upstream, type(self).__name__)
        self.upstream = upstream
        for name in PASSED:
            if hasattr(upstream, name) and not hasattr(type(self), name):
                setattr(self, name, self._passed(name, getattr(upstream, name)))

    def traits(self) -> Traits:
        """What holds for all its buffers."""
        return self.upstream.traits()

    def allocate(self, nbytes: int, *, tag: str) -> torch.Tensor:
        """A buffer; for its errors see ``trivet.contracts.memory.Allocator``."""
        return self.upstream.allocate(nbytes, tag=tag)

    def deallocate(self, buffer: torch.Tensor) -> None:
        """Takes a buffer back."""
        self.upstream.deallocate(buffer)

    def _passed(self, name: str, inner: Any) -> Any:
        """What this adaptor offers under the name of an ability's member."""
        del name
        return inner


def traits_of(upstream: Allocator, owner: str) -> Traits:
    """The traits of what an adaptor or a pool is built on.

    Raises:
        MemoryFault: it is no allocator.
    """
    if problem := allocator_problem(upstream):
        fix = "an allocator: dev.memory.allocator, a pool or an adaptor"
        raise MemoryFault(f"{owner} cannot be built: {problem}", fix=fix)
    return upstream.traits()


def foreign(owner: object, buffer: object) -> InvalidBuffer:
    """The error for what is no live buffer of an allocator."""
    what = shown(buffer)
    if isinstance(buffer, torch.Tensor):
        dtype = str(buffer.dtype).removeprefix("torch.")
        what = f"this tensor ({dtype} {list(buffer.shape)}{_place(buffer)})"
    msg = f"{type(owner).__name__} has no live buffer that is {what}"
    return InvalidBuffer(msg, fix="give back the very tensor that allocate returned, once")


def _place(buffer: torch.Tensor) -> str:
    try:
        return f" at {buffer.data_ptr():#x}"
    except RuntimeError:  # a layout without one address
        return ""
