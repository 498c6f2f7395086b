"""How the devices of a machine are connected: what a vendor may say of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from trivet.contracts.memory import Traits

__all__ = ["Link", "TensorTraits", "Topology"]


@dataclass(frozen=True, slots=True)
class Link:
    """A way between two devices of one machine.

    Args:
        a: one end, as torch names the device.
        b: the other end.
        kind: what it is made of, in the words of the vendor's own tools.
        bytes_per_second: of one direction; None is unknown.
        measured: that number was measured, not looked up.
    """

    a: str
    b: str
    kind: str
    bytes_per_second: float | None = None
    measured: bool = False


@runtime_checkable
class Topology(Protocol):
    """Knows how the devices of this machine are connected; in the list beside providers."""

    def links(self) -> Sequence[Link]:
        """What connects the devices of this machine; two ends without a link are not listed."""
        ...

    def reaches(self, reader: int, owner: int) -> bool:
        """Whether one device reads another's memory directly; bytes were copied and compared."""
        ...


@runtime_checkable
class TensorTraits(Protocol):
    """Knows what holds for ordinary tensors of the device; in the list beside providers."""

    def traits(self) -> Traits:
        """The traits of memory that torch's allocator gives on this device now."""
        ...
