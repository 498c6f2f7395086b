"""Runs the preprocessor on Metal text; Apple's headers are empty there."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import tempfile
from pathlib import Path

from trivet_metal_emulator import cache
from trivet_metal_emulator.compilers import Compiler
from trivet_metal_emulator.diagnostics import explain
from trivet_metal_emulator.errors import CompileError
from trivet_metal_emulator.requests import Request

__all__ = ["preprocess"]

_HEADERS = (
    "metal_stdlib", "metal_array", "metal_atomic", "metal_common", "metal_compute", "metal_config",
    "metal_geometric", "metal_graphics", "metal_integer", "metal_limits", "metal_logging",
    "metal_math", "metal_matrix", "metal_pack", "metal_packed_vector", "metal_relational",
    "metal_simdgroup", "metal_simdgroup_matrix", "metal_texture", "metal_type_traits",
    "metal_types", "metal_uniform", "metal_units", "metal_utility", "metal_raytracing",
    "metal_tensor", "metal_numeric", "simd/simd.h",
)  # fmt: skip


@functools.cache
def _torch_headers() -> str:
    """The folder of `c10/metal/*.h`, which torch ships and its compile_shader embeds."""
    found = importlib.util.find_spec("torch")
    if found is None or not found.submodule_search_locations:
        return ""
    return str(Path(found.submodule_search_locations[0]) / "include")


def _stubs() -> Path:
    folder = cache.folder() / f"headers-{cache.key_of('headers', _HEADERS)}"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            made = Path(temporary) / "made"
            for name in _HEADERS:
                path = made / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("#pragma once\n", encoding="ascii")
            try:
                made.rename(folder)
            except OSError:
                if not folder.is_dir():  # else another process was faster
                    raise
    return folder


def preprocess(compiler: Compiler, request: Request) -> str:
    """The text with macros and headers expanded, and line markers that name the file.

    Raises:
        CompileError: a header is missing, or a directive is wrong.
    """
    source, name = request.source, request.name
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    command = [
        *compiler.compile, "-E", "-x", "c++", "-std=c++14", "-nostdinc", "-w",
        "-D__METAL__=1", "-D__METAL_MACOS__=1", f"-D__METAL_VERSION__={request.language}",
        "-D__HAVE_BFLOAT__=1", "-I", str(_stubs()),
    ]  # fmt: skip
    command += [word for folder in request.include for word in ("-I", folder)]
    if _torch_headers():
        command += ["-isystem", _torch_headers()]
    done = subprocess.run(  # noqa: S603 - a compiler that was found
        [*command, "-"], input=f'# 1 "{escaped}"\n{source}', capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    if done.returncode:
        raise CompileError(f"{name} cannot be preprocessed", findings=explain(done.stderr))
    return done.stdout
