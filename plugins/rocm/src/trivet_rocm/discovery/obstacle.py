"""Why no GPU can be used: a kind for programs, a sentence for people."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Obstacle(StrEnum):
    """Kinds of reasons, in the order in which they are looked for."""

    CPU_BUILD = "cpu_build"
    CUDA_BUILD = "cuda_build"
    SYSTEM = "system"
    NO_DRIVER = "no_driver"
    WSL = "wsl"
    NO_PERMISSION = "no_permission"
    NO_DEVICE = "no_device"
    HIDDEN = "hidden"
    UNREADABLE = "unreadable"
    UNSUPPORTED = "unsupported"
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
