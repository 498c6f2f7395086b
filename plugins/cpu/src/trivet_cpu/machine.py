"""What this machine is: read from the operating system, None where it does not say."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path
from typing import Final

from trivet.contracts import DeviceInfo
from trivet_cpu.kernel_library import library
from trivet_cpu.memory.pages import note

_NAMED: Final = (
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512dq",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "avx_vnni",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "asimd",  # and below: arm64
    "asimddp",
    "bf16",
    "i8mm",
    "sve",
    "sve2",
)
_V3: Final = frozenset({"avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"})
_V4: Final = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@cache
def this_machine() -> DeviceInfo:
    """The one CPU device."""
    fields = _cpuinfo()
    flags = frozenset((fields.get("flags") or fields.get("Features") or "").split())
    arch = _architectures(flags)
    return DeviceInfo(
        kind="cpu",
        name=fields.get("model name") or platform.processor() or platform.machine(),
        arch=arch,
        features=flags & frozenset(_NAMED),
        dtypes=frozenset({"float32", "float64"} | ({"bfloat16"} if "amx_bf16" in flags else set())),
        cores=_cores(),
        subgroup_width={"x86-64-v4": 16, "x86-64-v3": 8}.get(arch[0], 4),
        cache_bytes=_caches(),
        memory_bytes=_memory(),
        notes=(library().note, note()),
    )


def _cpuinfo() -> dict[str, str]:
    """The first processor's fields of ``/proc/cpuinfo``."""
    fields: dict[str, str] = {}
    for line in _read("/proc/cpuinfo").splitlines():
        key, colon, value = line.partition(":")
        if not colon and fields:
            break
        fields.setdefault(key.strip(), value.strip())
    return fields


def _architectures(flags: frozenset[str]) -> tuple[str, ...]:
    """Names of the architecture, most specific first."""
    machine = platform.machine()
    if machine not in {"x86_64", "AMD64"}:
        return (machine,)
    wide = (("x86-64-v4", _V4), ("x86-64-v3", _V3))
    return (*(name for name, need in wide if need <= flags), "x86-64")


def _cores() -> int | None:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _caches() -> dict[str, int]:
    """Bytes of each data cache that the first processor sees."""
    found = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        kind, level = _read(folder / "type").strip(), _read(folder / "level").strip()
        size = _read(folder / "size").strip()
        if kind in {"Data", "Unified"} and size:
            name = f"l{level}d" if kind == "Data" else f"l{level}"
            digits, unit = (size[:-1], _UNITS[size[-1]]) if size[-1] in _UNITS else (size, 1)
            found[name] = int(digits) * unit
    return found


def _memory() -> int | None:
    """Bytes of memory: the machine's, or less where a control group allows less."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    return min(total, int(limit)) if limit.isdigit() else total


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
