"""A built library in this process: what the runtime exports, and its structures."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

from trivet_metal_emulator.dwarf import LineTable
from trivet_metal_emulator.errors import CompileError, EmulatorError

__all__ = ["RawFinding", "RawInterval", "RawRegion", "RawStats", "Runtime"]

U32, U64, I64 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int64
_SITE = 0x80000000


class RawFinding(ctypes.Structure):
    """`Finding` of checker.cpp."""

    _fields_ = (
        *((name, U32) for name in ("kind", "access", "size", "count")),
        ("group", U32 * 3),
        *(
            (name, U32)
            for name in ("thread", "other_thread", "other_group", "place", "other_place")
        ),
        ("region", ctypes.c_int32),
        ("unused", U32),
        ("offset", I64),
        ("extent", I64),
    )


class RawInterval(ctypes.Structure):
    """`Interval` of checker.cpp."""

    _fields_ = (("begin", U64), ("end", U64))


class RawRegion(ctypes.Structure):
    """`Region` of checker.cpp."""

    _fields_ = (
        ("begin", ctypes.c_void_p),
        ("size", U64),
        ("valid", ctypes.POINTER(RawInterval)),
        ("valid_count", U32),
        ("granule", U32),
        ("read", U64),
        ("written", U64),
        ("covered", U64),
        ("changed", U32),
        ("unused", U32),
    )


class RawStats(ctypes.Structure):
    """`Stats` of checker.cpp."""

    _fields_ = tuple(
        (name, U64)
        for name in (
            "barriers", "exchanges", "divergent", "threadgroup_bytes", "threadgroup_read",
            "threadgroup_written",
        )
    )  # fmt: skip


class RawVariable(ctypes.Structure):
    """`Variable` of checker.cpp."""

    _fields_ = (("key", ctypes.c_void_p), ("name", ctypes.c_char_p), ("offset", U64), ("size", U64))


class RawSite(ctypes.Structure):
    """`Site` of core.h."""

    _fields_ = (("file", ctypes.c_char_p), ("line", U32), ("column", U32))


@functools.cache
def _math() -> ctypes.CDLL:
    """The C library's mathematics, where kernels find it: they are linked to nothing."""
    for name in ("libm.so.6", "libc.so"):
        try:
            return ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
    raise EmulatorError("this system has no libm.so.6")


class Runtime:
    """One loaded library."""

    def __init__(self, path: Path) -> None:
        _math()
        self.path = path
        try:
            self.library = ctypes.CDLL(str(path))
        except OSError as error:
            missing = str(error).partition("undefined symbol: ")[2]
            if missing and "trivet_msl" not in missing and not missing.startswith("__"):
                raise CompileError(
                    f"{missing} is declared and used, and nothing defines it"
                ) from error
            raise EmulatorError(
                f"{path} cannot be loaded: {error}", fix=f"empty {path.parent}"
            ) from error
        lib = self.library
        lib.trivet_msl_dispatch.argtypes = [
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, U32,
        ]  # fmt: skip
        lib.trivet_msl_regions.argtypes = [ctypes.c_void_p, U32]
        lib.trivet_msl_limits.argtypes = [U64, U64]
        lib.trivet_msl_seen.argtypes = [U32]
        lib.trivet_msl_seen.restype = ctypes.POINTER(RawRegion)
        lib.trivet_msl_stats.restype = ctypes.POINTER(RawStats)
        lib.trivet_msl_site.argtypes = [U32]
        lib.trivet_msl_site.restype = ctypes.POINTER(RawSite)
        lib.trivet_msl_findings.argtypes = [ctypes.POINTER(ctypes.POINTER(RawFinding))]
        lib.trivet_msl_variables.argtypes = [ctypes.POINTER(ctypes.POINTER(RawVariable))]

    def kernel(self, number: int) -> ctypes.c_void_p:
        """The address of a kernel's wrapper."""
        return ctypes.cast(getattr(self.library, f"trivet_kernel_{number}"), ctypes.c_void_p)

    def stats(self) -> RawStats:
        """Counters of the last dispatch."""
        stats: RawStats = self.library.trivet_msl_stats().contents
        return stats

    def region(self, number: int) -> RawRegion:
        """A region after the dispatch."""
        region: RawRegion = self.library.trivet_msl_seen(number).contents
        return region

    def findings(self) -> list[RawFinding]:
        """Findings of the last dispatch, in order."""
        array = ctypes.POINTER(RawFinding)()
        count = self.library.trivet_msl_findings(ctypes.byref(array))
        return array[:count]

    def variable(self, number: int) -> tuple[str, int]:
        """Name and size of a variable in threadgroup memory."""
        array = ctypes.POINTER(RawVariable)()
        count = self.library.trivet_msl_variables(ctypes.byref(array))
        if not 0 <= number < count:
            return "threadgroup memory", 0
        return array[number].name.decode(), array[number].size

    def sites(self) -> list[tuple[str, int]]:
        """Places of the source that the last dispatch named itself."""
        return [self._site(i) for i in range(self.library.trivet_msl_site_count())]

    def _site(self, number: int) -> tuple[str, int]:
        site = self.library.trivet_msl_site(number).contents
        return (site.file or b"").decode("utf-8", "replace"), site.line

    @functools.cached_property
    def _lines(self) -> LineTable:
        return LineTable.read(self.path)

    def place(self, place: int) -> tuple[str, int]:
        """File and line of a place that the checker recorded."""
        if place & _SITE:
            return self._site(place & ~_SITE)
        return self._lines.place(place) or ("", 0)
