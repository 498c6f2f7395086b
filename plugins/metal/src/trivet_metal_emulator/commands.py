"""The sub-commands: run, lint, list, doctor."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from trivet_metal_emulator import cache
from trivet_metal_emulator.building import lint as lint_text
from trivet_metal_emulator.compilers import Compiler, compiler, require
from trivet_metal_emulator.errors import EmulatorError, Finding, LaunchError
from trivet_metal_emulator.families import FAMILIES, family
from trivet_metal_emulator.library import Library, compile_shader
from trivet_metal_emulator.requests import Request
from trivet_metal_emulator.specifications import EXAMPLES, argument, numbers, sizes

__all__ = ["program"]

_FILE = click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
_INCLUDE = click.option(
    "--include", "-I", multiple=True, type=click.Path(path_type=Path), help="A folder of headers."
)
_CONSTANT = click.option(
    "--constant", multiple=True, help="NAME=VALUE or INDEX=VALUE of a function constant."
)
_FAMILY = click.option(
    "--as",
    "as_",
    default="m1",
    show_default=True,
    help=f"Whose limits hold: {', '.join(FAMILIES)}.",
)


@click.group(help="Runs Metal compute kernels on the CPU and says what is wrong with them.")
def program() -> None:
    """Collects the sub-commands."""


def _out() -> Console:
    return Console(soft_wrap=True, highlight=False, markup=False)


def _fail(error: EmulatorError, *, as_json: bool) -> NoReturn:
    """Says what is wrong, and exits: 1 where a kernel is at fault, 2 for anything else."""
    findings = [finding.as_dict() for finding in error.findings]
    if as_json:
        data = {"ok": False, "error": error.what, "fix": error.fix, "findings": findings}
        _out().print(json.dumps(data))
    else:
        _out().print(str(error))
    sys.exit(1 if findings else 2)


def _constants(words: Sequence[str]) -> dict[str | int, float]:
    values: dict[str | int, float] = {}
    for word in words:
        name, found, value = word.partition("=")
        number = numbers(value) if found else None
        if isinstance(number, list) or number is None:
            raise LaunchError(f"{word!r} is no constant", fix="NAME=VALUE, for example has_w=1")
        values[int(name) if name.isdigit() else name] = number
    return values


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"{file} cannot be read: {error}") from error


def _compile(
    file: Path,
    include: Sequence[Path],
    constant: Sequence[str],
    **options: Any,
) -> Library:
    return compile_shader(
        _text(file),
        name=file.name,
        include=include,
        constants=_constants(constant),
        **options,
    )


@program.command()
@_FILE
@click.argument("kernel")
@click.option("--arg", "-a", multiple=True, help=f"Buffers in order, each one of: {EXAMPLES}.")
@click.option("--threads", default="", help="Threads in all, for example 1024x4.")
@click.option("--group", default="", help="Threads of a group, for example 256x1.")
@click.option("--save", multiple=True, help="INDEX=FILE.npy: writes a buffer after the launch.")
@click.option("--seed", default=0, help="An order of threads; also of random arguments.")
@click.option("--fast", is_flag=True, help="No checks.")
@click.option("--lint/--no-lint", default=True, help="Refuse what Apple's compiler refuses.")
@_FAMILY
@_CONSTANT
@_INCLUDE
@_JSON
def run(
    file: Path,
    kernel: str,
    arg: tuple[str, ...],
    threads: str,
    group: str,
    save: tuple[str, ...],
    seed: int,
    fast: bool,
    lint: bool,
    as_: str,
    constant: tuple[str, ...],
    include: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Run a kernel and report what it did."""
    try:
        generator = torch.Generator().manual_seed(seed)
        read = [argument(text, generator) for text in arg]
        saved = [_saved(word, len(read)) for word in save]
        library = _compile(
            file, include, constant, check=not fast, seed=seed, family=as_, lint=lint
        )
        casts = {i: cast for i, (_, cast) in enumerate(read) if cast is not None}
        values = [value for value, _ in read]
        launched = getattr(library, kernel)
        launched(
            *values,
            threads=sizes(threads) if threads else None,
            group_size=sizes(group) if group else None,
            arg_casts=casts,
        )
        for index, path in saved:
            _save(values[index], path)
    except EmulatorError as error:
        _fail(error, as_json=as_json)
    except AttributeError as error:
        _fail(LaunchError(str(error)), as_json=as_json)
    stats = library.last.as_dict() if library.last else {}
    tensors = [_summary(i, value) for i, value in enumerate(values) if isinstance(value, Tensor)]
    if as_json:
        data = {"ok": True, "checked": not fast, "seed": seed, "stats": stats, "buffers": tensors}
        _out().print(json.dumps(data))
        return
    _tell(library, tensors, checked=not fast)


def _saved(word: str, count: int) -> tuple[int, Path]:
    """A buffer and where it goes."""
    index, _, path = word.partition("=")
    if not (index.isdecimal() and int(index) < count and path):
        raise LaunchError(f"{word!r} names no buffer and file", fix="INDEX=FILE.npy")
    return int(index), Path(path)


