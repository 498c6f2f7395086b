"""Reads what Triton compiled for AMD GPUs: its assembly, with the metadata that LLVM writes.

Registers, spills and scratch memory come from the metadata; widths of accesses and the
instructions that matter from the text. Occupancy is what registers, and the memory that a
workgroup shares, leave room for; LLVM's own number knows nothing of that memory, which Triton asks
for at the launch.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from trivet.errors import PluginBroken
from trivet.kernels.triton import CodeFacts
from trivet_rocm.discovery.architecture import KNOWN

_FIELD: Final = re.compile(r"(?m)^\s*-?\s*\.([a-z_]+):\s+(\d+)\s*$")
_OCCUPANCY: Final = re.compile(r";\s*Occupancy:\s*(\d+)")
_BYTES: Final = re.compile(r";\s*codeLenInByte\s*=\s*(\d+)")
_ACCESS: Final = re.compile(r"(?m)^\s+(?:buffer|global|flat)_(load|store)_(\w+)")
_WIDTHS: Final = (  # of the rest of an access's name; the first that fits counts
    (re.compile(r"(?:lds_)?dwordx4|(?:lds_)?b128"), 16),
    (re.compile(r"(?:lds_)?dwordx3|(?:lds_)?b96"), 12),
    (re.compile(r"(?:lds_)?dwordx2|(?:lds_)?b64"), 8),
    (re.compile(r"(?:lds_)?dword|(?:lds_)?b32"), 4),
    (re.compile(r".*(?:short|[ui]16|b16)"), 2),
    (re.compile(r".*(?:byte|[ui]8|b8)"), 1),
)
_INSTRUCTIONS: Final = {
    "mfma": re.compile(r"(?m)^\s+v_(?:s?mfma|smfmac)\w*"),
    "wmma": re.compile(r"(?m)^\s+v_s?wmma\w*"),
    "buffer_load": re.compile(r"(?m)^\s+buffer_load_\w+"),
    "global_load": re.compile(r"(?m)^\s+(?:global|flat)_load_\w+"),
    "scratch": re.compile(r"(?m)^\s+scratch_(?:load|store)\w*"),
    "lds": re.compile(r"(?m)^\s+ds_(?:read|write|load|store)\w*"),
    "fp8_convert": re.compile(r"(?m)^\s+v_cvt_(?:scalef32_)?(?:pk|sr)_(?:fp8|bf8)_f32\w*"),
    "bf16_convert": re.compile(r"(?m)^\s+v_cvt_pk_bf16_f32\w*"),
    "atomic": re.compile(r"(?m)^\s+(?:buffer|global|flat)_atomic\w*"),
    "barrier": re.compile(r"(?m)^\s+s_barrier\w*"),
}
_REQUIRED: Final = ("vgpr_count", "sgpr_count", "vgpr_spill_count", "private_segment_fixed_size",
                    "wavefront_size")  # fmt: skip


def read(compiled: Any, target: Any) -> CodeFacts:
    """Facts of a ``CompiledKernel`` for one of ``TARGETS``.

    ``matrix`` stands beside ``mfma`` and ``wmma``, whichever the architecture has. ``counts`` has
    the architecture's own words: ``vgpr``, ``agpr``, ``sgpr``, ``vgpr_spills``, ``sgpr_spills``,
    ``waves`` of a SIMD by registers alone, and ``wavefront``.

    Raises:
        PluginBroken: the assembly has no metadata of this form, or is for another wavefront.
    """
    text, metadata = compiled.asm["amdgcn"], compiled.metadata
    has = fields(text)
    if has["wavefront_size"] != target.warp_size:
        msg = f"the code is for wavefronts of {has['wavefront_size']}, not {target.warp_size}"
        raise PluginBroken(msg, fix="Triton and this package differ about the architecture")
    found = {name: len(pattern.findall(text)) for name, pattern in _INSTRUCTIONS.items()}
    found["matrix"] = found["mfma"] + found["wmma"]
    widths: dict[str, Counter[int]] = {"load": Counter(), "store": Counter()}
    for kind, width in accesses(text):
        widths[kind][width] += 1
    waves = _number(_OCCUPANCY, text)
    counts = {
        "vgpr": has["vgpr_count"],
        "agpr": has.get("agpr_count", 0),
        "sgpr": has["sgpr_count"],
        "vgpr_spills": has["vgpr_spill_count"],
        "sgpr_spills": has.get("sgpr_spill_count", 0),
        "wavefront": has["wavefront_size"],
    }
    if waves is not None:
        counts["waves"] = waves
    return CodeFacts(
        threads=metadata.num_warps * target.warp_size,
        shared=metadata.shared,
        registers=has["vgpr_count"],
        stack=has["private_segment_fixed_size"],
        occupancy=occupancy(str(target.arch), metadata.num_warps, waves, metadata.shared),
        loads=widths["load"],
        stores=widths["store"],
        instructions={name: count for name, count in found.items() if count},
        code=_number(_BYTES, text),
        counts=counts,
    )


def fields(text: str) -> dict[str, int]:
    """Numbers of the metadata by name, of the one kernel in a text.

    Raises:
        PluginBroken: one that is needed is missing.
    """
    found: dict[str, int] = {}
    for name, number in _FIELD.findall(text):
        found.setdefault(name, int(number))
    if missing := [name for name in _REQUIRED if name not in found]:
        msg = f"the assembly has no {', '.join(missing)}: {' '.join(text.split())[:120]}"
        raise PluginBroken(msg, fix="install a version of triton that this package names")
    return found


def accesses(text: str) -> Iterator[tuple[str, int]]:
    """``load`` or ``store`` and the bytes of each access of global memory."""
    for kind, rest in _ACCESS.findall(text):
        width = next((size for pattern, size in _WIDTHS if pattern.match(rest)), None)
        if width is not None:
            yield kind, width


def occupancy(arch: str, warps: int, waves: int | None, shared: int) -> float | None:
    """Share of a unit's wavefronts that fit; None for an architecture without limits.

    Args:
        arch: its name.
        warps: of a program.
        waves: of a SIMD, as registers allow; None where that is unknown.
        shared: bytes that a program shares.
    """
    has = KNOWN.get(arch)
    if has is None or waves is None:
        return None
    programs = waves * has.simds // warps
    if shared:
        programs = min(programs, (has.unit_lds_kib << 10) // shared)
    return min(programs * warps, has.waves) / has.waves


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    return int(match[1]) if match else None
