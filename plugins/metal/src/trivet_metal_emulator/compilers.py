"""Which compiler builds kernels: a clang of 17 or newer, or the one inside ziglang."""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from trivet_metal_emulator.errors import NoCompiler

__all__ = ["OLDEST", "Compiler", "compiler", "require"]

OLDEST = 17  # the first clang with arithmetic on __bf16
_NEWEST_TRIED = 30
VARIABLE = "TRIVET_METAL_CXX"


@dataclass(frozen=True)
class Compiler:
    """A command that compiles, a command that links, and what they are."""

    compile: tuple[str, ...]
    link: tuple[str, ...]
    version: str
    origin: str
    """Where it was found: `TRIVET_METAL_CXX`, `PATH` or `ziglang`."""

    def __str__(self) -> str:
        return f"{self.version} ({self.origin}: {shlex.join(self.compile)})"


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - found above
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"error: {error}"
    return done.stdout if done.returncode == 0 else f"error: {done.stderr.strip()[:200]}"


def _machine() -> str:
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(
        platform.machine().lower(), platform.machine().lower()
    )


def _clang(command: str, origin: str) -> Compiler | str:
    """That clang, or why it cannot be used."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        return f"{command}: {error}"
    if not words or shutil.which(words[0]) is None:
        return f"{command}: there is no such command"
    said = _run([*words, "--version"])
    found = re.search(r"clang version (\d+)[.\w]*", said)
    if found is None:
        return f"{command}: not a clang ({said.splitlines()[0] if said else 'it says nothing'})"
    if int(found[1]) < OLDEST:
        return f"{command}: clang {found[1]}, and __bf16 arithmetic needs {OLDEST} or newer"
    link = (*words, "-shared", "-nostdlib")
    return Compiler(tuple(words), link, found[0], origin)


def _zig() -> Compiler | str:
    """The clang and the linker inside ziglang, without its driver and its caches."""
    found = importlib.util.find_spec("ziglang")
    if found is None or not found.submodule_search_locations:
        return "ziglang is not installed"
    binary = Path(found.submodule_search_locations[0]) / "zig"
    if not binary.is_file():
        return f"{binary} is missing: ziglang is only half installed"
    said = _run([str(binary), "clang", "--version"])
    version = re.search(r"clang version (\d+)[.\w]*", said)
    if version is None:
        return f"ziglang: {said.strip()[:200]}"
    # without a target the code would be for this very CPU, and the cache could not be shared
    target = f"{_machine()}-linux-gnu"
    return Compiler(
        (str(binary), "clang", "-target", target),
        (str(binary), "ld.lld", "-shared"),
        f"{version[0]} in ziglang",
        "ziglang",
    )


@functools.cache
def _search(wanted: str, path: str) -> Compiler | str:
    del path  # part of the key: another PATH is another search
    if platform.system() != "Linux" or _machine() not in {"x86_64", "aarch64"}:
        return (
            f"fibres are written for Linux on x86-64 and aarch64, and this is "
            f"{platform.system()} on {platform.machine()}"
        )
    if wanted:
        return _zig() if wanted == "ziglang" else _clang(wanted, VARIABLE)
    reasons = []
    names = ["clang++", *(f"clang++-{n}" for n in range(_NEWEST_TRIED, OLDEST - 1, -1))]
    for name in names:
        if shutil.which(name):
            found = _clang(name, "PATH")
            if isinstance(found, Compiler):
                return found
            reasons.append(found)
    found = _zig()
    if isinstance(found, Compiler):
        return found
    return "; ".join([*(reasons or [f"no clang++ of {OLDEST} or newer on PATH"]), found])


def compiler(command: str | None = None) -> Compiler | str:
    """The compiler that builds kernels, or the reason why there is none.

    Args:
        command: a clang to use, or `ziglang`; by default `$TRIVET_METAL_CXX`, then a clang on PATH,
            then ziglang.
    """
    wanted = command if command is not None else os.environ.get(VARIABLE, "")
    return _search(wanted, os.environ.get("PATH", ""))


def require(command: str | None = None) -> Compiler:
    """The compiler that builds kernels.

    Raises:
        NoCompiler: there is none; the message says what was tried.
    """
    found = compiler(command)
    if isinstance(found, Compiler):
        return found
    raise NoCompiler(
        f"no compiler for Metal kernels: {found}",
        fix="pip install 'trivet-metal[emulator]' for the one inside ziglang, or install clang "
        f"{OLDEST} or newer; {VARIABLE} names another",
    )
