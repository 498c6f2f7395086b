"""Compiles the kernels while a wheel or an editable install is made.

The compiler is ``$CXX``, else ``g++``, else ``clang++``. Whatever is missing (compiler, torch's
headers, Linux) makes the wheel pure: it installs, and core's references run. ``_build.json`` in
the package says what was built and with what, or why nothing was.
"""

# ruff: noqa: INP001  # a build script, no package

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TORCH_TARGET = "0x020a000000000000"  # 2.10: the oldest stable interface that the binding needs
OLDEST_TORCH = (2, 10)
FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",  # fused where the source says so: one rounding on every compiler
    "-Wall",
    "-Wextra",
    "-Wno-uninitialized",  # g++ 12 reports its own intrinsics
    "-Wno-maybe-uninitialized",
    "-Wno-unknown-warning-option",
)
LEVELS = {"baseline": (), "avx2": ("-march=x86-64-v3",), "avx512": ("-march=x86-64-v4",)}
X86_64 = ("x86_64", "AMD64", "amd64")


class NoKernels(Exception):
    """Why the kernels cannot be built here."""


class Toolchain(NamedTuple):
    """A compiler that answers, and where torch's headers are.

    Args:
        command: the compiler's command line.
        version: first line of what it says of itself.
        torch: torch's package folder.
        torch_version: its version.
    """

    command: tuple[str, ...]
    version: str
    torch: Path
    torch_version: str

    def run(self, *arguments: str) -> None:
        """Runs the compiler.

        Raises:
            NoKernels: it failed; the message ends with its last lines.
        """
        done = subprocess.run(  # noqa: S603  # the compiler that the builder chose
            [*self.command, *arguments], capture_output=True, text=True, check=False
        )
        if done.returncode:
            tail = " | ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
            msg = f"{self.command[0]} failed: {tail}"
            raise NoKernels(msg)

    def accepts(self, *flags: str) -> bool:
        """Whether the compiler knows the flags."""
        with tempfile.TemporaryDirectory() as folder:
            probe = Path(folder, "probe.cpp")
            probe.write_text("int probe;\n")
            try:
                self.run(*flags, "-c", str(probe), "-o", str(probe.with_suffix(".o")))
            except NoKernels:
                return False
        return True


def find_toolchain() -> Toolchain:
    """The compiler and torch's headers.

    Raises:
        NoKernels: one of them is missing.
    """
    if not sys.platform.startswith("linux"):
        msg = f"kernels are built on Linux only, this is {sys.platform}"
        raise NoKernels(msg)
    command, version = _compiler()
    torch, torch_version = _torch()
    return Toolchain(command, version, torch, torch_version)


def _compiler() -> tuple[tuple[str, ...], str]:
    chosen = os.environ.get("CXX", "").strip()
    for text in [chosen] if chosen else ["g++", "clang++"]:
        command = tuple(shlex.split(text))
        if shutil.which(command[0]) is None:
            continue
        done = subprocess.run(  # noqa: S603  # the compiler that the builder chose
            [*command, "--version"], capture_output=True, text=True, check=False
        )
        if done.returncode == 0 and done.stdout:
            return command, done.stdout.splitlines()[0].strip()
    what = f"CXX={chosen} does not run" if chosen else "neither g++ nor clang++ was found"
    raise NoKernels(what)


def _torch() -> tuple[Path, str]:
    """Finds torch without importing it; isolated builds look beside the interpreter as well."""
    places = [*sys.path, *(sysconfig.get_path(p) for p in ("platlib", "purelib"))]
    for place in places:
        folder = Path(place or ".") / "torch"
        if not (folder / "include/torch/csrc/stable/library.h").is_file():
            continue
        match = re.search(r"__version__\s*=\s*'([^']+)'", (folder / "version.py").read_text())
        version = match.group(1) if match else "0.0"
        numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:2])
        if numbers < OLDEST_TORCH:
            msg = f"torch {version} is too old for the kernels, 2.10 is needed"
            raise NoKernels(msg)
        return folder, version
    msg = "torch's headers were not found; install torch, then use --no-build-isolation"
    raise NoKernels(msg)


def sources_digest(kernels: Path) -> str:
    """Eight hex digits over the names and contents of the kernel sources."""
    total = hashlib.sha256()
    for file in sorted(kernels.glob("*.[hc]*")):
        total.update(file.name.encode() + b"\0" + file.read_bytes())
    return total.hexdigest()[:8]


