"""Which line of the text an address of a built library comes from: its DWARF 4 line table.

Written here because neither ziglang nor a small CI image has addr2line, and findings need lines.
"""

from __future__ import annotations

import bisect
import struct
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["LineTable"]

_SHT_NULL = 0


def _uleb(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _sleb(data: bytes, at: int) -> tuple[int, int]:
    start = at
    value, at = _uleb(data, at)
    bits = 7 * (at - start)
    return (value - (1 << bits) if value >> (bits - 1) & 1 else value), at


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at)
    return data[at:end].decode("utf-8", "replace"), end + 1


def _section(data: bytes, wanted: str) -> bytes:
    """One section of a 64-bit little-endian ELF file."""
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    headers = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
    strings = headers[names][4]
    for name, kind, _, _, offset, length in headers:
        if kind != _SHT_NULL and _text(data, strings + name)[0] == wanted:
            return data[offset : offset + length]
    return b""


@dataclass
class _State:
    address: int = 0
    file: int = 1
    line: int = 1


@dataclass
class LineTable:
    """Addresses of a library with their file and line."""

    starts: list[int] = field(default_factory=list)
    places: list[tuple[str, int] | None] = field(default_factory=list)

    @classmethod
    def read(cls, library: Path) -> LineTable:
        """Reads the table of a library."""
        data = _section(library.read_bytes(), ".debug_line")
        rows: list[tuple[int, tuple[str, int] | None]] = []
        at = 0
        while at < len(data):
            (length,) = struct.unpack_from("<I", data, at)
            rows += _unit(data[at + 4 : at + 4 + length])
            at += 4 + length
        # of two rows at one address the later counts, but the end of a sequence never hides a start
        rows.sort(key=lambda row: (row[0], row[1] is not None))
        return cls([address for address, _ in rows], [place for _, place in rows])

    def place(self, address: int) -> tuple[str, int] | None:
        """File and line of the instruction that holds the address."""
        i = bisect.bisect_right(self.starts, address) - 1
        while i >= 0:
            place = self.places[i]
            if place is None:
                return None
            if place[1]:  # line 0: the compiler made it; the line before is the nearest
                return place
            i -= 1
        return None


def _unit(data: bytes) -> list[tuple[int, tuple[str, int] | None]]:
    """The rows of one program."""
    version, header = struct.unpack_from("<HI", data, 0)
    if version != 4:
        return []
    program = 6 + header
    shortest, _, _, base, width, opcodes = struct.unpack_from("<BBBbBB", data, 6)
    lengths = data[12 : 12 + opcodes - 1]
    at = 12 + opcodes - 1
    while data[at]:
        _, at = _text(data, at)
    at += 1
    files = [""]
    while data[at]:
        name, at = _text(data, at)
        files.append(name)
        for _ in range(3):
            _, at = _uleb(data, at)
    return _execute(data, program, files, (shortest, base, width, opcodes, lengths))


def _execute(
    data: bytes, at: int, files: list[str], header: tuple[int, int, int, int, bytes]
) -> list[tuple[int, tuple[str, int] | None]]:
    shortest, base, width, opcodes, lengths = header
    rows: list[tuple[int, tuple[str, int] | None]] = []
    state = _State()

    def emit() -> None:
        name = files[state.file] if state.file < len(files) else ""
        rows.append((state.address, (name, state.line)))

    while at < len(data):
        code = data[at]
        at += 1
        if code >= opcodes:
            state.address += (code - opcodes) // width * shortest
            state.line += base + (code - opcodes) % width
            emit()
        elif code == 0:
            length, at = _uleb(data, at)
            if data[at] == 1:  # end of a sequence
                rows.append((state.address, None))
                state = _State()
            elif data[at] == 2:
                (state.address,) = struct.unpack_from("<Q", data, at + 1)
            at += length
        elif code == 1:
            emit()
        elif code == 2:
            step, at = _uleb(data, at)
            state.address += step * shortest
        elif code == 3:
            step, at = _sleb(data, at)
            state.line += step
        elif code == 4:
            state.file, at = _uleb(data, at)
        elif code == 8:
            state.address += (255 - opcodes) // width * shortest
        elif code == 9:
            state.address += struct.unpack_from("<H", data, at)[0]
            at += 2
        else:
            for _ in range(lengths[code - 1]):
                _, at = _uleb(data, at)
    return rows
