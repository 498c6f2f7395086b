"""Builds the kernels of a text into one shared library, or finds it in the cache."""

from __future__ import annotations

import functools
import hashlib
import json
import platform
import subprocess
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from trivet_metal_emulator import cache
from trivet_metal_emulator.compilers import Compiler
from trivet_metal_emulator.diagnostics import explain, warnings_of
from trivet_metal_emulator.errors import CompileError, EmulatorError, Finding, LintError
from trivet_metal_emulator.lint import banned, missing_spaces
from trivet_metal_emulator.preprocessing import preprocess
from trivet_metal_emulator.requests import Request
from trivet_metal_emulator.translation import Entry, Parameter, Translation, translate

__all__ = ["Built", "build", "lint"]

RUNTIME = Path(__file__).parent / "runtime"
_SOURCES = ("scheduler", "checker", "conversions")
_FLAGS = (
    "-nostdinc", "-fPIC", "-fno-exceptions", "-fno-rtti", "-fvisibility=hidden",
    "-fno-strict-aliasing", "-fno-math-errno", "-fno-threadsafe-statics", "-fno-stack-protector",
    "-ffp-contract=off", "-gline-tables-only", "-gdwarf-4", "-fno-sanitize=undefined",
    # operations on 16 bits round one by one, as on the GPU
    "-Xclang", "-ffloat16-excess-precision=none", "-Xclang", "-fbfloat16-excess-precision=none",
)  # fmt: skip
_CHECKED = (
    "-O1", "-DTRIVET_MSL_CHECKED", "-fsanitize=thread", "-fsanitize=array-bounds",
    "-fsanitize=integer-divide-by-zero", "-fno-sanitize-trap=all",
    "-mllvm", "-tsan-instrument-read-before-write=1",
    "-mllvm", "-tsan-instrument-func-entry-exit=0",
)  # fmt: skip
_FAST = ("-O2",)
_RUN = "-std=c++17"  # a superset: constants in classes need no definition
_METAL = "-std=c++14"  # what Metal before version 4 is; the pass that only looks takes this


@dataclass(frozen=True)
class Built:
    """A library on disk and what is in it."""

    path: Path
    kernels: tuple[Entry, ...]
    warnings: tuple[Finding, ...]


@functools.cache
def _machine_flags() -> tuple[str, ...]:
    """Instructions for 16-bit floats and vectors where this machine has them."""
    if platform.machine().lower() not in {"x86_64", "amd64"}:
        return ()
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ()
    flags = next((line for line in info.splitlines() if line.startswith("flags")), "").split()
    return ("-march=x86-64-v3",) if {"avx2", "f16c", "fma", "bmi2"} <= set(flags) else ()


def run(command: list[str]) -> tuple[int, str]:
    """Exit status and what was said on standard error."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)  # noqa: S603 - a compiler that was found
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EmulatorError(f"{command[0]} did not run: {error}") from error
    return done.returncode, done.stderr


def _runtime(compiler: Compiler, *, checked: bool) -> list[Path]:
    """The emulator's own objects, built once for every compiler."""
    flags = [
        _RUN,
        *_FLAGS,
        *_machine_flags(),
        "-O2",
        *(["-DTRIVET_MSL_CHECKED"] if checked else []),
    ]
    key = cache.key_of("runtime", compiler, flags)
    objects = []
    with cache.locked(f"runtime-{key}") as base:
        for name in _SOURCES:
            target = base.with_name(f"{base.name}-{name}.o")
            objects.append(target)
            if target.exists():
                continue
            with cache.place(target) as path:
                source = str(RUNTIME / f"{name}.cpp")
                status, said = run([*compiler.compile, *flags, "-c", source, "-o", str(path)])
                if status:
                    raise EmulatorError(f"the emulator's own {name}.cpp does not compile:\n{said}")
    return objects


def _wrapper(number: int, entry: Entry) -> str:
    """A C function that fills a kernel's parameters; nothing for one that cannot be launched."""
    arguments = []
    for k, p in enumerate(entry.parameters):
        kind = f"S::argument<{k}>"
        if p.kind == "buffer":
            arguments.append(f"trivet_msl::buffer<{kind}>(b[{p.index}])")
        elif p.kind == "position":
            where = p.position if p.position[0].isdigit() else f"t->{p.position}"
            arguments.append(f"trivet_msl::position<{kind}>({where})")
        else:
            return ""
    return (
        'extern "C" __attribute__((visibility("default"), no_sanitize("thread"))) '
        f"void trivet_kernel_{number}(void** b, const trivet_msl::Ids* t) {{ "
        f"typedef trivet_msl::signature<decltype({entry.expression})> S; "
        f"({entry.expression})({', '.join(arguments)}); }}\n"
    )


def _program(translation: Translation) -> str:
    wrappers = "".join(_wrapper(i, entry) for i, entry in enumerate(translation.kernels))
    head = '#include "metal/keywords.h"\n#pragma clang poison double\n'
    return f'{head}{translation.body}\n# 1 "wrappers"\n{wrappers}'


