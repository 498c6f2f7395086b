"""Blocks in files: written whole or not at all, and checked when they come back."""

from __future__ import annotations

import json
import os
import re
import struct
import tempfile
import weakref
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch

from trivet.errors import DataCorrupt, MemoryFault
from trivet.memory.tiers import mapping
from trivet.memory.tiers.disk import new_folder, remove_folder
from trivet.plugins.describe import said, shown

MAGIC: Final = b"trivetKV"
VERSION: Final = 1
_HEAD: Final = struct.Struct("<8sIIQII")
"""Magic, version, bytes of facts, bytes of contents, CRC-32 of contents, of this head and facts."""

_NAME: Final = re.compile(r"[0-9A-Za-z_.-]{1,100}")


class BlockFiles:
    """Contents by name, one file each, in a folder that goes with this object.

    A file is a head (version, sizes, two checksums), facts as JSON (dtype, layout, whatever says
    how to read the contents) and the contents. It is written under another name, synchronised and
    renamed: under its own name it is whole, or was damaged later.

    Args:
        folder: where the folder is made; the system's folder for temporary files when None.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = new_folder("trivet-blocks-", folder)
        self._process = os.getpid()
        self._end = weakref.finalize(self, remove_folder, self.folder, os.getpid())

    def path(self, name: str) -> Path:
        """Where the contents of a name are.

        Raises:
            MemoryFault: the name is not one that every file system takes.
        """
        given: object = name
        if not isinstance(given, str) or not _NAME.fullmatch(given):
            raise MemoryFault(
                f"{shown(name)} cannot name a block's file", fix="letters, digits, _.-"
            )
        return self.folder / f"{name}.block"

    def write(self, name: str, contents: torch.Tensor, facts: Mapping[str, object]) -> None:
        """Stores contents, in place of earlier ones of that name.

        Args:
            name: what they are found by.
            contents: ``uint8`` ``[n]``, contiguous, of the host.
            facts: what must be equal when they come back; plain values.

        Raises:
            OutOfMemory: the medium is full; what was there before is still there.
            MemoryFault: any other failure of the system, contents or facts that no file takes,
                or this is a fork of the process that has the folder; with the same effect.
        """
        path, data, told = self.path(name), mapping.bytes_of(contents), refuse_odd_facts(facts)
        mapping.refuse_fork(self._process, self.folder)
        start = _HEAD.pack(MAGIC, VERSION, len(told), len(data), zlib.crc32(data), 0)[:-4]
        seal = struct.pack("<I", zlib.crc32(told, zlib.crc32(start)))
        with mapping.no_room(len(data), str(self.folder), "block file"):
            file, temporary = tempfile.mkstemp(dir=self.folder, suffix=".part")
            try:
                with os.fdopen(file, "wb", buffering=0) as out:
                    for part in (memoryview(start + seal + told), data):
                        _write_all(out.fileno(), part)
                    os.fsync(out.fileno())
                Path(temporary).replace(path)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise

    def read(self, name: str, into: torch.Tensor, facts: Mapping[str, object]) -> None:
        """Reads contents back.

        Args:
            name: what they were stored by.
            into: ``uint8`` ``[n]``, contiguous, of the host; undefined after an error.
            facts: what they were stored with.

        Raises:
            DataCorrupt: the file is cut, damaged, foreign, or of another version; it names it.
            FileNotFoundError: there is none of that name.
            MemoryFault: ``into`` is no such tensor.
        """
        path, view = self.path(name), mapping.bytes_of(into)
        with path.open("rb", buffering=0) as file:
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                raise _corrupt(path, f"its head has {len(head)} of {_HEAD.size} bytes")
            magic, version, told_bytes, nbytes, checksum, seal = _HEAD.unpack(head)
            if magic != MAGIC:
                raise _corrupt(path, "it is no file of blocks")
            size = os.fstat(file.fileno()).st_size
            if told_bytes + nbytes + _HEAD.size != size:
                why = f"it has {size} bytes, its head says {told_bytes + nbytes + _HEAD.size}"
                raise _corrupt(path, why)
            told = file.read(told_bytes)
            if zlib.crc32(told, zlib.crc32(head[:-4])) != seal:
                raise _corrupt(path, "the checksum of its head is wrong")
            if version != VERSION:
                raise _corrupt(path, f"it is of version {version}, this is {VERSION}")
            if told != refuse_odd_facts(facts):
                raise _corrupt(path, f"it holds {told.decode(errors='replace')}")
            if nbytes != len(view):
                raise _corrupt(path, f"it holds {nbytes} bytes, {len(view)} were asked for")
            done = 0
            while done < nbytes and (step := file.readinto(view[done:])):
                done += step
            if done < nbytes or zlib.crc32(view) != checksum:
                raise _corrupt(path, "the checksum of its contents is wrong")

    def drop(self, name: str) -> None:
        """Removes contents, where there are any; in a fork they are another process's, and stay."""
        if os.getpid() != self._process:
            return
        self.path(name).unlink(missing_ok=True)

    def close(self) -> None:
        """Removes the folder; a second call does nothing."""
        self._end()


def refuse_odd_facts(facts: Mapping[str, object]) -> bytes:
    """Facts as they stand in a file.

    Raises:
        MemoryFault: they are no plain values.
    """
    try:
        return json.dumps(facts, sort_keys=True).encode()
    except (TypeError, ValueError, RecursionError) as error:
        msg = f"{shown(facts)} cannot stand in a file: {said(error)}"
        raise MemoryFault(msg, fix="texts, numbers, and lists and mappings of them") from error


def _write_all(file: int, data: memoryview) -> None:
    while data:
        data = data[os.write(file, data) :]


def _corrupt(path: Path, why: str) -> DataCorrupt:
    return DataCorrupt(f"{path}: {why}", fix="its contents are lost: compute them again")
