"""Compiles the kernels while a wheel or an editable install is made.

The compiler is ``$CXX``, else ``g++``, else ``clang++``, else the one in the Python package
``ziglang``. Whatever is missing (compiler, torch's headers, Linux) makes the wheel pure: it
installs, and core's references run. ``_build.json`` in the package says what was built and with
what, or why nothing was.
"""

# ruff: noqa: INP001  # a build script, no package

from __future__ import annotations

import hashlib
import importlib.metadata
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
OLDEST_GLIBC = "2.28"  # that zig links for, as torch's wheels do
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
LEVELS: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {"baseline": (), "avx2": ("-march=x86-64-v3",), "avx512": ("-march=x86-64-v4",)},
    "aarch64": {"neon": ()},  # part of the architecture: no flags, and nothing below it
}


class NoKernels(Exception):
    """Why the kernels cannot be built here."""


class Toolchain(NamedTuple):
    """A compiler that answers, and where torch's headers are.

    Args:
        command: the compiler's command line.
        linker: the command line that links; another one where a C++ library would be linked in.
        version: first line of what it says of itself.
        torch: torch's package folder.
        torch_version: its version.
    """

    command: tuple[str, ...]
    linker: tuple[str, ...]
    version: str
    torch: Path
    torch_version: str

    def compile(self, *arguments: str) -> None:
        """Runs the compiler.

        Raises:
            NoKernels: it failed; the message ends with its last lines.
        """
        _run(self.command, arguments)

    def link(self, *arguments: str) -> None:
        """Links; raises as ``compile`` does."""
        _run(self.linker, arguments)

    def spelled(self, flags: tuple[str, ...]) -> tuple[str, ...]:
        """Flags in the compiler's own spelling: zig wants ``x86_64_v3`` for ``x86-64-v3``."""
        if self.linker == self.command:
            return flags
        return tuple("-march=" + f[7:].replace("-", "_") for f in flags)

    def accepts(self, *flags: str) -> bool:
        """Whether the compiler knows the flags."""
        with tempfile.TemporaryDirectory() as folder:
            probe = Path(folder, "probe.cpp")
            probe.write_text("int probe;\n")
            try:
                self.compile(*flags, "-c", str(probe), "-o", str(probe.with_suffix(".o")))
            except NoKernels:
                return False
        return True


def _run(command: tuple[str, ...], arguments: tuple[str, ...]) -> str:
    try:
        done = subprocess.run(  # noqa: S603  # the compiler that the builder chose
            [*command, *arguments], capture_output=True, text=True, check=False
        )
    except OSError as problem:
        raise NoKernels(f"{command[0]} does not run: {problem}") from problem
    if done.returncode:
        tail = " | ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
        raise NoKernels(f"{command[0]} failed: {tail}")
    return done.stdout


def find_toolchain() -> Toolchain:
    """The compiler and torch's headers.

    Raises:
        NoKernels: one of them is missing.
    """
    if not sys.platform.startswith("linux"):
        msg = f"kernels are built on Linux only, this is {sys.platform}"
        raise NoKernels(msg)
    command, linker, version = _compiler()
    torch, torch_version = _torch()
    return Toolchain(command, linker, version, torch, torch_version)


def _compiler() -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """Command lines that compile and link, and the compiler's version."""
    chosen = os.environ.get("CXX", "").strip()
    packaged = shlex.join([sys.executable, "-m", "ziglang", "c++"])
    for text in [chosen] if chosen else ["g++", "clang++", packaged]:
        command = linker = tuple(shlex.split(text))
        if shutil.which(command[0]) is None:
            continue
        zig = {"zig", "ziglang"} & {Path(word).name for word in command}
        if zig:  # `zig c++` would link its own C++ library, whose exceptions torch cannot catch
            target = ("-target", f"{architecture()}-linux-gnu.{OLDEST_GLIBC}")
            command, linker = (*command, *target), (*command[:-1], "cc", *target)
        try:
            version = _run(command, ("--version",)).splitlines()[0].strip()
        except (NoKernels, IndexError):
            continue
        return command, linker, f"ziglang {_zig_version()}, {version}" if zig else version
    if chosen:
        msg = f"CXX={chosen} does not run"
        raise NoKernels(msg)
    msg = (
        "found none of g++, clang++, ziglang; install g++, or: pip install hatchling ziglang, "
        "then install this package again with --no-build-isolation"
    )
    raise NoKernels(msg)


def _zig_version() -> str:
    try:
        return importlib.metadata.version("ziglang")
    except importlib.metadata.PackageNotFoundError:
        return "outside of this Python"


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


def architecture() -> str:
    """The machine's architecture, as in the tags of wheels for Linux."""
    machine = platform.machine()
    return {"AMD64": "x86_64", "amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)


def levels_of(tools: Toolchain) -> dict[str, tuple[str, ...]]:
    """The levels that this compiler can build for this machine's architecture."""
    levels = LEVELS.get(architecture(), {"baseline": ()})
    spelled = {name: tools.spelled(flags) for name, flags in levels.items()}
    return {name: flags for name, flags in spelled.items() if tools.accepts(*flags)}


def plan(tools: Toolchain, kernels: Path) -> dict[str, Any]:
    """What will be built, as the record of the build; its digest names the library."""
    record: dict[str, Any] = {
        "built": True,
        "compiler": tools.version,
        "flags": list(FLAGS),
        "levels": {name: list(flags) for name, flags in levels_of(tools).items()},
        "torch": tools.torch_version,
        "torch_target": TORCH_TARGET,
        "machine": architecture(),
        "sources": sources_digest(kernels),
    }
    text = json.dumps([record, list(tools.command)], sort_keys=True)
    namespace = f"trivet_cpu_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return {**record, "namespace": namespace, "library": f"{namespace}.so"}


def compile_kernels(tools: Toolchain, record: dict[str, Any], kernels: Path, target: Path) -> None:
    """Compiles each level, the binding and the collectives, and links them into ``target``."""
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
        jobs[folder / "collectives.o"] = ("collectives.cpp", has)

        def one(job: tuple[Path, tuple[str, list[str]]]) -> None:
            out, (source, flags) = job
            tools.compile(*FLAGS, *flags, "-c", str(kernels / source), "-o", str(out))

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(one, jobs.items()))
        linked = folder / target.name
        libraries = ["-L" + str(tools.torch / "lib"), "-ltorch_cpu"]
        tools.link("-shared", "-s", "-o", str(linked), *map(str, jobs), *libraries)
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
            build_data["tag"] = f"py3-none-linux_{record['machine']}"
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
