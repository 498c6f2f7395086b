"""The compiled library: found through the record of its build and loaded once, or why not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, NoReturn

import torch

from trivet.errors import DomainError, OutOfMemory, PluginBroken

PACKAGE: Final = Path(__file__).parent
KERNELS: Final = PACKAGE / "kernels"
RECORD: Final = PACKAGE / "_build.json"

LEVELS: Final = ("baseline", "avx2", "avx512", "neon")
"""Names of the levels, from the plainest to the widest of x86-64, then that of aarch64."""

_SHARED: Final = (
    "simd.h",
    "pair.h",
    "exponential.h",
    "table.h",
    "level.cpp",
    "tensor.h",
    "library.h",
    "overlap.h",
    "isa.h",
    "binding.cpp",
)
_PREFIX: Final = "trivet_cpu domain: "
_MEMORY: Final = re.compile(r"trivet_cpu memory: (\d+) bytes: (.*)")
_REBUILD: Final = "install a C++ compiler, then: pip install --no-build-isolation trivet-cpu"


@dataclass(frozen=True)
class Library:
    """What the build left, and whether it could be loaded.

    Args:
        record: contents of ``_build.json``, empty when there is none.
        reason: why no kernel can be used; empty when they can.
    """

    record: dict[str, Any]
    reason: str

    @property
    def path(self) -> Path | None:
        """The file, when it is loaded."""
        return None if self.reason else PACKAGE / str(self.record["library"])

    @property
    def note(self) -> str:
        """One sentence for ``trivet doctor``."""
        if self.reason:
            return f"no kernels of trivet-cpu: {self.reason}; {_REBUILD}"
        levels = ", ".join(sorted(self.record["levels"], key=LEVELS.index))
        return f"kernels of trivet-cpu: levels {levels}, built by {self.record['compiler']}"


@cache
def library() -> Library:
    """Loads the library; asked again, gives the same answer."""
    try:
        record = json.loads(RECORD.read_text(encoding="utf-8"))
    except OSError:
        return Library({}, "the package was not built")
    if not record["built"]:
        return Library(record, str(record["reason"]))
    try:
        load: Callable[[Path], None] = torch.ops.load_library
        load(PACKAGE / record["library"])
    except OSError as problem:
        return Library(record, f"{record['library']} does not load: {problem}")
    return Library(record, "")


def op(name: str) -> Callable[..., Any]:
    """One operator of the library, without the look-up of its overload at each call.

    The builtin below the overload is returned where torch shows it: the overload's own ``__call__``
    only passes its arguments on, which costs a short call a fifth of its time.

    Raises:
        PluginBroken: the library is not there.
    """
    found = library()
    if found.reason:
        msg = f"trivet-cpu has no kernel {name!r} here: {found.reason}"
        raise PluginBroken(msg, fix=_REBUILD)
    overload: Callable[..., Any] = getattr(
        getattr(torch.ops, found.record["namespace"]), name
    ).default
    return getattr(overload, "_op", overload)


BIND: Final = (
    "bind the operator instead of calling the kernel; where it is bound, a promised fact is not "
    "true of this call: TRIVET_CHECK=1 names it"
)
"""What to do about arguments outside a kernel's domain."""


def sources(*names: str) -> tuple[str, ...]:
    """The files that a family's kernels are made of, its own and the shared ones.

    As a module of a folder of this package names them, ``compiled/`` for one.
    """
    path = library().path
    built = () if path is None else (path.name,)
    return tuple(f"../{n}" for n in (*(f"kernels/{n}" for n in (*names, *_SHARED)), *built))


def refuse(error: RuntimeError) -> NoReturn:
    """Raises a kernel's refusal as the error that it is, and any other error as it came.

    Raises:
        DomainError: the kernel, or torch's dispatcher, does not take these arguments.
        OutOfMemory: there is no memory for a result.
    """
    text = str(error)
    if text.startswith(_PREFIX):
        what = text.removeprefix(_PREFIX).splitlines()[0]
        name = what.partition(":")[0]
        operator = name if name.isidentifier() else ""
        raise DomainError(what, operator=operator, fix=BIND) from error
    if failed := _MEMORY.match(text):
        size, name = int(failed[1]), failed[2]
        msg = f"{name}: no memory for a result of {size} bytes"
        raise OutOfMemory(msg, requested_bytes=size) from error
    if isinstance(error, NotImplementedError):  # torch's word for a tensor of another device
        what = text.splitlines()[0]
        raise DomainError(what, fix="pass dense tensors of the CPU") from error
    raise error


def refuse_layout(layout: str) -> NoReturn:
    """Raises for an order of cache blocks that no kernel here reads."""
    msg = f"the layout of the caches is {layout!r}"
    raise DomainError(msg, fix="use 'NHD', [blocks, block_size, kv_heads, head_dim]")
