"""What the kernels know of devices: facts of architectures, as vendors' packages state them.

A vendor calls ``add`` once, when its module of targets is imported. Architectures are told apart by
name, so that code for several vendors can be compiled in one process. Devices of one vendor are
there at a time, since a build of torch is for one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch

from trivet.errors import OrderError
from trivet.kernels.triton.tuned import Buckets, Config, Key


@dataclass(frozen=True)
class Own:
    """A vendor's own constants of one kernel, in place of the author's.

    Args:
        default: configs by number of rows.
        space: configs worth measuring; the author's where it is None.
    """

    default: Callable[[Key], Buckets]
    space: Callable[[Key, int], Iterator[Config]] | None = None


@dataclass(frozen=True)
class Architecture:
    """What constants of kernels depend on.

    Args:
        name: as in tables and gates.
        shared_kib: KiB of memory that the threads of one program can share.
        lanes: threads of a warp.
        tables: folder of its measured constants; None where it has none.
        tall_tiles: least options that a tile of more than 32 rows needs in decoding.
        fp8: the 8-bit format that its instructions convert to; None where none is stated.
        own: constants of its own, by the name of the kernel in tables.
    """

    name: str
    shared_kib: int
    lanes: int = 32
    tables: Path | None = None
    tall_tiles: Mapping[str, int] = field(default_factory=dict)
    fp8: torch.dtype | None = None
    own: Mapping[str, Own] = field(default_factory=dict)


@dataclass(frozen=True)
class Vendor:
    """How a vendor's package answers; none of it is asked before it is needed.

    Args:
        backend: of Triton's targets.
        kind: of torch's devices.
        described: the architecture with a name; None where it is not this vendor's.
        arch_of: name of the architecture of torch's device with an index.
        processors: how many multiprocessors that device has.
        here: whether this build of torch is for this vendor's devices.
        overlapping: of a target, options of launches that are placed while the kernel before them
            ends; None where they cannot be.
    """

    backend: str
    kind: str
    described: Callable[[str], Architecture | None]
    arch_of: Callable[[int], str]
    processors: Callable[[int], int]
    here: Callable[[], bool]
    overlapping: Callable[[Any], Mapping[str, Any] | None] = lambda _target: None


INTERPRETED: Final = Architecture("interpreted", shared_kib=227)
"""Where kernels are interpreted and nobody chose an architecture whose constants hold then."""

_vendors: dict[str, Vendor] = {}
_interpreted: list[str] = [INTERPRETED.name]


def add(vendor: Vendor) -> None:
    """States a vendor; another one of the same back end is forgotten."""
    _vendors[vendor.backend] = vendor
    for kept in (arch_at, architecture, device_at, processors, _resident):
        kept.cache_clear()


def interpret_as(name: str) -> None:
    """Chooses the architecture whose constants hold where kernels are interpreted.

    What was chosen for calls before stays; it computes the same.
    """
    architecture(name)
    _interpreted[0] = name
    arch_at.cache_clear()


@contextmanager
def interpreted_as(name: str) -> Iterator[None]:
    """The same for a while."""
    before = _interpreted[0]
    interpret_as(name)
    try:
        yield
    finally:
        interpret_as(before)


@cache
def architecture(name: str) -> Architecture:
    """The facts of an architecture.

    Raises:
        OrderError: no vendor's package described it.
    """
    if name == INTERPRETED.name:
        return INTERPRETED
    for vendor in _vendors.values():
        found = vendor.described(name)
        if found is not None:
            return found
    msg = f"no package has described the architecture {name}"
    raise OrderError(msg, fix="import the module of targets of its vendor's package first")


def vendor_of(target: Any) -> Vendor:
    """Whose target of Triton's it is.

    Raises:
        OrderError: no vendor's package has stated its back end.
    """
    found = _vendors.get(target.backend)
    if found is None:
        msg = f"no package has stated Triton's back end {target.backend}"
        raise OrderError(msg, fix="import the module of targets of its vendor's package first")
    return found


@cache
def device_at(index: int) -> torch.device:
    """The device with the index of ``Tensor.get_device``; -1 is the CPU, which interprets."""
    return torch.device("cpu") if index < 0 else torch.device(_resident().kind, index)


@cache
def arch_at(index: int) -> str:
    """The architecture of the device with the index of ``Tensor.get_device``."""
    return _interpreted[0] if index < 0 else _resident().arch_of(index)


@cache
def processors(index: int) -> int:
    """How many multiprocessors a device has; two where programs are interpreted."""
    return 2 if index < 0 else _resident().processors(index)


def shared_kib(arch: str) -> int:
    """KiB of memory that the threads of one program can share."""
    return architecture(arch).shared_kib


@cache
def _resident() -> Vendor:
    found = next((v for v in _vendors.values() if v.here()), None)
    if found is None:
        msg = "no package has stated this torch's devices to the Triton kernels"
        raise OrderError(msg, fix="trivet.device(...) does it; or import the package's targets")
    return found
