"""What the operating system says: kind of machine, and files of the driver."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Final

_RELEASE: Final = "/etc/nv_tegra_release"
_MODEL: Final = "/proc/device-tree/model"
_WSL_DEVICE: Final = "/dev/dxg"


def host_facts() -> dict[str, object]:
    """The system's part of a record."""
    return {
        "system": platform.system(),
        "wsl": "microsoft" in _read("/proc/version").lower() or Path(_WSL_DEVICE).exists(),
        "tegra_release": _read(_RELEASE).partition("\n")[0],
        "model": _read(_MODEL).strip("\0\n "),
        "memory_bytes": _memory(),
        "device_files": {str(path): _usable(path) for path in _device_files()},
    }


def _device_files() -> list[Path]:
    """The driver's files for this process: control, memory, and one a GPU."""
    names = ["/dev/nvidiactl", "/dev/nvidia-uvm"]
    found = [path for path in map(Path, names) if path.exists()]
    try:
        gpus = [p for p in Path("/dev").iterdir() if p.name[6:].isdigit()]
    except OSError:
        return found
    return found + sorted(p for p in gpus if p.name.startswith("nvidia"))


def _usable(path: Path) -> bool:
    return os.access(path, os.R_OK | os.W_OK)


def _memory() -> int | None:
    """Bytes of the machine's own memory, which a Jetson's GPU shares."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # the last on Windows
        return None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
