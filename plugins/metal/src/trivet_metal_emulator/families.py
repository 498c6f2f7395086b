"""What the GPU families of Apple allow, from Apple's Metal feature set tables.

Only what a launch can break is kept. All families of the Mac, Apple7 and later, have simdgroups of
32 lanes, sums and matrices of them, and threadgroups of 1024 threads with 32 KiB of memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from trivet_metal_emulator.errors import LaunchError

__all__ = ["FAMILIES", "Family", "family"]

KIB = 1024


@dataclass(frozen=True)
class Family:
    """The limits of one GPU family."""

    name: str
    gpu_family: int
    """n of MTLGPUFamilyApple`n`."""
    language: int = 310
    """`__METAL_VERSION__` that kernels see: MSL 3.1 of macOS 14, the first with bfloat."""
    threads: int = 1024
    threadgroup_bytes: int = 32 * KIB
    buffers: int = 31


FAMILIES = {
    one.name: one
    for one in (
        Family("m1", 7),
        Family("m2", 8),
        Family("m3", 9),
        Family("m4", 9),
        Family("m5", 10),
    )
}
_ALIASES = {"apple7": "m1", "apple8": "m2", "apple9": "m3", "apple10": "m5"}


def family(name: str) -> Family:
    """The family of that name: `m1`, or `apple7`.

    Raises:
        LaunchError: there is none.
    """
    found = FAMILIES.get(_ALIASES.get(name.lower(), name.lower()))
    if found is None:
        known = ", ".join([*FAMILIES, *_ALIASES])
        raise LaunchError(f"no GPU family is called {name!r}", fix=f"one of {known}")
    return found
