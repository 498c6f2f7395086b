"""Writes down what torch, the environment, the system and NVML answer, as plain JSON values.

NVML is started and shut down inside one call; no handle and no thread outlives it, so that a
process may fork afterwards. CUDA is not started: that would cost hundreds of megabytes of the
device and forbid the fork.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Callable, Mapping
from ctypes import Structure, byref
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import torch

from trivet_cuda.discovery.host import host_facts

VARIABLES: Final = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
"""The variables of CUDA that decide which GPU is which."""

_MOST: Final = 64  # GPUs, and slices of one: torch looks at no more, a damaged count may be any
_LINKS: Final = 36  # more than any GPU has; NVML refuses the first number that does not exist
_SPEED_FIELD: Final = "NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON"

# fact -> functions of NVML, the first that exists is asked; the field of a structure
_FACTS: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "name": (("nvmlDeviceGetName",), ""),
    "uuid": (("nvmlDeviceGetUUID",), ""),
    "capability": (("nvmlDeviceGetCudaComputeCapability",), ""),
    "memory_bytes": (("nvmlDeviceGetMemoryInfo",), "total"),
    "cuda_cores": (("nvmlDeviceGetNumGpuCores",), ""),
    "compute_mode": (("nvmlDeviceGetComputeMode",), ""),
    "mig_mode": (("nvmlDeviceGetMigMode",), ""),
    "ecc": (("nvmlDeviceGetEccMode",), ""),
    "pcie_generation": (("nvmlDeviceGetMaxPcieLinkGeneration",), ""),
    "pcie_width": (("nvmlDeviceGetCurrPcieLinkWidth",), ""),
    "pcie_width_most": (("nvmlDeviceGetMaxPcieLinkWidth",), ""),
    "clock_reasons": (
        ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
        "",
    ),
}
_MIG_FACTS: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "name": (("nvmlDeviceGetName",), ""),
    "uuid": (("nvmlDeviceGetUUID",), ""),
    "memory_bytes": (("nvmlDeviceGetMemoryInfo",), "total"),
    "multiprocessors": (
        ("nvmlDeviceGetAttributes_v2", "nvmlDeviceGetAttributes"),
        "multiprocessorCount",
    ),
    "gpu_instance": (("nvmlDeviceGetGpuInstanceId",), ""),
    "compute_instance": (("nvmlDeviceGetComputeInstanceId",), ""),
}
_LIBRARY: Final = Path(torch.__file__).with_name("lib") / "libtorch_python.so"
_LONGEST: Final = 400
"""Bytes of the names of all architectures together."""
_CUDA_DRIVER: Final = ("nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion")
# The first reads the version of libcuda.so that a process loads, which a compatibility package of
# a container replaces; the second that of the installed driver.


def gather(environ: Mapping[str, str] = os.environ) -> dict[str, object]:
    """The record of this machine."""
    return {
        "torch": torch_facts(),
        "environment": {name: environ.get(name) for name in VARIABLES},
        "host": host_facts(),
        "nvml": nvml_facts(_binding),
    }


def torch_facts() -> dict[str, object]:
    """How torch was built."""
    return {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "arch_flags": arch_flags(_LIBRARY) if torch.version.cuda else [],
    }


@cache
def arch_flags(library: Path) -> list[str]:
    """The architectures that torch has code for, as ``sm_90`` or ``compute_90``; [] if unknown.

    It is read from the library, where it lies as one string: torch's functions that tell it mark
    the process, and its configuration as text starts the driver, so that after either no child of
    a fork could use CUDA.
    """
    try:
        with (
            library.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            at = -1
            while (at := content.find(b"\0sm_", at + 1)) >= 0:
                text = content[at + 1 : at + _LONGEST].partition(b"\0")[0]
                if re.fullmatch(rb"(?:(?:sm|compute)_\d+[a-z]?(?: |$))+", text):
                    return text.decode("ascii").split()
    except (OSError, ValueError):  # another system's name for it, or an empty file
        return []
    return []


def nvml_facts(binding: Callable[[], Any]) -> dict[str, object]:
    """NVML's part of a record.

    Args:
        binding: gives the module ``pynvml``, or what stands in for it.
    """
    try:
        nvml = binding()
    except ImportError:
        return {"start": {"error": "NoBinding"}}
    ask = Asker(nvml)
    started = ask("nvmlInit")
    if _is_error(started):
        return {"start": started}
    try:
        found = ask("nvmlDeviceGetCount")
        number = min(found, _MOST) if type(found) is int else 0
        return {
            "start": None,
            "driver": ask("nvmlSystemGetDriverVersion"),
            "cuda_driver": ask.first(_CUDA_DRIVER),
            "count": found,
            "devices": [_device(ask, index) for index in range(number)],
        }
    finally:
        ask("nvmlShutdown")


def _binding() -> Any:
    return import_module("pynvml")


class Asker:
    """Calls functions of NVML; what goes wrong is an answer, too."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml

    def __call__(self, name: str, *arguments: object, field: str = "") -> Any:
        """The answer as a plain value, or ``{"error": NAME}``."""
        answer = self.raw(name, *arguments)
        return answer if _is_error(answer) else _plain(getattr(answer, field, answer))

    def first(self, names: tuple[str, ...], *arguments: object, field: str = "") -> Any:
        """The answer of the first function that this binding and this driver have."""
        answer: Any = None
        for name in names:
            answer = self(name, *arguments, field=field)
            if answer != {"error": "FunctionNotFound"}:
                break
        return answer

    def raw(self, name: str, *arguments: object) -> Any:
        """The answer itself, such as a handle, or ``{"error": NAME}``."""
        try:
            call = getattr(self.nvml, name, None)
            return {"error": "FunctionNotFound"} if call is None else call(*arguments)
        except Exception as error:  # noqa: BLE001 - a driver's library: what it raises is the answer
            return {"error": type(error).__name__.removeprefix("NVMLError_")}


