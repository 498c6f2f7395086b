"""Kernels with all that a launch needs: source, name, types of arguments.

A ``Package`` is one kernel of a file in ``kernels/``. ``at`` settles its dtypes; what that returns
is called with tensors and numbers in the order of the kernel's buffers. Casts of numbers follow
from the declared types, so that none is passed as the eight bytes that torch takes by default.

    RMS_NORM = Package("norm.metal", "rms_norm_{T}_{W}",
        ("x: in T*", "weight: in W*", "y: out T*", "x_stride: int64", "n: uint32", "eps: float"))
    kernel = RMS_NORM.at(T=x.dtype, W=weight.dtype)
    kernel(x, weight, y, x.stride(0), n, eps, threads=(rows * 256,), group=(256,))
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from trivet.errors import DeclarationError, DomainError, PluginBroken
from trivet_metal.backend import Backend, Function, backend_of

KERNELS: Final = Path(__file__).parent / "kernels"

NAMES: Final = {
    torch.float32: "float",
    torch.float16: "half",
    torch.bfloat16: "bfloat",
    torch.int64: "long",
    torch.int32: "int",
    torch.uint8: "uchar",
    torch.bool: "bool",
}
"""What the Metal Shading Language calls a dtype."""

_DTYPES: Final = {name: dtype for dtype, name in NAMES.items()}
_WAYS: Final = ("in", "out", "inout", "into")
_CASTS: Final = {"int32": "int32", "uint32": "int32", "int64": None, "float": None}
"""Type of a number -> the cast that torch is told; of these it has no unsigned one."""

_RANGES: Final = {
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
_MOST_THREADS: Final = 2**32 - 1
_ARGUMENT: Final = re.compile(r"(\w+): (?:(in|out|inout|into) (\w+)\*|(\w+))")
_INCLUDE: Final = re.compile(r'^#include "([\w.]+)"$', re.MULTILINE)


@dataclass(frozen=True)
class Argument:
    """One buffer of a kernel.

    Args:
        name: as the kernel has it.
        type: ``T`` and other capitals for dtypes that ``at`` settles, a type of Metal, or that of
            a number.
        way: ``in`` is read; of ``out`` and ``inout`` every element is written once; ``into`` is
            written where data say so; empty for a number.
    """

    name: str
    type: str
    way: str = ""

    @classmethod
    def parse(cls, text: str) -> Argument:
        """The argument that a line such as ``x: in T*`` or ``rows: uint32`` declares.

        Raises:
            DeclarationError: it declares none.
        """
        found = _ARGUMENT.fullmatch(text)
        if found is None or (found[4] is not None and found[4] not in _CASTS):
            allowed = f"'x: in T*' ({', '.join(_WAYS)}), or 'n: uint32' ({', '.join(_CASTS)})"
            raise DeclarationError(f"{text!r} declares no argument", fix=allowed)
        return cls(str(found[1]), str(found[3] or found[4]), str(found[2] or ""))


@dataclass(frozen=True)
class Package:
    """One kernel of a file, over all dtypes that it is instantiated for.

    Args:
        source: name of the file in ``kernels/``.
        host_name: name of the kernel, dtype variables in braces.
        args: its buffers in order, one line each; see ``Argument``.
        divergent: SIMD operations in which not all threads take part are meant.
        folder: where the file lies.
    """

    source: str
    host_name: str
    args: tuple[str, ...]
    divergent: bool = False
    folder: Path = KERNELS
    _made: dict[tuple[Any, ...], Kernel] = field(default_factory=dict, compare=False, repr=False)

    def at(self, **types: torch.dtype) -> Kernel:
        """The kernel for these dtypes, the same object for the same ones."""
        key = tuple(types.items())
        if (kernel := self._made.get(key)) is None:
            kernel = self._made[key] = Kernel(self, types)
        return kernel


class Kernel:
    """A kernel whose dtypes are settled; it is compiled for a device at its first launch there.

    Raises:
        DomainError: there is no such instance: a dtype is none of Metal's.
    """

    def __init__(self, package: Package, types: dict[str, torch.dtype]) -> None:
        unknown = [f"{v}={t}" for v, t in types.items() if t not in NAMES]
        if unknown:
            msg = f"{package.host_name}: no kernel for {', '.join(unknown)}"
            raise DomainError(msg, fix=f"dtypes are {', '.join(map(str, NAMES))}")
        self.package = package
        self.name = package.host_name.format(**{v: NAMES[t] for v, t in types.items()})
        self.arguments = tuple(Argument.parse(text) for text in package.args)
        self._dtypes = tuple(
            (types.get(a.type) or _DTYPES[a.type]) if a.way else None for a in self.arguments
        )
        self._casts = {
            i: cast for i, a in enumerate(self.arguments) if not a.way and (cast := _CASTS[a.type])
        }
        self._partial = any(a.way == "into" for a in self.arguments)
        self._written = tuple(i for i, a in enumerate(self.arguments) if a.way in {"out", "inout"})
        self._ready: dict[str, tuple[Backend, Any, Function, int]] = {}

    def __call__(
        self, *args: Tensor | float | None, threads: tuple[int, ...], group: tuple[int, ...]
    ) -> None:
        """Launches it.

        Args:
            args: tensors and numbers in the order of the buffers; None for a tensor that the
                kernel does not touch.
            threads: how many in each dim of the grid, whole and ragged groups together.
            group: how many of them make a threadgroup.

        Raises:
            DomainError: an argument is not what the kernel reads; or there are too many threads.
            PluginBroken: it does not compile, or did what it must not (``emulated``).
        """
        first = args[0]
        if not isinstance(first, Tensor):
            raise DeclarationError(f"{self.name}: its first argument is no tensor", fix="order")
        where = first.device.type
        backend, library, function, most = self._ready.get(where) or self._compiled(where)
        given = self._fitting(args, first)
        self._check_launch(most, threads, group)
        written = None
        if not self._partial:
            tensors = [args[i] for i in self._written]
            written = sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor))
        launch = {"threads": threads, "group_size": group, "arg_casts": self._casts}
        backend.launch(library, function, given, launch, (written, self.package.divergent))

    def most_threads(self, device: torch.device) -> int:
        """The largest group that this kernel can be launched with on a device."""
        return (self._ready.get(device.type) or self._compiled(device.type))[3]

    def _fitting(self, args: Sequence[Any], first: Tensor) -> tuple[Any, ...]:
        """The arguments as the kernel reads them, absent ones replaced by the first."""
        if len(args) != len(self.arguments):
            msg = f"{self.name} takes {len(self.arguments)} arguments, not {len(args)}"
            raise DeclarationError(msg, fix=", ".join(self.package.args))
        given: list[Any] = []
        for value, declared, dtype in zip(args, self.arguments, self._dtypes, strict=True):
            if dtype is None:
                given.append(_number(self.name, declared, value))
            elif value is None:
                given.append(first)
            elif value.dtype is not dtype or value.device != first.device:
                what = f"{value.dtype} on {value.device}"
                msg = f"{self.name}: {declared.name} is {what}, not {dtype} on {first.device}"
                raise DomainError(msg, fix="bind the operator: it takes another implementation")
            else:
                given.append(value)
        return tuple(given)

    def _check_launch(self, most: int, threads: tuple[int, ...], group: tuple[int, ...]) -> None:
        """Refuses what the chip has no room for, before anything is launched."""
        if (size := math.prod(group)) > most or size < 1:
            msg = f"{self.name}: a threadgroup of {group} threads, at most {most} fit"
            raise DomainError(msg, fix="launch smaller groups")
        if len(threads) != len(group) or min(threads) < 1 or max(threads) > _MOST_THREADS:
            msg = f"{self.name}: a grid of {threads} threads in groups of {group}"
            raise DomainError(msg, fix=f"1 to {_MOST_THREADS} threads in each of their dims")

    def _compiled(self, where: str) -> tuple[Backend, Any, Function, int]:
        """The kernel on a type of device, held against what its chip has room for."""
        backend = backend_of(where)
        limits = backend.limits()
        library = library_of(self.package.folder, self.package.source, where)
        try:
            function: Function = getattr(library, self.name)
        except (AttributeError, RuntimeError) as error:  # the latter is torch's
            msg = f"{self.package.source} has no kernel {self.name!r}"
            raise PluginBroken(msg, fix="instantiate it there with that host_name") from error
        if len(self.arguments) > limits.buffers:
            msg = f"{self.name} has {len(self.arguments)} buffers"
            raise DeclarationError(msg, fix=f"at most {limits.buffers}")
        if (has := function.static_thread_group_memory_length) > limits.threadgroup_bytes:
            msg = f"{self.name}: {has} bytes of threadgroup memory"
            raise DomainError(msg, fix=f"this chip has {limits.threadgroup_bytes} a group")
        most = min(limits.threads, function.max_threads_per_threadgroup)
        found = self._ready[where] = backend, library, function, most
        return found


def _number(name: str, declared: Argument, value: Any) -> float:
    if declared.type == "float":
        return float(value)
    low, high = _RANGES[declared.type]
    if not low <= value <= high:
        msg = f"{name}: {declared.name} is {value}, beyond {declared.type} as torch passes it"
        raise DomainError(msg, fix=f"{low} to {high}: split the call")
    return int(value)


def library_of(folder: Path, source: str, where: str) -> Any:
    """The compiled file of a folder, for a type of device.

    Raises:
        PluginBroken: it does not compile; it is not tried again.
    """
    found = _compiled_once(folder, source, where)
    if isinstance(found, PluginBroken):
        raise found
    return found


@cache
def _compiled_once(folder: Path, source: str, where: str) -> Any:
    """The library, or the error: a compiler's second answer would be the first one."""
    backend = backend_of(where)
    try:
        return backend.compile(text_of(folder / source), source)
    except PluginBroken as error:
        return error.with_traceback(None)


def text_of(path: Path) -> str:
    """A source in which the files that it includes by name stand in their places.

    torch compiles one text, and knows no folder. Lines keep the numbers of their files.
    """
    text = path.read_text(encoding="utf-8")

    def inserted(found: re.Match[str]) -> str:
        line = text.count("\n", 0, found.start()) + 2
        inner = text_of(path.parent / found[1]).rstrip("\n")
        return f'#line 1 "{found[1]}"\n{inner}\n#line {line} "{path.name}"'

    return _INCLUDE.sub(inserted, text)
