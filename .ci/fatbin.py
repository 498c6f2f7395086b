"""Thins the machine code in a shared library to one architecture, so that it can be carried.

A fat binary is a header and, for each architecture, an entry with its own header and payload. The
driver reads the headers and takes the entry that fits best; the payloads of the others are never
looked at. Those are overwritten with zeros, which compress to nothing; nothing is moved, so that
every address in the library stays right. Where a fat binary has no machine code for the
architecture, its intermediate code is kept, which the driver compiles.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

MAGIC = struct.pack("<I", 0xBA55ED50)
INTERMEDIATE, MACHINE = 1, 2
_HEADER = struct.Struct("<IHHQ")  # magic, version, bytes of this header, bytes that follow
_ENTRY = struct.Struct("<HHIQ")  # kind, version, bytes of this header, bytes of the payload
_ARCH_AT = 28


@dataclass(frozen=True)
class Entry:
    """Code of one architecture: 90 is sm_90 and sm_90a."""

    kind: int
    arch: int
    start: int
    end: int


def binaries(data: bytes | bytearray) -> Iterator[list[Entry]]:
    """The entries of each fat binary in a library."""
    at = data.find(MAGIC)
    while at >= 0:
        found, after = _entries(data, at)
        if found:
            yield found
        at = data.find(MAGIC, max(after, at + 4))


def _entries(data: bytes | bytearray, at: int) -> tuple[list[Entry], int]:
    """The entries of the fat binary that starts here; none where it only looks like one."""
    if at % 8 or at + _HEADER.size > len(data):
        return [], at
    _, version, size, follow = _HEADER.unpack_from(data, at)
    place, end = at + size, at + size + follow
    if version != 1 or size != _HEADER.size or end > len(data):
        return [], at
    found = []
    while place < end:
        kind, _, header, payload = _ENTRY.unpack_from(data, place)
        (arch,) = struct.unpack_from("<I", data, place + _ARCH_AT)
        start = place + header
        if kind not in (INTERMEDIATE, MACHINE) or header < _ENTRY.size or start + payload > end:
            return [], at
        found.append(Entry(kind, arch, start, start + payload))
        place = start + payload
    return found, end


def thinned(data: bytes, arch: int) -> tuple[bytes, dict[str, int]]:
    """The library with the code of one architecture, and how many bytes were kept and cleared."""
    whole, counts = bytearray(data), {"kept": 0, "cleared": 0}
    for entries in binaries(data):
        exact = [e for e in entries if e.kind == MACHINE and e.arch == arch]
        older = [e for e in entries if e.kind == INTERMEDIATE and e.arch <= arch]
        keep = exact or older[-1:]
        for entry in entries:
            counts["kept" if entry in keep else "cleared"] += entry.end - entry.start
            if entry not in keep:
                whole[entry.start : entry.end] = bytes(entry.end - entry.start)
    return bytes(whole), counts
