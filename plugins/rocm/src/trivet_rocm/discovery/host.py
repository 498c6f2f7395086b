"""What the operating system says: files of the driver, and its list of devices in sysfs."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Final

_MODULE: Final = Path("/sys/module/amdgpu")
_NODES: Final = Path("/sys/class/kfd/kfd/topology/nodes")
_DEV: Final = Path("/dev")
_WSL_DEVICE: Final = "/dev/dxg"
_CONTAINER: Final = ("/.dockerenv", "/run/.containerenv")
_MOST: Final = 128
_WANTED: Final = (
    "simd_count", "simd_per_cu", "cpu_cores_count", "lds_size_in_kb", "wave_front_size",
    "gfx_target_version", "vendor_id", "device_id", "domain", "location_id", "drm_render_minor",
    "num_xcc", "unique_id", "hive_id", "local_mem_size", "max_waves_per_simd",
)  # fmt: skip


def host_facts(dev: Path = _DEV, module: Path = _MODULE) -> dict[str, object]:
    """The system's part of a record."""
    return {
        "system": platform.system(),
        "wsl": "microsoft" in _read(Path("/proc/version")).lower() or Path(_WSL_DEVICE).exists(),
        "container": any(Path(name).exists() for name in _CONTAINER),
        "module": module.exists(),
        "module_version": _read(module / "version").strip(),
        "device_files": {str(path): _usable(path) for path in _device_files(dev)},
    }


def kfd_facts(nodes: Path = _NODES) -> dict[str, object]:
    """The devices that the kernel driver lists, in its order; CPUs are left out.

    A node that this process may not read keeps its place, with the error.
    """
    try:
        listed = sorted((p for p in nodes.iterdir() if p.name.isdigit()), key=lambda p: int(p.name))
    except OSError as error:
        return {"start": {"error": type(error).__name__}, "nodes": []}
    found: list[dict[str, object]] = []
    for path in listed[:_MOST]:
        try:
            node = _properties((path / "properties").read_text(encoding="ascii"))
        except (OSError, ValueError) as error:
            found.append({"node": int(path.name), "error": type(error).__name__})
            continue
        if not node.get("simd_count"):
            if not node:  # of a device that the container's rules hide, the file is empty
                found.append({"node": int(path.name), "error": "Empty"})
            continue
        kept: dict[str, object] = {name: node[name] for name in _WANTED if name in node}
        kept |= {
            "node": int(path.name),
            "memory_bytes": _memory(path) or node.get("local_mem_size"),
        }
        found.append(kept | {"links": _links(path), "caches": _caches(path)})
    return {"start": None, "nodes": found}


def _properties(text: str) -> dict[str, int]:
    """Lines of a name and a number."""
    pairs = (line.split() for line in text.splitlines())
    return {p[0]: int(p[1]) for p in pairs if len(p) == 2 and p[1].isdigit()}


def _each(folder: Path) -> list[dict[str, int]]:
    found = []
    try:
        members = sorted(
            (p for p in folder.iterdir() if p.name.isdigit()), key=lambda p: int(p.name)
        )
    except OSError:
        return []
    for path in members:
        try:
            found.append(_properties((path / "properties").read_text(encoding="ascii")))
        except (OSError, ValueError):
            continue
    return found


def _memory(node: Path) -> int:
    """Bytes of the device's own memory: heaps of kinds 1 and 2."""
    return sum(
        bank.get("size_in_bytes", 0)
        for bank in _each(node / "mem_banks")
        if bank.get("heap_type") in {1, 2}
    )


def _links(node: Path) -> list[dict[str, int]]:
    """To which node, of which kind (2 is PCIe, 11 xGMI), and how fast."""
    wanted = ("type", "node_to", "weight", "max_bandwidth")
    return [{n: link[n] for n in wanted if n in link} for link in _each(node / "io_links")]


def _caches(node: Path) -> dict[str, int]:
    """Bytes of one cache of each level; the driver counts KiB."""
    found: dict[str, int] = {}
    for cache in _each(node / "caches"):
        level, size = cache.get("level", 0), cache.get("size", 0)
        if level > 1 and size:
            found[f"l{level}"] = max(found.get(f"l{level}", 0), size << 10)
    return found


def _device_files(dev: Path) -> list[Path]:
    """The driver's files: one for computing, one for the memory of each GPU."""
    found = [dev / "kfd"] if (dev / "kfd").exists() else []
    try:
        return found + sorted(p for p in (dev / "dri").iterdir() if p.name.startswith("renderD"))
    except OSError:
        return found


def _usable(path: Path) -> bool:
    return os.access(path, os.R_OK | os.W_OK)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
