"""Writes down what the system and torch answer, as plain JSON values."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from typing import Final

import torch

SYSCTLS: Final = (
    "machdep.cpu.brand_string",
    "hw.memsize",
    "sysctl.proc_translated",
    "iogpu.wired_limit_mb",
)
VARIABLES: Final = ("PYTORCH_ENABLE_MPS_FALLBACK", "PYTORCH_MPS_HIGH_WATERMARK_RATIO")
_SECONDS: Final = 10


def gather(environ: Mapping[str, str] = os.environ) -> dict[str, object]:
    """The answers of this machine; on other systems than macOS only that it is none."""
    system = platform.system()
    record: dict[str, object] = {"system": system, "machine": platform.machine()}
    if system != "Darwin":
        return record
    record |= {
        "macos": platform.mac_ver()[0],
        "sysctl": {name: found for name in SYSCTLS if (found := _sysctl(name))},
        "environment": {name: environ.get(name) for name in VARIABLES},
        "torch": {
            "version": str(torch.__version__),
            "built": torch.backends.mps.is_built(),
            "available": torch.backends.mps.is_available(),
            "compile_shader": hasattr(torch.mps, "compile_shader"),
        },
    }
    return record


def _sysctl(name: str) -> str:
    """What the system says of one name; empty where it does not know it."""
    command = shutil.which("sysctl", path="/usr/sbin:/sbin:/usr/bin")
    if command is None:
        return ""
    try:
        done = subprocess.run(  # noqa: S603 - the system's own, with a name of ours
            [command, "-n", name], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
