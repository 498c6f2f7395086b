"""Kernels of a text, called as torch.mps.compile_shader's are."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from trivet_metal_emulator.arguments import Argument, Casts, grid_of, read_arguments
from trivet_metal_emulator.building import Built, build
from trivet_metal_emulator.compilers import Compiler, require
from trivet_metal_emulator.errors import Finding, KernelFault, LaunchError
from trivet_metal_emulator.families import Family
from trivet_metal_emulator.families import family as family_of
from trivet_metal_emulator.launching import Limits, launch
from trivet_metal_emulator.loading import Runtime
from trivet_metal_emulator.requests import Request
from trivet_metal_emulator.stats import Stats
from trivet_metal_emulator.translation import Entry

__all__ = ["Kernel", "Library", "compile_shader"]

MOST_ACCESSES = 1 << 28
"""A loop without end is stopped within a minute; no kernel on small tensors comes near."""


class Kernel:
    """One kernel of a library; call it."""

    def __init__(self, library: Library, entry: Entry, number: int) -> None:
        self._library = library
        self._number = number
        self.entry = entry
        self.static_thread_group_memory_length = 0
        """Bytes of threadgroup memory; known once the kernel ran."""

    @property
    def max_threads_per_threadgroup(self) -> int:
        """The most threads of a group."""
        most = self._library.family.threads
        return min(self.entry.max_threads or most, most)

    @property
    def thread_execution_width(self) -> int:
        """Lanes of a simdgroup."""
        return 32

    def __call__(
        self,
        *args: Argument,
        threads: object = None,
        group_size: object = None,
        arg_casts: Casts = None,
        error_buf_idx: int | None = None,
    ) -> None:
        """Runs the kernel; argument i is buffer(i).

        Args:
            args: tensors of the CPU, numbers, lists of either.
            threads: threads in all, not groups; by default one an element of the first tensor.
            group_size: threads of a group.
            arg_casts: types of numbers, for all or by index; int is int64 and float is float32.
            error_buf_idx: for torch's own error buffers, which are not emulated.

        Raises:
            LaunchError: these arguments cannot be launched.
            KernelFault: the kernel did what it must not do.
        """
        if error_buf_idx is not None:
            raise LaunchError("error_buf_idx is not emulated")
        self._check_parameters()
        if len(args) > self._library.family.buffers:
            raise LaunchError(f"{len(args)} arguments, and a kernel has 31 buffers")
        bound = read_arguments(args, arg_casts)
        grid = grid_of(threads, group_size, args, self.max_threads_per_threadgroup)
        library = self._library
        with library.lock:
            stats, findings = launch(
                library.runtime, self.entry, self._number, bound, grid,
                checked=library.check, seed=library.seed, limits=library.limits,
            )  # fmt: skip
            library.last = stats
        self.static_thread_group_memory_length = stats.threadgroup_bytes
        if findings:
            count = f"{len(findings)} problem" + ("s" if len(findings) > 1 else "")
            raise KernelFault(f"{self.entry.name}: {count}", findings=findings)

    def _check_parameters(self) -> None:
        for p in self.entry.parameters:
            if p.kind == "threadgroup":
                raise LaunchError(
                    f"{p.name} is [[threadgroup({p.index})]], and torch gives such memory no size",
                    fix="declare an array in the kernel",
                )
            if p.kind not in {"buffer", "position"}:
                raise LaunchError(
                    f"{p.name} has the attribute {p.kind}, which is not emulated",
                    fix="buffers and positions of threads are",
                )


class Library:
    """The kernels of one text as attributes, by the names that a host uses."""

    def __init__(
        self,
        built: Built,
        *,
        check: bool,
        seed: int,
        family: Family,
        max_accesses: int = MOST_ACCESSES,
    ) -> None:
        self.check = check
        self.seed = seed
        self.family = family
        self.limits = Limits(family.threadgroup_bytes, max_accesses)
        self.path: Path = built.path
        self.warnings: tuple[Finding, ...] = built.warnings
        self.runtime = Runtime(built.path)
        self.lock = threading.Lock()
        self.last: Stats | None = None
        """Counters of the last launch."""
        self.kernels: dict[str, Kernel] = {
            entry.name: Kernel(self, entry, i) for i, entry in enumerate(built.kernels)
        }

    def __getattr__(self, name: str) -> Kernel:
        kernels: dict[str, Kernel] = self.__dict__.get("kernels", {})
        if name in kernels:
            return kernels[name]
        known = ", ".join(sorted(kernels)) or "none"
        raise AttributeError(f"no kernel {name!r}; there are: {known}")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.kernels]


def compile_shader(
    source: str,
    *,
    check: bool = True,
    seed: int = 0,
    family: str = "m1",
    name: str = "kernels.metal",
    cxx: str | Compiler | None = None,
    language: int | None = None,
    constants: Mapping[str | int, float] | None = None,
    lint: bool = True,
    include: Sequence[str | Path] = (),
    max_accesses: int = MOST_ACCESSES,
) -> Library:
    """Compiles Metal text for this machine, as torch.mps.compile_shader does for a Mac.

    Args:
        source: the text of a `.metal` file.
        check: whether races, bounds, alignment, uninitialised reads and barriers are checked.
        seed: 0 runs threads and groups in order, others in an order of their own.
        family: whose limits hold: `m1`, `m2`, `apple9`, ...
        name: the file's name in findings.
        cxx: a compiler; by default the one that `compiler()` finds.
        language: `__METAL_VERSION__`; by default 310, of macOS 14.
        constants: values of function constants by name or index, which torch cannot set.
        lint: whether what Apple's compiler refuses is refused.
        include: folders of headers, which torch would not read.
        max_accesses: accesses to memory after which a launch is stopped.

    Raises:
        NoCompiler: nothing can compile here.
        CompileError: the text is no Metal, or has no such function constant.
        LaunchError: an argument is none of those.
        LintError: it compiles here alone.
    """
    if not isinstance(source, str):
        raise LaunchError(f"the source is a {type(source).__name__}", fix="the text of a file")
    if language is not None and language < 100:
        raise LaunchError(f"language={language} is no version of Metal", fix="310 for 3.1")
    for place in include:
        if not Path(place).is_dir():
            raise LaunchError(f"include={str(place)!r} is no folder")
    chosen = cxx if isinstance(cxx, Compiler) else require(cxx)
    limits = family_of(family)
    listed = tuple(sorted((constants or {}).items(), key=str))
    request = Request(
        source, name, check, language or limits.language, listed, lint, tuple(map(str, include))
    )
    built = build(chosen, request)
    return Library(built, check=check, seed=seed, family=limits, max_accesses=max_accesses)