def _compile(
    compiler: Compiler, request: Request, text: str, source: Path, target: Path
) -> tuple[int, str]:
    source.write_text(text, encoding="utf-8")
    mode = _CHECKED if request.checked else _FAST
    return run(
        [*compiler.compile, _RUN, *_FLAGS, *_machine_flags(), *mode, "-w", "-ferror-limit=20",
         f"-D__METAL_VERSION__={request.language}", "-D__METAL__=1", "-I", str(RUNTIME),
         "-x", "c++", "-c", str(source), "-o", str(target)]
    )  # fmt: skip


def lint(compiler: Compiler, request: Request) -> list[Finding]:
    """What Apple's compiler would not take in a text."""
    text = preprocess(compiler, request)
    translation = translate(text, request.name, request.values)
    return [
        *banned(text, request.name, request.language),
        *missing_spaces(translation.kernels),
        *_address_spaces(compiler, request, text),
    ]


def _address_spaces(compiler: Compiler, request: Request, text: str) -> list[Finding]:
    translation = translate(text, request.name, request.values, spaces=True)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "lint.cpp"
        uses = "".join(
            f"static auto* const trivet_use_{i} __attribute__((used)) = &{entry.expression};\n"
            for i, entry in enumerate(translation.kernels)
        )
        head = '#define TRIVET_MSL_LINT 1\n#include "metal/keywords.h"\n'
        source.write_text(f'{head}{translation.body}\n# 1 "wrappers"\n{uses}', encoding="utf-8")
        _, said = run(
            [*compiler.compile, _METAL, *_FLAGS, "-Wno-everything", "-Wc++17-extensions",
             "-Wc++20-extensions", "-Wimplicit-float-conversion", "-ferror-limit=0",
             f"-D__METAL_VERSION__={request.language}",
             "-D__METAL__=1", "-I", str(RUNTIME), "-x", "c++", "-fsyntax-only", str(source)]
        )  # fmt: skip
    return warnings_of(said)


def build(compiler: Compiler, request: Request) -> Built:
    """The library of a text, from the cache or built now.

    Raises:
        CompileError: the text is no Metal.
        LintError: it is, but not what Apple's compiler takes.
    """
    # headers of other folders change without notice: then their text is part of the key
    text = preprocess(compiler, request) if request.include else ""
    key = cache.key_of(request, compiler, _machine_flags(), text)
    with cache.locked(key) as base:
        library, facts = base.with_suffix(".so"), base.with_suffix(".json")
        built = _kept(library, facts)
        if built is None:
            with ThreadPoolExecutor(1) as aside:
                _build(compiler, request, library, facts, aside)
            cache.prune()
            built = _kept(library, facts)
        cache.touch(library)
    if built is None:
        raise EmulatorError(f"{library} changed while it was built")
    return built


def _kept(library: Path, facts: Path) -> Built | None:
    """What the cache holds, or nothing where it is missing or damaged: then it is built again."""
    try:
        data = json.loads(facts.read_text(encoding="utf-8"))
        if data["library"] != _digest(library):
            return None
        kernels = tuple(
            Entry(**{**one, "parameters": tuple(Parameter(**p) for p in one["parameters"])})
            for one in data["kernels"]
        )
        return Built(library, kernels, tuple(Finding(**one) for one in data["warnings"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _build(
    compiler: Compiler, request: Request, library: Path, facts: Path, aside: ThreadPoolExecutor
) -> None:
    runtime = aside.submit(_runtime, compiler, checked=request.checked)
    text = preprocess(compiler, request)
    found = banned(text, request.name, request.language) if request.linted else []
    refuse(request, found)
    translation = translate(text, request.name, request.values)
    spaces: Future[list[Finding]] | None = None
    if request.linted:
        found += missing_spaces(translation.kernels)
        refuse(request, found)
        spaces = aside.submit(_address_spaces, compiler, request, text)
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "kernels.cpp", Path(folder) / "kernels.o"
        status, said = _compile(compiler, request, _program(translation), source, target)
        if status:
            raise CompileError(f"{request.name} does not compile", findings=explain(said))
        if spaces is not None:
            found += spaces.result()
            refuse(request, found)
        with cache.place(library) as path:
            objects = [str(target), *map(str, runtime.result())]
            status, said = run([*compiler.link, "-o", str(path), *objects])
            if status:
                raise EmulatorError(
                    f"{request.name} cannot be linked: {said}",
                    fix=f"if it was linked before, remove {library.parent}/runtime-*.o",
                )
    with cache.place(facts) as path:
        data = {
            "kernels": [asdict(entry) for entry in translation.kernels],
            "warnings": [one.as_dict() for one in found],
            "library": _digest(library),
        }
        path.write_text(json.dumps(data), encoding="utf-8")


def refuse(request: Request, found: list[Finding]) -> None:
    """Raises for what Apple's compiler would refuse."""
    errors = [one for one in found if one.severity == "error"]
    if errors:
        raise LintError(f"{request.name} is not what Apple's compiler takes", findings=errors)
