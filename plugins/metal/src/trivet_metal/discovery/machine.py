"""A device or a reason from one record; the machine of this process is asked once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Final, TypeAlias

from trivet.contracts import DeviceInfo
from trivet_metal import families
from trivet_metal.status import STATUS

Record: TypeAlias = Mapping[str, Any]

KIND: Final = "metal"
OLDEST_MACOS: Final = 13
BFLOAT16_MACOS: Final = 14
BFLOAT16: Final = "bfloat16"
_NO_RECORD: Final[Record] = {}


class Obstacle(StrEnum):
    """Kinds of reasons, in the order in which they are looked for."""

    NOT_MACOS = "not_macos"
    TRANSLATED = "translated"
    NOT_APPLE_SILICON = "not_apple_silicon"
    MACOS_TOO_OLD = "macos_too_old"
    NO_MPS_BUILD = "no_mps_build"
    NO_COMPILE_SHADER = "no_compile_shader"
    NO_GPU = "no_gpu"


@dataclass(frozen=True)
class Finding:
    """What was found.

    Args:
        device: the GPU, or None.
        obstacle: the kind of reason for which there is none.
        reason: the sentence that belongs to it: what is wrong, and what to do.
    """

    device: DeviceInfo | None = None
    obstacle: Obstacle | None = None
    reason: str = ""


@cache
def this_machine() -> Finding:
    """What is found here."""
    from trivet_metal.discovery.record import gather

    return judge(gather())


def judge(record: object) -> Finding:
    """What a record means; what is missing or damaged in it counts as unknown."""
    known: Record = record if isinstance(record, Mapping) else _NO_RECORD
    for obstacle, reason in _obstacles(known):
        return Finding(obstacle=obstacle, reason=reason)
    return Finding(device=_device(known))


def section(record: Record, key: str) -> Record:
    """A mapping inside a record; an empty one when it is not there."""
    found = record.get(key)
    return found if isinstance(found, Mapping) else _NO_RECORD


def macos_of(record: Record) -> int | None:
    """The first number of the version of macOS, or None."""
    found = re.match(r"\d+", str(record.get("macos") or ""))
    return int(found[0]) if found else None


def _obstacles(record: Record) -> list[tuple[Obstacle, str]]:
    """Every reason that speaks against this machine, the first to be told first."""
    system = str(record.get("system") or "an unknown system")
    if system != "Darwin":
        return [(Obstacle.NOT_MACOS, f"this is {system}; Metal is a part of macOS")]
    found = []
    torch, macos = section(record, "torch"), macos_of(record)
    if str(section(record, "sysctl").get("sysctl.proc_translated")) == "1":
        what = "this Python is for Intel and is translated: install one for arm64"
        found.append((Obstacle.TRANSLATED, what))
    if record.get("machine") != "arm64":
        what = "this Mac has an Intel processor; the kernels are for Apple silicon (M1 and newer)"
        found.append((Obstacle.NOT_APPLE_SILICON, what))
    if macos is not None and macos < OLDEST_MACOS:
        what = f"macOS {record.get('macos')} is too old: macOS {OLDEST_MACOS} is the oldest"
        found.append((Obstacle.MACOS_TOO_OLD, f"{what}, bfloat16 needs {BFLOAT16_MACOS}"))
    version = torch.get("version") or "?"
    if not torch.get("built"):
        what = f"torch {version} was built without MPS: install the build for macOS on arm64"
        found.append((Obstacle.NO_MPS_BUILD, what))
    elif not torch.get("compile_shader"):
        what = f"torch {version} has no torch.mps.compile_shader: install torch 2.10 or newer"
        found.append((Obstacle.NO_COMPILE_SHADER, what))
    elif not torch.get("available"):
        what = "torch finds no Metal device, as in some virtual machines: see system_profiler"
        found.append((Obstacle.NO_GPU, f"{what} SPDisplaysDataType"))
    return found


def _device(record: Record) -> DeviceInfo:
    sysctl = section(record, "sysctl")
    chip = str(sysctl.get("machdep.cpu.brand_string") or "Apple silicon")
    family = families.family_of(chip)
    known = family if family is not None else families.OLDEST
    limits = families.limits(known)
    bfloat16 = (macos_of(record) or 0) >= BFLOAT16_MACOS
    memory = str(sysctl.get("hw.memsize") or "")
    return DeviceInfo(
        kind=KIND,
        torch_type="mps",
        name=chip,
        arch=families.architectures(known),
        features=frozenset({"unified_memory", *([BFLOAT16] if bfloat16 else [])}),
        dtypes=frozenset({"float32", "float16", *([BFLOAT16] if bfloat16 else [])}),
        subgroup_width=limits.simd_width,
        shared_bytes=limits.threadgroup_bytes,
        memory_bytes=int(memory) if memory.isdecimal() and int(memory) else None,
        notes=tuple(_notes(record, chip, family, bfloat16=bfloat16)),
    )


def _notes(record: Record, chip: str, family: int | None, *, bfloat16: bool) -> list[str]:
    """What a person should know."""
    notes = [f"the kernels were {STATUS}: trivet-metal verify-on-hardware does that here"]
    notes += ["one memory for processor and GPU: what lies on the host takes from the same"]
    if family is None:
        oldest = families.architectures(families.OLDEST)[0]
        notes.append(f"{chip} is not in the table of chips: it is taken for {oldest}")
    if not bfloat16:
        has = record.get("macos") or "of an unknown version"
        notes.append(f"no bfloat16: macOS {has}, it needs {BFLOAT16_MACOS}")
    wired = section(record, "sysctl").get("iogpu.wired_limit_mb")
    if wired and str(wired) != "0":
        notes.append(f"iogpu.wired_limit_mb is {wired}: the GPU may have so much of the memory")
    environment = section(record, "environment")
    if environment.get("PYTORCH_ENABLE_MPS_FALLBACK") == "1":
        notes.append("PYTORCH_ENABLE_MPS_FALLBACK=1: what torch has not on the GPU runs elsewhere")
    if ratio := environment.get("PYTORCH_MPS_HIGH_WATERMARK_RATIO"):
        notes.append(f"PYTORCH_MPS_HIGH_WATERMARK_RATIO={ratio}: torch's own limit is changed")
    return notes
