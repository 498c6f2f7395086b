"""Why no GPU can be used: a kind for programs, a sentence for people."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Obstacle(StrEnum):
    """Kinds of reasons, in the order in which they are looked for."""

    CPU_BUILD = "cpu_build"
    HIP_BUILD = "hip_build"
    NO_BINDING = "no_binding"
    NO_DRIVER = "no_driver"
    NO_PERMISSION = "no_permission"
    NOT_LOADED = "not_loaded"
    MISMATCH = "mismatch"
    NVML_FAILED = "nvml_failed"
    UNKNOWN_JETSON = "unknown_jetson"
    NO_LIBCUDA = "no_libcuda"
    DRIVER_TOO_OLD = "driver_too_old"
    NO_DEVICE = "no_device"
    DEVICE_LOST = "device_lost"
    HIDDEN = "hidden"
    ORDER_UNKNOWN = "order_unknown"
    MIG_EMPTY = "mig_empty"
    PROHIBITED = "prohibited"
    UNREADABLE = "unreadable"
    TOO_OLD = "too_old"
    NOT_IN_TORCH = "not_in_torch"


@dataclass(frozen=True, slots=True)
class Absence:
    """One reason.

    Args:
        kind: what kind it is.
        reason: one sentence: what is wrong, and after a colon or semicolon what to do.
    """

    kind: Obstacle
    reason: str
