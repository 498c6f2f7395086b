"""Whether this torch, this driver and NVML fit together at all, before any GPU is looked at."""

from __future__ import annotations

from typing import Final

from trivet_cuda.discovery.answers import Record, count, error, section, text
from trivet_cuda.discovery.jetson import is_jetson
from trivet_cuda.discovery.obstacle import Absence, Obstacle

_CUDA_INDEX: Final = "pytorch.org/get-started has the command"


def build_absence(record: Record) -> Absence | None:
    """Why this build of torch reaches no NVIDIA GPU; None when it does."""
    torch = section(record, "torch")
    version = text(torch, "version") or "of unknown version"
    if hip := text(torch, "hip"):
        return Absence(
            Obstacle.HIP_BUILD,
            f"this torch ({version}) is built for HIP {hip}, so that its devices are AMD's: "
            f"install a build for CUDA ({_CUDA_INDEX})",
        )
    if not text(torch, "cuda"):
        return Absence(
            Obstacle.CPU_BUILD,
            f"this torch ({version}) is built without CUDA: install a build for CUDA "
            f"({_CUDA_INDEX})",
        )
    return None


def start_absence(record: Record) -> Absence | None:
    """Why NVML cannot be asked; None when it could."""
    nvml = section(record, "nvml")
    if nvml and "start" in nvml and nvml["start"] is None:
        return None
    name = error(nvml, "start") or "its answers are damaged"
    kind, reason = _START.get(name, (Obstacle.NVML_FAILED, ""))
    host = section(record, "host")
    files = section(host, "device_files")
    if kind is Obstacle.NO_DRIVER:
        reason = _no_driver(host, files)
    closed = [path for path in sorted(map(str, files)) if files.get(path) is False]
    if name in {"NoPermission", "Unknown"} and closed:
        kind = Obstacle.NO_PERMISSION
        reason = (
            f"this user may not open {', '.join(closed[:3])}: join the group that owns "
            "them, or have the driver's files opened for this user"
        )
    return Absence(kind, reason or f"NVML does not start ({name}): see what nvidia-smi says")


_START: Final = {
    "NoBinding": (
        Obstacle.NO_BINDING,
        (
            "the Python package nvidia-ml-py, which asks the driver, is not installed: "
            "pip install nvidia-ml-py"
        ),
    ),
    "LibraryNotFound": (Obstacle.NO_DRIVER, ""),
    "DriverNotLoaded": (
        Obstacle.NOT_LOADED,
        (
            "the NVIDIA driver is installed but not loaded into the kernel: modprobe nvidia, or "
            "see dmesg for why it does not load"
        ),
    ),
    "LibRmVersionMismatch": (
        Obstacle.MISMATCH,
        (
            "the NVIDIA driver in the kernel and its libraries are of different versions, as after "
            "an update: restart the machine, or the container on its new driver"
        ),
    ),
    "Unknown": (
        Obstacle.NVML_FAILED,
        (
            "NVML does not start and does not say why; containers that lost their right to the "
            "GPUs say so: start the container again, or see dmesg"
        ),
    ),
    "NoPermission": (
        Obstacle.NO_PERMISSION,
        "the NVIDIA driver refuses this user: see who may open /dev/nvidiactl and /dev/nvidia0",
    ),
}


def _no_driver(host: Record, files: Record) -> str:
    what = "no NVIDIA driver: its library libnvidia-ml.so.1 is not found"
    if host.get("wsl") is True:
        return f"{what}; under WSL it comes from the driver of Windows, in /usr/lib/wsl/lib"
    if files:
        return (
            f"{what}, though its device files are here: start the container with the libraries, "
            "too (--gpus all, NVIDIA_DRIVER_CAPABILITIES=compute,utility)"
        )
    return f"{what}; install the driver, or start the container with its GPUs (--gpus all)"


def version_absence(record: Record) -> Absence | None:
    """Why this driver cannot run this torch; None when it can, or does not say."""
    nvml = section(record, "nvml")
    if error(nvml, "cuda_driver") == "LibraryNotFound":
        return Absence(
            Obstacle.NO_LIBCUDA,
            "the driver answers, but its library libcuda.so.1 is not found: start the container "
            "with NVIDIA_DRIVER_CAPABILITIES=compute,utility, or install the rest of the driver",
        )
    built, driver = cuda_versions(record)
    if built is None or driver is None or driver[0] >= built[0]:
        return None
    return Absence(
        Obstacle.DRIVER_TOO_OLD,
        f"driver {text(nvml, 'driver') or 'of unknown version'} runs CUDA up to "
        f"{driver[0]}.{driver[1]}, this torch is built with {built[0]}.{built[1]}: update the "
        f"driver, or install torch for CUDA {driver[0]}",
    )


def cuda_versions(record: Record) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    """Versions of CUDA: which torch was built with, and up to which the driver goes."""
    major, _, minor = text(section(record, "torch"), "cuda").partition(".")
    minor = minor.partition(".")[0]
    known = all(part.isascii() and part.isdigit() and len(part) < 5 for part in (major, minor))
    number = count(section(record, "nvml"), "cuda_driver")
    driver = None if not number else (number // 1000, number % 1000 // 10)
    return (int(major), int(minor)) if known else None, driver


def driver_notes(record: Record) -> list[str]:
    """What a person should know of the driver."""
    nvml = section(record, "nvml")
    built, driver = cuda_versions(record)
    notes = []
    if name := text(nvml, "driver"):
        reach = f", CUDA up to {driver[0]}.{driver[1]}" if driver else ""
        notes.append(f"driver {name}{reach}")
    if built and driver and driver < built:
        notes.append(
            f"torch is built with CUDA {built[0]}.{built[1]}, newer than the driver: its own "
            "kernels run, code that the driver must compile does not"
        )
    if is_jetson(record):
        notes.append("a Jetson: the GPU shares the machine's memory")
        if error(nvml, "start"):
            notes.append("the driver has no NVML, so that its version was not checked")
    if section(record, "host").get("wsl") is True:
        notes.append("under WSL: Windows owns the GPU and may use part of its memory")
    return notes
