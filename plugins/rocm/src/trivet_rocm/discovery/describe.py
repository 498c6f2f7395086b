"""Describes one visible device from the answers about it; unknown facts are None."""

from __future__ import annotations

from typing import Final

from trivet.contracts import DeviceInfo
from trivet_rocm.discovery import architecture
from trivet_rocm.discovery.answers import NOTHING, Record, amount, number, rows, section, text
from trivet_rocm.discovery.obstacle import Absence, Obstacle

_XGMI: Final = 11
_WHOLE: Final = "SPX"
_DIES: Final = {"DPX": 2, "TPX": 3, "QPX": 4, "CPX": None}


def of_agent(agent: Record) -> Record:
    """A node as the kernel driver would list it, of an agent that ``rocminfo`` lists."""
    arch = architecture.base(text(agent, "arch"))
    known = architecture.KNOWN.get(arch)
    return {
        "arch": arch or text(agent, "arch"),
        "name": text(agent, "name"),
        "simd_count": number(agent, "units") * 2,
        "simd_per_cu": 2,
        "wave_front_size": known.wavefront if known else 0,
        "memory_bytes": number(agent, "memory_bytes"),
    }


def arch_of(record: Record, node: Record) -> str:
    """The architecture that HIP takes a node for; empty where nothing tells it."""
    return _overridden(record) or text(node, "arch") or _own(node)


def absence(record: Record, node: Record, index: int) -> Absence | None:
    """Why this device cannot be used; None when it can."""
    arch, smi = arch_of(record, node), _smi(record, node)
    who = f"cuda:{index} ({text(smi, 'name') or text(node, 'name') or arch or 'a GPU'})"
    minor = number(node, "drm_render_minor")
    files = section(section(record, "host"), "device_files")
    if minor and files.get(f"/dev/dri/renderD{minor}") is not True:
        return Absence(
            Obstacle.NO_PERMISSION,
            f"{who} is closed to this user: join the group that owns /dev/dri/renderD{minor}, or "
            "give the container that file",
        )
    if not arch:
        return Absence(
            Obstacle.UNREADABLE,
            f"the driver does not tell the architecture of {who}: update the driver",
        )
    if arch not in architecture.KNOWN:
        return Absence(
            Obstacle.UNSUPPORTED,
            f"{who} is {arch}, for which trivet-rocm has no kernels: it has "
            f"{', '.join(architecture.KNOWN)}",
        )
    flags = section(record, "torch").get("arch_flags")
    built = [f for f in flags if isinstance(f, str)] if isinstance(flags, list) else []
    if built and arch not in map(architecture.base, built):
        return Absence(
            Obstacle.NOT_IN_TORCH,
            f"{who} is {arch}, for which this torch has no code (it has {', '.join(built)}): "
            "install a newer build for ROCm",
        )
    return None


def describe(record: Record, node: Record, index: int, notes: list[str]) -> DeviceInfo:
    """The device; ``absence`` must have found nothing."""
    arch, smi = arch_of(record, node), _smi(record, node)
    name = text(smi, "name") or text(node, "name")
    features = architecture.features(arch)
    peers = sum(1 for link in rows(node, "links") if link.get("type") == _XGMI)
    if peers:
        features |= {"xgmi"}
    modes = _modes(smi)
    if modes:
        features |= {"partition"}
    simds = number(node, "simd_per_cu")
    known = architecture.KNOWN[arch]
    return DeviceInfo(
        kind="rocm",
        index=index,
        torch_type="cuda",  # torch's build for HIP calls its devices so
        name=name,
        arch=architecture.names(arch),
        features=features,
        dtypes=architecture.dtypes(arch),
        cores=number(node, "simd_count") // simds or None if simds else None,
        subgroup_width=amount(node, "wave_front_size") or known.wavefront,
        shared_bytes=(amount(node, "lds_size_in_kb") or known.lds_kib) << 10,
        cache_bytes=_caches(node) or ({} if modes else architecture.cache_bytes(name)),
        memory_bytes=amount(node, "memory_bytes"),
        notes=(*_notes(record, node, smi, arch, peers), *modes, *notes),
    )


def _notes(record: Record, node: Record, smi: Record, arch: str, peers: int) -> list[str]:
    notes = [architecture.fp8_note(arch)]
    if peers:
        notes.append(f"xGMI to {peers} other GPUs")
    if number(smi, "uncorrectable"):
        notes.append(f"{number(smi, 'uncorrectable')} uncorrectable errors of memory: see amd-smi")
    if _overridden(record) not in {"", _own(node)}:
        notes.append(f"HSA_OVERRIDE_GFX_VERSION has it taken for {arch}; it is {_own(node)}")
    return notes


def _modes(smi: Record) -> tuple[str, ...]:
    """What the partition of a divided device is; empty for a whole one."""
    mode, memory = text(smi, "compute_partition"), text(smi, "memory_partition")
    if not mode or mode == _WHOLE:
        return ()
    of = _DIES.get(mode)
    part = f"one of {of} parts" if of else "one die"
    where = f", memory {memory}" if memory else ""
    return (f"partition {number(smi, 'partition')} in mode {mode}: {part} of the device{where}",)


def _own(node: Record) -> str:
    return architecture.of_version(number(node, "gfx_target_version"))


def _overridden(record: Record) -> str:
    """The architecture that ``HSA_OVERRIDE_GFX_VERSION`` asks for, such as 11.0.0."""
    parts = text(section(record, "environment"), "HSA_OVERRIDE_GFX_VERSION").split(".")
    if len(parts) != 3 or not all(p.isdecimal() and len(p) < 3 for p in parts):
        return ""
    major, minor, step = map(int, parts)
    return architecture.of_version(major * 10000 + minor * 100 + step)


def _caches(node: Record) -> dict[str, int]:
    told = section(node, "caches")
    found = {n: amount(told, n) for n in ("l2", "l3")}
    names = {"l2": "l2", "l3": "infinity"}
    return {names[n]: size for n, size in found.items() if size}


def _smi(record: Record, node: Record) -> Record:
    """Amdsmi's answers about a node: of its bus address, and of its partition where several are."""
    place, domain = number(node, "location_id"), number(node, "domain")
    bus = f"{domain:04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}"
    same = [
        one
        for one in rows(section(record, "amdsmi"), "devices")
        if text(one, "bus").lower().rpartition(".")[0] == bus
    ]
    part = place >> 28
    return next((one for one in same if number(one, "partition") == part), (*same, NOTHING)[0])
