"""What follows from a compute capability, and what a maker's data sheet says that NVML does not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

Capability: TypeAlias = tuple[int, int]

OLDEST: Final[Capability] = (8, 0)
"""The first with bfloat16 in its tensor cores and asynchronous copies, which the kernels use."""

_KIB: Final = 1 << 10
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """What one multiprocessor has.

    Args:
        fp32_lanes: units that NVML counts as CUDA cores.
        shared_kib: shared memory that one block may ask for.
    """

    fp32_lanes: int
    shared_kib: int


# from the tables of compute capabilities in NVIDIA's programming guide
_MULTIPROCESSORS: Final = {
    (8, 0): Multiprocessor(64, 163),
    (8, 6): Multiprocessor(128, 99),
    (8, 7): Multiprocessor(128, 163),
    (8, 9): Multiprocessor(128, 99),
    (9, 0): Multiprocessor(128, 227),
    (10, 0): Multiprocessor(128, 227),
    (10, 3): Multiprocessor(128, 227),
    (11, 0): Multiprocessor(128, 227),
    (12, 0): Multiprocessor(128, 99),
    (12, 1): Multiprocessor(128, 99),
}
# from data sheets; H200 as its driver reports it
_L2_MIB: Final = {
    "H200": 60,
    "H100": 50,
    "A100": 40,
    "L40S": 96,
    "L4": 48,
    "A10": 6,
    "RTX 5090": 96,
    "RTX 4090": 72,
    "RTX 3090": 6,
}
_TEGRA: Final = frozenset({(5, 3), (6, 2), (7, 2), (8, 7), (10, 1), (11, 0)})
_FLAG: Final = re.compile(r"(sm|compute)_([0-9]{1,2})([0-9])([af]?)")


def names(capability: Capability) -> tuple[str, ...]:
    """Architecture names, most specific first; source that is written for any of them runs."""
    own = f"sm{capability[0]}{capability[1]}"
    earlier = [c for c in ((9, 0), (8, 0)) if c < capability]
    return (own, *(f"sm{major}{minor}" for major, minor in earlier))


def features(capability: Capability) -> frozenset[str]:
    """Abilities that an implementation may require."""
    found = {"tensor_cores", "cp_async"}
    if capability >= (8, 9):
        found |= {"fp8"}
    if capability >= (9, 0):
        found |= {"tma", "clusters"}
    if capability[0] == 9:  # these two belong to one generation each, and later ones lack them
        found |= {"wgmma"}
    if capability[0] in {10, 11}:
        found |= {"tcgen05"}
    return frozenset(found)


def dtypes(capability: Capability) -> frozenset[str]:
    """Dtypes with native arithmetic."""
    found = {"float64", "float32", "float16", "bfloat16"}
    if capability >= (8, 9):
        found |= {"float8_e4m3fn", "float8_e5m2"}
    return frozenset(found)


def multiprocessors(capability: Capability, cuda_cores: int | None) -> int | None:
    """How many there are, from NVML's count of lanes; None where that does not come out even."""
    known = _MULTIPROCESSORS.get(capability)
    if known is None or cuda_cores is None or cuda_cores % known.fp32_lanes:
        return None
    return cuda_cores // known.fp32_lanes


def shared_bytes(capability: Capability) -> int | None:
    """Shared memory that one block may ask for."""
    known = _MULTIPROCESSORS.get(capability)
    return None if known is None else known.shared_kib * _KIB


def cache_bytes(name: str) -> dict[str, int]:
    """The second-level cache of a product that the table knows."""
    if "Laptop" in name:  # other chips under the same names
        return {}
    for product, mib in _L2_MIB.items():
        if re.search(rf"\b{product}\b", name):
            return {"l2": mib * _MIB}
    return {}


def runs(capability: Capability, flags: Sequence[str]) -> str:
    """How code of a torch with these architectures runs: ``binary``, ``compiled`` or empty.

    A binary runs on its own major version and higher minor ones, except between a Jetson and the
    others; ``a`` binds it to one capability. What is there as PTX is compiled by the driver, for
    any later capability, when it is first used.
    """
    found = ""
    for kind, major, minor, bound in filter(None, map(_parts, flags)):
        made_for = (major, minor)
        exact = bound == "a" or (capability != made_for and {capability, made_for} & _TEGRA)
        if kind == "sm" and (
            capability == made_for if exact else major == capability[0] and made_for <= capability
        ):
            return "binary"
        if kind == "compute" and not bound and made_for <= capability:
            found = "compiled"
    return found


def _parts(flag: str) -> tuple[str, int, int, str] | None:
    match = _FLAG.fullmatch(flag)
    return (match[1], int(match[2]), int(match[3]), match[4]) if match else None
