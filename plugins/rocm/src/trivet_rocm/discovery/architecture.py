"""What follows from the name of an architecture, and what a maker's data sheet says beside it.

Facts are those of AMD's instruction set documents, its optimisation guides and LLVM's page of
targets. Nothing here was read from hardware.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

_KIB: Final = 1 << 10
_MIB: Final = 1 << 20

FNUZ: Final = "float8_e4m3fnuz"
"""Finite values and one NaN, no negative zero, bias 8; the largest is 240."""
OCP: Final = "float8_e4m3fn"
"""Bias 7, the largest is 448."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """One architecture.

    Args:
        family: name of its instruction set, as users know it.
        wavefront: lanes that run in step where nothing else is asked for.
        lds_kib: memory that one workgroup may share.
        unit_lds_kib: the same of the unit that a workgroup runs on.
        waves: wavefronts of that unit at once.
        simds: of that unit.
        matrix: instructions that multiply tiles: ``mfma`` or ``wmma``.
        fp8: the 8-bit format that instructions convert to; None where each is emulated.
        units: of a whole device, by a part of the product's name; a partition has fewer.
    """

    family: str
    wavefront: int
    lds_kib: int
    unit_lds_kib: int
    waves: int
    simds: int
    matrix: str
    fp8: str | None = None


# a workgroup of an RDNA device runs on two compute units, which share 128 KiB
_RDNA: Final = {"wavefront": 32, "lds_kib": 64, "unit_lds_kib": 128, "waves": 64, "simds": 4}

KNOWN: Final[MappingProxyType[str, Architecture]] = MappingProxyType(
    {
        "gfx90a": Architecture("CDNA2", 64, 64, 64, 32, 4, "mfma"),
        "gfx942": Architecture("CDNA3", 64, 64, 64, 32, 4, "mfma", FNUZ),
        "gfx950": Architecture("CDNA4", 64, 160, 160, 32, 4, "mfma", OCP),
        "gfx1100": Architecture("RDNA3", matrix="wmma", **_RDNA),  # type: ignore[arg-type]
        "gfx1101": Architecture("RDNA3", matrix="wmma", **_RDNA),  # type: ignore[arg-type]
        "gfx1102": Architecture("RDNA3", matrix="wmma", **_RDNA),  # type: ignore[arg-type]
        "gfx1200": Architecture("RDNA4", matrix="wmma", fp8=OCP, **_RDNA),
        "gfx1201": Architecture("RDNA4", matrix="wmma", fp8=OCP, **_RDNA),
    }
)
"""What the kernels are written for; others are refused."""

COMPILED: Final = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
"""Those whose code is generated and judged ahead of time."""

SAME_CODE: Final[MappingProxyType[str, str]] = MappingProxyType(
    {"gfx1101": "gfx1100", "gfx1102": "gfx1100", "gfx1200": "gfx1201"}
)
"""Architectures with the facts of another one, whose tables and gates they share."""

_LARGEST: Final = {FNUZ: 240.0, OCP: 448.0}
_ID: Final = re.compile(r"(gfx[0-9]+[0-9a-f]{2})((?::[a-z]+[+-])*)")
# from data sheets
_CACHE: Final = {
    "MI355X": {"l2": 4 * _MIB, "infinity": 256 * _MIB},
    "MI350X": {"l2": 4 * _MIB, "infinity": 256 * _MIB},
    "MI325X": {"l2": 4 * _MIB, "infinity": 256 * _MIB},
    "MI300X": {"l2": 4 * _MIB, "infinity": 256 * _MIB},
    "MI210": {"l2": 8 * _MIB},
    "RX 7900 XTX": {"l2": 6 * _MIB, "infinity": 96 * _MIB},
    "RX 7900 XT": {"l2": 6 * _MIB, "infinity": 80 * _MIB},
    "RX 9070 XT": {"l2": 8 * _MIB, "infinity": 64 * _MIB},
}


def base(name: str) -> str:
    """The architecture in torch's or the driver's name: ``gfx942`` of ``gfx942:sramecc+:xnack-``.

    Empty where it is none.
    """
    match = _ID.fullmatch(name)
    return match[1] if match else ""


def of_version(number: int) -> str:
    """The name of the kernel driver's version: 90402 is gfx942, 110000 gfx1100; empty for 0."""
    major, minor, step = number // 10000, number // 100 % 100, number % 100
    return f"gfx{major}{minor:x}{step:x}" if 0 < major < 100 and minor < 16 and step < 16 else ""


def names(arch: str) -> tuple[str, ...]:
    """Architecture names, most specific first, with the family's in small letters."""
    known = KNOWN[arch]
    same = SAME_CODE.get(arch)
    return (arch, *((same,) if same else ()), known.family.lower())


def features(arch: str) -> frozenset[str]:
    """Abilities that an implementation may require.

    ``fp8_fnuz`` and ``fp8_ocp`` are two formats: a kernel for one is wrong with the other.
    """
    known = KNOWN[arch]
    found = {known.matrix, f"wave{known.wavefront}"}
    if known.fp8 is not None:
        found |= {"fp8", "fp8_fnuz" if known.fp8 == FNUZ else "fp8_ocp"}
    return frozenset(found)


def dtypes(arch: str) -> frozenset[str]:
    """Dtypes with native arithmetic; a format of 8 bits that is emulated is none of them."""
    found = {"float64", "float32", "float16", "bfloat16"}
    eight = KNOWN[arch].fp8
    if eight is not None:
        found |= {eight, eight.replace("e4m3fn", "e5m2").replace("e5m2uz", "e5m2fnuz")}
    return frozenset(found)


def largest(dtype: str) -> float:
    """The largest finite value of one of the two formats of 8 bits."""
    return _LARGEST[dtype]


def fp8_note(arch: str) -> str:
    """What a person should know of 8-bit floats here."""
    eight = KNOWN[arch].fp8
    if eight is None:
        return "no instruction converts to 8-bit floats: every format is emulated"
    other = OCP if eight == FNUZ else FNUZ
    return f"8-bit floats are {eight}, at most {largest(eight):.0f}; {other} is emulated"


def cache_bytes(product: str) -> dict[str, int]:
    """Caches of a product that the table knows; second level by die."""
    for name, sizes in _CACHE.items():
        if re.search(rf"\b{name}\b", product):
            return dict(sizes)
    return {}