def levels_of(tools: Toolchain) -> dict[str, tuple[str, ...]]:
    """The levels that this compiler can build for this machine's architecture."""
    if platform.machine() not in X86_64:
        return {"baseline": ()}
    return {name: flags for name, flags in LEVELS.items() if tools.accepts(*flags)}


def plan(tools: Toolchain, kernels: Path) -> dict[str, Any]:
    """What will be built, as the record of the build; its digest names the library."""
    record: dict[str, Any] = {
        "built": True,
        "compiler": tools.version,
        "flags": list(FLAGS),
        "levels": {name: list(flags) for name, flags in levels_of(tools).items()},
        "torch": tools.torch_version,
        "torch_target": TORCH_TARGET,
        "machine": platform.machine(),
        "sources": sources_digest(kernels),
    }
    text = json.dumps([record, list(tools.command)], sort_keys=True)
    namespace = f"trivet_cpu_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return {**record, "namespace": namespace, "library": f"{namespace}.so"}


def compile_kernels(tools: Toolchain, record: dict[str, Any], kernels: Path, target: Path) -> None:
    """Compiles each level and the binding, and links them into ``target``."""
    levels: dict[str, list[str]] = record["levels"]
    has = [f"-DTRIVET_CPU_HAS_{name.upper()}" for name in levels]
    binding = [
        *has,
        f"-DTRIVET_CPU_NAMESPACE={record['namespace']}",
        f"-DTORCH_TARGET_VERSION={TORCH_TARGET}",
        "-isystem",
        str(tools.torch / "include"),
    ]
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        folder = Path(name)
        jobs = {
            folder / f"{level}.o": ("level.cpp", [*flags, f"-DTRIVET_CPU_LEVEL=trivet_cpu_{level}"])
            for level, flags in levels.items()
        }
        jobs[folder / "binding.o"] = ("binding.cpp", binding)

        def one(job: tuple[Path, tuple[str, list[str]]]) -> None:
            out, (source, flags) = job
            tools.run(*FLAGS, *flags, "-c", str(kernels / source), "-o", str(out))

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(one, jobs.items()))
        linked = folder / target.name
        libraries = ["-L" + str(tools.torch / "lib"), "-ltorch_cpu"]
        tools.run("-shared", "-s", "-o", str(linked), *map(str, jobs), *libraries)
        linked.replace(target)  # whole or not at all, also when two builds meet


def build(root: Path) -> tuple[dict[str, Any], Path | None]:
    """Builds into ``root/build`` unless the same inputs were built before.

    Returns:
        The record of the build and the library, or None with the record's ``reason``.
    """
    kernels = root / "src/trivet_cpu/kernels"
    try:
        tools = find_toolchain()
        record = plan(tools, kernels)
        target = root / "build" / record["library"]
        if not target.is_file():
            target.parent.mkdir(exist_ok=True)
            compile_kernels(tools, record, kernels, target)
    except (NoKernels, OSError) as problem:
        return {"built": False, "reason": str(problem)}, None
    return record, target


class KernelBuild(BuildHookInterface[Any]):
    """The hook: an editable install gets its files in place, a wheel carries its own."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Builds, and tells hatchling which files and which tag the wheel gets."""
        root = Path(self.root)
        record, library = build(root)
        if library is None:
            self.app.display_warning(f"trivet-cpu: no kernels: {record['reason']}")
        else:
            build_data["pure_python"] = False
            machine = "x86_64" if record["machine"] in X86_64 else record["machine"]
            build_data["tag"] = f"py3-none-linux_{machine}"
        text = json.dumps(record, indent=1, sort_keys=True) + "\n"
        package = root / "src/trivet_cpu"
        if version == "editable":
            for old in package.glob("*.so"):
                if library is None or old.name != library.name:
                    old.unlink()
            if library is not None and not (package / library.name).is_file():
                shutil.copy2(library, package / library.name)
            (package / "_build.json").write_text(text)
            return
        marker = root / "build" / f"{record.get('namespace', 'pure')}.json"
        marker.parent.mkdir(exist_ok=True)
        marker.write_text(text)
        build_data["force_include"][str(marker)] = "trivet_cpu/_build.json"
        if library is not None:
            build_data["force_include"][str(library)] = f"trivet_cpu/{library.name}"
