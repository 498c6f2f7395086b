"""Reads what Triton compiled for NVIDIA GPUs: PTX as text, and the resources of the binary.

Widths of accesses and the instructions that matter are read from PTX, which the assembler keeps;
registers and stack are its own and come from ``cuobjdump`` of Triton's wheel.
"""

from __future__ import annotations

import re
import struct
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from trivet.errors import PluginBroken
from trivet.kernels.triton import CodeFacts


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """What one multiprocessor holds at once; 65,536 registers everywhere."""

    threads: int
    programs: int
    shared: int


_KIB: Final = 1 << 10
# from the table of compute capabilities in NVIDIA's programming guide
_MULTIPROCESSORS: Final = {
    80: Multiprocessor(2048, 32, 164 * _KIB),
    86: Multiprocessor(1536, 16, 100 * _KIB),
    89: Multiprocessor(1536, 24, 100 * _KIB),
    90: Multiprocessor(2048, 32, 228 * _KIB),
    100: Multiprocessor(2048, 32, 228 * _KIB),
    120: Multiprocessor(1536, 24, 100 * _KIB),
}
_REGISTERS: Final = 1 << 16
_RESERVED: Final = _KIB  # of shared memory, for each program on a multiprocessor
_WARP: Final = 32
_A_WARPS_GRAIN: Final = 256  # registers of a warp come in such pieces

_ACCESS: Final = re.compile(r"\b(ld|st)\.(?:[a-z]+\.)*global((?:[.:]+\w+)*)")
_COPY: Final = re.compile(
    r"\bcp\.async\.c[ag]\.[^;\[]*\[[^\]]*\],\s*\[[^\]]*\],\s*(0x[0-9a-fA-F]+|\d+)"
)
_COUNT: Final = re.compile(r"\.v([248])\b")
_BITS: Final = re.compile(r"\.[busf](8|16|32|64|128)\b")
_INSTRUCTIONS: Final = {
    "mma": re.compile(r"\bmma\.sync\b"),
    "wgmma": re.compile(r"\bwgmma\.mma_async\b"),
    "tcgen05": re.compile(r"\btcgen05\.mma\b"),
    "async_copy": re.compile(r"\bcp\.async\.c[ag]\b"),
    "tma": re.compile(r"\bcp\.async\.bulk\.tensor\b"),
    "ldmatrix": re.compile(r"\bldmatrix\b"),
    "atomic": re.compile(r"\b(?:atom|red)\.(?:[a-z]+\.)*global\b"),
}
_RESOURCES: Final = re.compile(r"\bREG:(\d+) STACK:(\d+)")


def read(compiled: Any, target: Any) -> CodeFacts:
    """Facts of a ``CompiledKernel`` for one of ``TARGETS``.

    ``tensor_core`` stands beside ``mma``, ``wgmma`` and ``tcgen05``, whichever the architecture
    has. Shared memory is what the kernel asks for, without what the driver adds.

    Raises:
        PluginBroken: ``cuobjdump`` is missing or says something else.
    """
    text, binary, metadata = compiled.asm["ptx"], compiled.asm["cubin"], compiled.metadata
    found = {name: len(pattern.findall(text)) for name, pattern in _INSTRUCTIONS.items()}
    found["tensor_core"] = found["mma"] + found["wgmma"] + found["tcgen05"]
    widths: dict[str, Counter[int]] = {"ld": Counter(), "st": Counter()}
    for kind, width in accesses(text):
        widths[kind][width] += 1
    registers, stack = resources(binary)
    threads = metadata.num_warps * _WARP
    return CodeFacts(
        threads=threads,
        shared=metadata.shared,
        registers=registers,
        stack=stack,
        occupancy=occupancy(target.arch, threads, registers, metadata.shared),
        loads=widths["ld"],
        stores=widths["st"],
        instructions={name: count for name, count in found.items() if count},
        code=code_bytes(binary),
    )


def accesses(text: str) -> Iterator[tuple[str, int]]:
    """``ld`` or ``st`` and the bytes of each access of global memory in PTX.

    Asynchronous copies of single threads count as loads; those of whole tiles (``tma``) do not.
    """
    for size in _COPY.findall(text):
        yield "ld", int(size, 0)
    for kind, qualifiers in _ACCESS.findall(text):
        bits = _BITS.search(qualifiers)
        if bits:
            count = _COUNT.search(qualifiers)
            yield kind, int(bits[1]) // 8 * (int(count[1]) if count else 1)


def resources(binary: bytes) -> tuple[int, int]:
    """Registers and bytes of stack of one thread.

    Raises:
        PluginBroken: ``cuobjdump`` is missing or says something else.
    """
    tool = import_module("triton").knobs.nvidia.cuobjdump.path
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        command = [tool, "--dump-resource-usage", file.name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
        except (OSError, subprocess.CalledProcessError) as error:
            msg = f"{tool} does not read a binary of Triton's: {error}"
            raise PluginBroken(
                msg, fix="install triton again: its wheel brings the tool"
            ) from error
    match = _RESOURCES.search(done.stdout)
    if match is None:
        msg = f"{tool} says nothing of registers: {' '.join(done.stdout.split())[:200]}"
        raise PluginBroken(msg, fix="install a version of triton that this package names")
    return int(match[1]), int(match[2])


def occupancy(arch: int, threads: int, registers: int, shared: int) -> float | None:
    """Share of a multiprocessor's threads that fit; None for an architecture without limits."""
    has = _MULTIPROCESSORS.get(arch)
    if has is None:
        return None
    warps = -(-threads // _WARP)
    a_warp = -(-registers * _WARP // _A_WARPS_GRAIN) * _A_WARPS_GRAIN
    by_registers = _REGISTERS // max(a_warp, 1) // warps
    by_shared = has.shared // (shared + _RESERVED)
    programs = min(has.threads // (warps * _WARP), has.programs, by_registers, by_shared)
    return programs * warps * _WARP / has.threads


def code_bytes(binary: bytes) -> int:
    """Bytes of machine code: sections of a 64-bit ELF whose names start with ``.text``."""
    table, entry, count, strings = (
        *struct.unpack_from("<Q", binary, 0x28), *struct.unpack_from("<3H", binary, 0x3A)
    )  # fmt: skip
    sections = [
        (struct.unpack_from("<I", binary, at)[0], *struct.unpack_from("<2Q", binary, at + 0x18))
        for at in range(table, table + entry * count, entry)
    ]
    names = sections[strings][1]
    return sum(size for name, _, size in sections if binary.startswith(b".text", names + name))
