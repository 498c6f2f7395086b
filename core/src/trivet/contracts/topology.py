"""How the devices of a machine are connected: what a vendor may say of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from trivet.contracts.memory import Traits

__all__ = ["Link", "Node", "PeerCopier", "Places", "TensorTraits", "Topology"]


@dataclass(frozen=True, slots=True)
class Node:
    """A place where something can run or lie: a device, a NUMA node, a host.

    Args:
        name: its name on this machine: as torch names a device, ``numa:0``.
        kind: ``device``, ``numa`` or ``host``.
        near: what it hangs on: the NUMA node of a device, the host of a NUMA node; or empty.
        cores: processors of it, as the system counts them.
        memory_bytes: memory of it; None is unknown.
    """

    name: str
    kind: str
    near: str = ""
    cores: tuple[int, ...] = ()
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """A way between two nodes of one machine, the same in both directions.

    Args:
        a: one end, as its node is named.
        b: the other end.
        kind: what it is made of, in the words of the vendor's own tools.
        bytes_per_second: of one direction; None is unknown.
        measured: that number was measured, not looked up.
        hops: pieces of wire from end to end; None is unknown.
    """

    a: str
    b: str
    kind: str
    bytes_per_second: float | None = None
    measured: bool = False
    hops: int | None = None


@runtime_checkable
class Topology(Protocol):
    """Knows how the devices of this machine are connected; in the list beside providers.

    It starts no device: what it says is what the driver and the system say.
    """

    def links(self) -> Sequence[Link]:
        """What connects the devices of this machine; two ends without a link are not listed."""
        ...

    def reaches(self, reader: int, owner: int) -> bool:
        """Whether one device reads another's memory directly; a probe can only take it away."""
        ...


@runtime_checkable
class Places(Protocol):
    """Of a topology: knows which NUMA nodes and hosts there are, and what is near which."""

    def nodes(self) -> Sequence[Node]:
        """Every node that it knows of."""
        ...


@runtime_checkable
class PeerCopier(Protocol):
    """Of a topology: has one device read or write the memory of another, for probes.

    Without it torch copies, which may go through the host. Both return when the bytes are there.
    """

    def read(self, out: torch.Tensor, inp: torch.Tensor) -> None:
        """The device of ``out`` loads ``inp``, which lies on the other one, into ``out``."""
        ...

    def write(self, out: torch.Tensor, inp: torch.Tensor) -> None:
        """The device of ``inp`` stores it into ``out``, which lies on the other one."""
        ...


@runtime_checkable
class TensorTraits(Protocol):
    """Knows what holds for ordinary tensors of the device; in the list beside providers."""

    def traits(self) -> Traits:
        """The traits of memory that torch's allocator gives on this device now."""
        ...
