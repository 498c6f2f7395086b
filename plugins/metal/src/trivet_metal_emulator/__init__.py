"""Runs Metal compute kernels on the CPU, with the surface of torch.mps.compile_shader.

It compiles `.metal` text with clang, runs one fibre a thread with exact barriers and simdgroups,
and checks races, bounds, alignment, uninitialised reads and barriers, with file and line. It needs
torch and a clang, and nothing of trivet. It is no measure of speed.
"""

from __future__ import annotations

from trivet_metal_emulator.compilers import Compiler, compiler
from trivet_metal_emulator.errors import (
    CompileError,
    EmulatorError,
    Finding,
    KernelFault,
    LaunchError,
    LintError,
    NoCompiler,
)
from trivet_metal_emulator.families import FAMILIES, Family
from trivet_metal_emulator.library import Kernel, Library, compile_shader
from trivet_metal_emulator.stats import BufferTraffic, Stats

__all__ = [
    "FAMILIES",
    "BufferTraffic",
    "CompileError",
    "Compiler",
    "EmulatorError",
    "Family",
    "Finding",
    "Kernel",
    "KernelFault",
    "LaunchError",
    "Library",
    "LintError",
    "NoCompiler",
    "Stats",
    "compile_shader",
    "compiler",
]
