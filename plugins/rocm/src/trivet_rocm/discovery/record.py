"""Writes down what torch, the environment, the system and amdsmi answer, as plain JSON values.

HIP is not started: that would take memory of the device, and no child of a fork could use it. The
kernel driver's own list of devices in sysfs is what HIP counts by, so that it decides; amdsmi adds
names, modes and memory errors where it is installed.
"""

from __future__ import annotations

import mmap
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import torch

from trivet_rocm.discovery.host import host_facts, kfd_facts

VARIABLES: Final = (
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "HSA_OVERRIDE_GFX_VERSION",
)
"""The variables that decide which GPU is which, and what it is taken for."""

_MOST: Final = 64
"""GPUs that are looked at; a damaged count may be any."""
_LIBRARY: Final = Path(torch.__file__).with_name("lib") / "libtorch_python.so"
_LONGEST: Final = 400
_SECONDS: Final = 20
_ROCMINFO: Final = ("rocminfo", "/opt/rocm/bin/rocminfo")

# fact -> function of amdsmi, the key of its mapping
_FACTS: Final[Mapping[str, tuple[str, str]]] = {
    "name": ("amdsmi_get_gpu_asic_info", "market_name"),
    "arch": ("amdsmi_get_gpu_asic_info", "target_graphics_version"),
    "units": ("amdsmi_get_gpu_asic_info", "num_compute_units"),
    "bus": ("amdsmi_get_gpu_device_bdf", ""),
    "partition": ("amdsmi_get_gpu_kfd_info", "current_partition_id"),
    "compute_partition": ("amdsmi_get_gpu_compute_partition", ""),
    "memory_partition": ("amdsmi_get_gpu_memory_partition", ""),
    "uncorrectable": ("amdsmi_get_gpu_total_ecc_count", "uncorrectable_count"),
}


def gather(environ: Mapping[str, str] = os.environ) -> dict[str, object]:
    """The record of this machine."""
    host = host_facts()
    found: dict[str, object] = {
        "torch": torch_facts(),
        "environment": {name: environ.get(name) for name in VARIABLES},
        "host": host,
        "kfd": kfd_facts(),
        "amdsmi": amdsmi_facts(lambda: import_module("amdsmi")),
    }
    if host["wsl"]:  # neither sysfs nor amdsmi knows the GPU of Windows
        found["rocminfo"] = rocminfo_facts()
    return found


def torch_facts() -> dict[str, object]:
    """How torch was built."""
    return {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "arch_flags": arch_flags(_LIBRARY) if torch.version.hip else [],
    }


@cache
def arch_flags(library: Path) -> list[str]:
    """The architectures that torch has code for; [] if unknown.

    They lie in its library as one text. torch's function that tells them starts HIP.
    """
    try:
        with (
            library.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            at = -1
            while (at := content.find(b"\0gfx", at + 1)) >= 0:
                text = content[at + 1 : at + _LONGEST].partition(b"\0")[0]
                if re.fullmatch(rb"(?:gfx[0-9a-f]+(?:[ ;]|$))+", text):
                    return re.split(r"[ ;]", text.decode("ascii").strip(" ;"))
    except (OSError, ValueError):  # another system's name for it, or an empty file
        return []
    return []


def amdsmi_facts(binding: Callable[[], Any]) -> dict[str, object]:
    """Amdsmi's part of a record.

    Args:
        binding: gives the module ``amdsmi``, or what stands in for it.
    """
    try:
        smi = binding()
    except (ImportError, OSError, KeyError) as error:  # it loads its library while imported
        return {"start": {"error": type(error).__name__}, "devices": []}
    started = _ask(smi, "amdsmi_init")
    if isinstance(started, dict) and "error" in started:
        return {"start": started, "devices": []}
    try:
        handles = _ask(smi, "amdsmi_get_processor_handles", plain=False)
        listed = handles[:_MOST] if isinstance(handles, list) else []
        return {
            "start": None,
            "driver": _ask(smi, "amdsmi_get_gpu_driver_info", *listed[:1], key="driver_version")
            if listed
            else None,
            "devices": [
                {name: _ask(smi, what, one, key=key) for name, (what, key) in _FACTS.items()}
                for one in listed
            ],
        }
    finally:
        _ask(smi, "amdsmi_shut_down")


def _ask(smi: Any, what: str, *given: object, key: str = "", plain: bool = True) -> Any:
    """One answer, a plain value; an error by the name of its exception."""
    function = getattr(smi, what, None)
    if function is None:
        return {"error": "NoSuchFunction"}
    try:
        found = function(*given)
    except Exception as error:  # noqa: BLE001 - a foreign library's own tree of exceptions
        code = getattr(error, "err_code", None)
        return {"error": f"{type(error).__name__}" + ("" if code is None else f" {code}")}
    if key:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if not plain or isinstance(found, str | int | None) else {"error": "Damaged"}


def rocminfo_facts(commands: tuple[str, ...] = _ROCMINFO) -> dict[str, object]:
    """The GPUs that ``rocminfo`` lists; the run time starts in its process, not in this one."""
    for command in commands:
        try:
            done = subprocess.run(  # noqa: S603 - a fixed command of ROCm
                [command], capture_output=True, text=True, check=False, timeout=_SECONDS
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return {"start": None, "agents": agents(done.stdout)}
    return {"start": {"error": "NotFound"}, "agents": []}


def agents(text: str) -> list[dict[str, object]]:
    """The GPUs in the text of ``rocminfo``, in its order, which is HIP's."""
    found = []
    for part in re.split(r"(?m)^Agent \d+\s*$", text)[1:]:
        if not re.search(r"(?m)^\s*Device Type:\s+GPU\s*$", part):
            continue
        size = re.search(r"(?s)Segment:\s+GLOBAL.*?Size:\s+(\d+)", part)
        found.append(
            {
                "arch": _field(part, "Name"),
                "name": _field(part, "Marketing Name"),
                "units": int(_field(part, "Compute Unit") or 0),
                "memory_bytes": int(size[1]) << 10 if size else 0,
            }
        )
    return found


def _field(part: str, name: str) -> str:
    match = re.search(rf"(?m)^\s*{name}:\s+(\S.*?)\s*$", part)
    return match[1] if match else ""