def _is_error(answer: object) -> bool:
    return isinstance(answer, dict) and "error" in answer


def _plain(answer: object) -> object:
    """An answer as JSON has it; the name of the type of what JSON has no word for."""
    if answer is None or type(answer) in {bool, int, float, str}:
        return answer
    if isinstance(answer, bytes):
        return answer.decode("utf-8", "replace")
    if isinstance(answer, list | tuple):
        return [_plain(member) for member in answer]
    return {"error": f"a {type(answer).__name__}"}


def _device(ask: Asker, index: int) -> dict[str, object]:
    """Everything about one GPU; a record with an error alone when it cannot be opened."""
    handle = ask.raw("nvmlDeviceGetHandleByIndex", index)
    if _is_error(handle):
        return dict(handle)
    found = {fact: ask.first(names, handle, field=field) for fact, (names, field) in _FACTS.items()}
    found["nvlinks"] = _links(ask, handle)
    found["nvlink_mbps"] = _link_speed(ask, handle)
    found["fabric"] = _fabric(ask, handle)
    found["mig_devices"] = _mig_devices(ask, handle, found["mig_mode"])
    return found


def _links(ask: Asker, handle: object) -> list[object]:
    """State of each NVLink, up to the first that does not exist."""
    states: list[object] = []
    for link in range(_LINKS):
        state = ask("nvmlDeviceGetNvLinkState", handle, link)
        if _is_error(state):
            break
        states.append(state)
    return states


def _link_speed(ask: Asker, handle: object) -> object:
    """Megabytes a second of one NVLink in one direction."""
    values = ask.raw("nvmlDeviceGetFieldValues", handle, [getattr(ask.nvml, _SPEED_FIELD, 90)])
    if _is_error(values):
        return values
    try:
        if values[0].nvmlReturn:
            return {"error": "NotSupported"}
        return _plain(values[0].value.uiVal)
    except (IndexError, TypeError, AttributeError):
        return {"error": f"a {type(values).__name__}"}


def _fabric(ask: Asker, handle: object) -> object:
    """State of the fabric of switches between GPUs."""
    info = ask.raw("c_nvmlGpuFabricInfoV_t")
    if not isinstance(info, Structure):
        return {"error": "FunctionNotFound"}
    answer = ask.raw("nvmlDeviceGetGpuFabricInfoV", handle, byref(info))
    return answer if _is_error(answer) else _plain(getattr(info, "state", None))


def _mig_devices(ask: Asker, handle: object, mode: object) -> list[dict[str, object]]:
    """The slices of a GPU that is divided; those that do not exist are left out."""
    most = ask("nvmlDeviceGetMaxMigDeviceCount", handle) if mode not in (None, [0, 0]) else 0
    found = []
    for index in range(min(most, _MOST) if type(most) is int else 0):
        mig = ask.raw("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
        if not _is_error(mig):
            row = {f: ask.first(names, mig, field=x) for f, (names, x) in _MIG_FACTS.items()}
            found.append(row)
    return found