def _save(value: object, path: Path) -> None:
    if not isinstance(value, Tensor):
        raise LaunchError(f"{path} is not written: that argument is no tensor")
    plain = value.float() if value.dtype is torch.bfloat16 else value  # numpy has no bfloat16
    try:
        np.save(path, plain.numpy())
    except OSError as error:
        raise LaunchError(f"{path} cannot be written: {error}") from error


def _summary(index: int, tensor: Tensor) -> dict[str, Any]:
    plain = tensor.double()
    finite = plain[plain.isfinite()]
    return {
        "buffer": index,
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "min": finite.min().item() if finite.numel() else None,
        "max": finite.max().item() if finite.numel() else None,
        "mean": finite.mean().item() if finite.numel() else None,
        "not_finite": int(plain.numel() - finite.numel()),
    }


def _tell(library: Library, tensors: list[dict[str, Any]], *, checked: bool) -> None:
    out, stats = _out(), library.last
    table = Table(box=None, pad_edge=False)
    for title in ("buffer", "dtype", "shape", "min", "mean", "max", "not finite"):
        table.add_column(title)
    for one in tensors:
        shown = [f"{one[k]:.6g}" if one[k] is not None else "-" for k in ("min", "mean", "max")]
        shape = "x".join(map(str, one["shape"]))
        table.add_row(str(one["buffer"]), one["dtype"], shape, *shown, str(one["not_finite"]))
    out.print(table)
    if stats is None:
        return
    out.print(
        f"{stats.groups} groups, {stats.barriers} barriers, {stats.simd_ops} simdgroup operations "
        f"({stats.divergent_simd_ops} divergent), {stats.threadgroup_bytes} bytes of threadgroup "
        "memory"
    )
    if checked:
        for buffer in stats.buffers:
            out.print(
                f"  {', '.join(buffer.names)}: read {buffer.bytes_read}, written "
                f"{buffer.bytes_written} bytes ({buffer.bytes_covered} distinct)"
            )
        out.print("checked: nothing found")
    else:
        out.print("not checked")


@program.command()
@_FILE
@click.option("--strict", is_flag=True, help="Warnings count, too.")
@_FAMILY
@_CONSTANT
@_INCLUDE
@_JSON
def lint(
    file: Path,
    strict: bool,
    as_: str,
    constant: tuple[str, ...],
    include: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Say what Apple's compiler would not take."""
    found: list[Finding] = []
    try:
        request = Request(
            _text(file),
            file.name,
            checked=True,
            language=family(as_).language,
            constants=tuple(sorted(_constants(constant).items(), key=str)),
            include=tuple(map(str, include)),
        )
        found = lint_text(require(), request)
        if not any(one.severity == "error" for one in found):
            _compile(file, include, constant, family=as_)
    except EmulatorError as error:
        _fail(error, as_json=as_json)
    if as_json:
        _out().print(json.dumps({"ok": not found, "findings": [one.as_dict() for one in found]}))
    else:
        for one in found:
            _out().print(f"{one}" if one.severity == "error" else f"{one} (warning)")
        _out().print(f"{file.name}: {len(found) or 'no'} finding{'' if len(found) == 1 else 's'}")
    bad = found if strict else [one for one in found if one.severity == "error"]
    sys.exit(1 if bad else 0)


@program.command("list")
@_FILE
@_CONSTANT
@_INCLUDE
@_JSON
def list_(file: Path, constant: tuple[str, ...], include: tuple[Path, ...], as_json: bool) -> None:
    """List the kernels of a file and their arguments."""
    try:
        library = _compile(file, include, constant, lint=False)
    except EmulatorError as error:
        _fail(error, as_json=as_json)
    kernels = {
        name: [
            {"buffer": p.index, "name": p.name, "space": p.space, "reference": p.reference}
            for p in kernel.entry.parameters
            if p.kind == "buffer"
        ]
        for name, kernel in library.kernels.items()
    }
    if as_json:
        _out().print(json.dumps({"ok": True, "kernels": kernels}))
        return
    for name, buffers in kernels.items():
        words = [
            f"{b['space']} {b['name']}{' (one value)' if b['reference'] else ''}" for b in buffers
        ]
        _out().print(f"{name}: {', '.join(words)}")


@program.command()
@_JSON
def doctor(as_json: bool) -> None:
    """Say which compiler is used, and where built kernels are kept."""
    found = compiler()
    ready = isinstance(found, Compiler)
    try:
        kept = str(cache.folder())
    except EmulatorError as error:
        _fail(error, as_json=as_json)
    if as_json:
        _out().print(json.dumps({"ok": ready, "compiler": str(found), "cache": kept}))
    else:
        _out().print(f"compiler: {found}" if ready else f"no compiler: {found}")
        _out().print(f"cache: {kept}")
    sys.exit(0 if ready else 1)
