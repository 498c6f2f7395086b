"""Reads a GGUF file: its metadata, and its tensors as views that are dequantised on demand.

The layout is that of the GGUF specification (versions 2 and 3, little-endian) of the ggml project.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from llm import gguf_model
from llm.config import Config
from llm.errors import ModelFileError
from llm.tokenizer import Tokenizer

Bytes: TypeAlias = NDArray[np.uint8]
Floats: TypeAlias = NDArray[np.float32]

_SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
_STRING, _ARRAY = 8, 9
_MAX_DIMS = 4


def _halves(blocks: Bytes, count: int) -> Floats:
    """The first ``count`` float16 numbers of each block, as float32."""
    return np.ascontiguousarray(blocks[:, : 2 * count]).view(np.float16).astype(np.float32)


def _q4_1(blocks: Bytes) -> Floats:
    """Low halves of the bytes of a block come first; value = scale * nibble + least."""
    scale_and_least, packed = _halves(blocks, 2), blocks[:, 4:]
    nibbles = np.concatenate([packed & 15, packed >> 4], axis=1)
    return nibbles * scale_and_least[:, :1] + scale_and_least[:, 1:]


def _q8_0(blocks: Bytes) -> Floats:
    """Value = scale * signed byte."""
    return blocks[:, 2:].view(np.int8) * _halves(blocks, 1)


class Kind(NamedTuple):
    """How one tensor type stores its numbers: blocks of ``elements`` in ``size`` bytes."""

    name: str
    elements: int
    size: int
    unpack: Callable[[Bytes], Floats]


KINDS = {
    0: Kind("F32", 1, 4, lambda b: b.view(np.float32)),
    1: Kind("F16", 1, 2, lambda b: _halves(b, 1)),
    3: Kind("Q4_1", 32, 20, _q4_1),
    8: Kind("Q8_0", 32, 34, _q8_0),
}


@dataclass(frozen=True)
class Stored:
    """One tensor of a file: its kind, its shape in torch's order, and a view of its bytes."""

    kind: Kind
    shape: tuple[int, ...]
    data: Bytes

    def dequantise(self) -> torch.Tensor:
        """Float32 numbers in a storage of their own, aligned as torch allocates (64 bytes)."""
        with np.errstate(all="ignore"):  # numbers that are not finite are for the caller to judge
            values = self.kind.unpack(self.data.reshape(-1, self.kind.size))
        return torch.from_numpy(values.reshape(self.shape)).clone()


@dataclass(frozen=True)
class ModelFile:
    """A GGUF file that was read; the views keep the mapping alive."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, Stored]

    names: ClassVar[dict[str, str]] = gguf_model.NAMES
    adjacent_pairs: ClassVar[bool] = True

    @cached_property
    def config(self) -> Config:
        """Sizes and features, from the metadata."""
        return gguf_model.read_config(self.metadata)

    def tokenizer(self) -> Tokenizer:
        """The tokenizer, from the metadata."""
        return gguf_model.read_tokenizer(self.metadata)


class _Cursor:
    """Reads values one after the other and refuses to run past the end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.at = path, data, 0

    def wrong(self, what: str) -> ModelFileError:
        return ModelFileError(f"{self.path}: {what}", fix="download the model file again")

    def scalar(self, code: str) -> Any:
        try:
            (value,) = struct.unpack_from("<" + code, self.data, self.at)
        except struct.error:
            raise self.wrong(f"the file is truncated ({len(self.data)} bytes)") from None
        self.at += struct.calcsize(code)
        return value

    def text(self) -> str:
        size = self.scalar("Q")
        if size > len(self.data) - self.at:
            raise self.wrong(f"the file is truncated ({len(self.data)} bytes)")
        self.at += size
        try:
            return self.data[self.at - size : self.at].decode()
        except UnicodeDecodeError:
            raise self.wrong(f"the text before byte {self.at} is not UTF-8") from None

    def value(self, kind: int, *, inside: bool = False) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY and not inside:
            kind, count = self.scalar("I"), self.scalar("Q")
            return [self.value(kind, inside=True) for _ in range(count)]
        if kind not in _SCALARS:
            raise self.wrong(f"metadata of unknown type {kind} before byte {self.at}")
        return self.scalar(_SCALARS[kind])

    def tensor(self) -> tuple[str, Kind, tuple[int, ...], int]:
        name, dims = self.text(), self.scalar("I")
        if dims > _MAX_DIMS:
            raise self.wrong(f"tensor {name!r} has {dims} dims, at most {_MAX_DIMS} are allowed")
        shape = tuple(reversed([self.scalar("Q") for _ in range(dims)]))
        number, offset = self.scalar("I"), self.scalar("Q")
        if number not in KINDS:
            known = ", ".join(k.name for k in KINDS.values())
            what = f"{self.path}: tensor {name!r} has type {number}, which this engine cannot read"
            raise ModelFileError(what, fix=f"use a file quantised as one of {known}")
        if 0 in shape:  # its other sizes could be anything
            raise self.wrong(f"tensor {name!r} has no elements")
        row = shape[-1] if shape else 1
        if row % KINDS[number].elements:
            raise self.wrong(f"tensor {name!r}: rows of {row} do not fill whole blocks")
        return name, KINDS[number], shape, offset


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise ModelFileError(f"{path}: {error.strerror}", fix="give the path of a file") from error
    except ValueError:
        raise ModelFileError(f"{path}: the file is empty", fix="download it again") from None


def read(path: Path) -> ModelFile:
    """Parses the header of a file and maps its tensors; no number is dequantised yet.

    Raises:
        ModelFileError: The file is missing, not GGUF, truncated, or of an unsupported kind.
    """
    data = _map(path)
    if data[:4] != b"GGUF":
        raise ModelFileError(f"{path}: this is not a GGUF file", fix="give a file named *.gguf")
    cursor = _Cursor(path, data)
    cursor.at = 4
    version = cursor.scalar("I")
    if version not in (2, 3):
        raise cursor.wrong(f"GGUF version {version} is not supported (2 and 3 are)")
    tensor_count, pair_count = cursor.scalar("Q"), cursor.scalar("Q")
    metadata: dict[str, Any] = {}
    for _ in range(pair_count):
        key = cursor.text()
        if key in metadata:
            raise cursor.wrong(f"metadata {key!r} is there twice")
        metadata[key] = cursor.value(cursor.scalar("I"))
    heads = [cursor.tensor() for _ in range(tensor_count)]

    align = metadata.get("general.alignment", 32)
    if not isinstance(align, int) or align < 1:
        raise cursor.wrong(f"general.alignment is {align!r}")
    start = -(-cursor.at // align) * align
    raw = np.frombuffer(data, np.uint8)
    tensors: dict[str, Stored] = {}
    for name, kind, shape, offset in heads:
        size = math.prod(shape) // kind.elements * kind.size
        if start + offset + size > len(raw):
            raise cursor.wrong(f"the file is truncated: tensor {name!r} ends after it")
        if name in tensors:
            raise cursor.wrong(f"tensor {name!r} is there twice")
        tensors[name] = Stored(kind, shape, raw[start + offset :][:size])
    return ModelFile(path, metadata, tensors)
