"""Why nothing can be used here at all: the build of torch, the driver, permissions."""

from __future__ import annotations

from typing import Final

from trivet_rocm import STATUS
from trivet_rocm.discovery.answers import Record, refused, rows, section, text
from trivet_rocm.discovery.obstacle import Absence, Obstacle

_GIVE: Final = "--device=/dev/kfd --device=/dev/dri --group-add video --group-add render"


def build_absence(record: Record) -> Absence | None:
    """Why this build of torch has no HIP; None when it has."""
    torch = section(record, "torch")
    version = text(torch, "version") or "of unknown version"
    if text(torch, "hip"):
        return None
    if text(torch, "cuda"):
        return Absence(
            Obstacle.CUDA_BUILD,
            f"torch {version} is built for CUDA {text(torch, 'cuda')}, not for ROCm: install a "
            "build for ROCm (pip install torch --index-url https://download.pytorch.org/whl/rocm6.4)",
        )
    return Absence(
        Obstacle.CPU_BUILD,
        f"torch {version} is built for the CPU alone: install a build for ROCm "
        "(pip install torch --index-url https://download.pytorch.org/whl/rocm6.4)",
    )


def nodes_absence(record: Record) -> Absence | None:
    """Why the kernel driver gives this process no GPU; None when it gives one."""
    host = section(record, "host")
    system = text(host, "system")
    if system and system != "Linux":
        return Absence(
            Obstacle.SYSTEM, f"trivet-rocm knows ROCm on Linux only, this is {system}: use WSL"
        )
    files = section(host, "device_files")
    listed = rows(section(record, "kfd"), "nodes")
    if host.get("wsl") is True and not listed:
        return Absence(
            Obstacle.WSL,
            "under WSL only rocminfo tells the GPU, and it does not answer: install ROCm for WSL, "
            "or see whether rocminfo runs",
        )
    if "/dev/kfd" not in files:
        return _no_driver(host)
    closed = sorted(name for name, usable in files.items() if usable is not True)
    inside = host.get("container") is True
    if "/dev/kfd" in closed or (closed and len(closed) == len(files) - 1):
        how = "join the groups render and video, and log in again"
        if inside:
            how = f"start the container with {_GIVE}"
        return Absence(
            Obstacle.NO_PERMISSION,
            f"this user may not open {', '.join(closed[:3])}: {how}",
        )
    gpus = [node for node in listed if "error" not in node]
    if gpus:
        return None
    if why := refused(section(record, "kfd"), "start"):
        return Absence(
            Obstacle.UNREADABLE,
            f"the driver's list of devices in /sys/class/kfd cannot be read ({why}): start the "
            "container with /sys as it is, or see dmesg",
        )
    if listed:
        return Absence(
            Obstacle.NO_PERMISSION,
            f"the driver hides all of its {len(listed)} devices from this process: start the "
            f"container with {_GIVE}",
        )
    return Absence(
        Obstacle.NO_DEVICE,
        "the driver answers, but it has no GPU for computing: see lspci and dmesg",
    )


def _no_driver(host: Record) -> Absence:
    if host.get("container") is True:
        return Absence(
            Obstacle.NO_DRIVER, f"/dev/kfd is not here: start the container with {_GIVE}"
        )
    if host.get("module") is True:
        return Absence(
            Obstacle.NO_DRIVER,
            "the kernel has amdgpu but not its part for computing, /dev/kfd is not here: install "
            "the driver of ROCm (amdgpu-dkms), or a kernel with HSA_AMD",
        )
    return Absence(
        Obstacle.NO_DRIVER,
        "no AMD driver: the kernel has not loaded amdgpu; install the driver of ROCm, modprobe "
        "amdgpu, or see dmesg for why it does not load",
    )


def driver_notes(record: Record) -> list[str]:
    """What a person should know of the driver, and of this package."""
    host, smi = section(record, "host"), section(record, "amdsmi")
    notes = [STATUS]
    version = text(smi, "driver") or text(host, "module_version")
    hip = text(section(record, "torch"), "hip")
    notes.append(f"driver amdgpu {version or 'of the kernel'}, torch for HIP {hip}")
    if why := refused(smi, "start"):
        notes.append(f"amdsmi does not answer ({why}): names and partitions are unknown")
    if host.get("wsl") is True:
        notes.append("under WSL: Windows owns the GPU and may use part of its memory")
    return notes
