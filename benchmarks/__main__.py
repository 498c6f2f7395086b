"""Runs every benchmark in turn and writes its figures to ``benchmarks/results``."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent


def main() -> int:
    """Passes its arguments on to each benchmark; the first failure is the result."""
    where = HERE / "results" / (platform.node() or "machine")
    gpu = ("gpu_kernels", "gpu_engine") if torch.cuda.is_available() else ()
    for name in ("overhead", "cpu_kernels", "engine", "memory", "collectives", *gpu):
        target = where / f"{name}.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(HERE / f"{name}.py"), "--json", str(target), *sys.argv[1:]]
        print(f"# {name}", flush=True)
        if code := subprocess.run(command, check=False).returncode:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
