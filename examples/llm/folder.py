"""Opens a directory of safetensors as models are published: what it holds, and nothing executed.

The format of a tensor file is that of the safetensors project; its library checks the header. All
else is checked here, since a directory may come from anywhere.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Final

import torch
from safetensors import SafetensorError, safe_open

from llm import config_json
from llm.config import Config
from llm.errors import ModelFileError
from llm.tokenizer import Tokenizer

_MOST_BYTES: Final = 2**27  # of a text file; the largest tokenizers have a quarter of it
_DTYPES: Final = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_DERIVED: Final = ".rotary_emb.inv_freq"
_AGAIN: Final = "download the model again"


@dataclass(frozen=True)
class Stored:
    """One tensor of an open file."""

    path: Path
    file: Any
    name: str
    shape: tuple[int, ...]

    def dequantise(self) -> torch.Tensor:
        """Float32 numbers in a storage of their own."""
        try:
            values: torch.Tensor = self.file.get_tensor(self.name)
        except (SafetensorError, OSError) as error:
            raise ModelFileError(f"{self.path}: {self.name!r}: {error}", fix=_AGAIN) from error
        return values.to(torch.float32, copy=True)


@dataclass(frozen=True)
class ModelFolder:
    """A directory that was opened; ``texts`` holds its JSON files and the chat template."""

    path: Path
    texts: dict[str, Any]
    tensors: dict[str, Stored]

    names: ClassVar[dict[str, str]] = config_json.NAMES
    adjacent_pairs: ClassVar[bool] = False

    @cached_property
    def config(self) -> Config:
        """Sizes and features, from config.json."""
        return config_json.read_config(self.texts["config.json"])

    def tokenizer(self) -> Tokenizer:
        """The tokenizer, from tokenizer.json and what lies beside it."""
        return config_json.read_tokenizer(self.texts, self.config.vocab)


def _text(path: Path) -> str | None:
    """A text file; None where there is none."""
    if not path.is_file():
        return None
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ModelFileError(f"{path}: a file of this kind has no {path.stat().st_size} bytes")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{path}: {error}", fix=_AGAIN) from error


def _json(path: Path, *, needed: bool = False) -> dict[str, Any]:
    """A JSON file that holds an object; empty where the file is missing and not needed."""
    text = _text(path)
    if text is None:
        if needed:
            raise ModelFileError(f"{path}: there is no such file", fix="give a whole directory")
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: this is no JSON: {error}", fix=_AGAIN) from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: this is a {type(value).__name__}, no object", fix=_AGAIN)
    return value


def _open(path: Path) -> dict[str, Stored]:
    """The tensors of one file."""
    if not path.is_file():
        raise ModelFileError(f"{path}: there is no such file", fix="give a whole directory")
    tensors = {}
    try:
        file: Any = safe_open(path, framework="pt")
        for name in file.keys():  # noqa: SIM118  # no mapping
            view = file.get_slice(name)
            if view.get_dtype() not in _DTYPES:
                what = f"{path}: tensor {name!r} has type {view.get_dtype()}"
                raise ModelFileError(what, fix=f"use a model of {', '.join(_DTYPES)}")
            tensors[name] = Stored(path, file, name, tuple(view.get_shape()))
    except (SafetensorError, OSError) as error:
        raise ModelFileError(f"{path}: {error}", fix=_AGAIN) from error
    return tensors


def _shards(folder: Path) -> dict[str, Stored]:
    """The tensors of several files, which an index assigns to them."""
    index = folder / _INDEX
    placed = _json(index, needed=True).get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise ModelFileError(f"{index}: there is no weight_map", fix=_AGAIN)
    for name in placed.values():
        # a bare name: what the index says must never lead out of the directory
        plain = isinstance(name, str) and Path(name).name == name and "\\" not in name
        if not plain or "\0" in name or not name.endswith(".safetensors"):
            raise ModelFileError(f"{index}: {name!r} is no file of this directory", fix=_AGAIN)
    tensors: dict[str, Stored] = {}
    for name in sorted(set(placed.values())):
        tensors |= (found := _open(folder / name))
        promised = {tensor for tensor, file in placed.items() if file == name}
        if wrong := sorted(promised.symmetric_difference(found)):
            what = f"{index}: the index and {name} disagree about {wrong[0]!r}"
            raise ModelFileError(what, fix=_AGAIN)
    return tensors


def read(path: Path) -> ModelFolder:
    """Reads the texts of a directory and the headers of its tensor files.

    Raises:
        ModelFileError: A file is missing, damaged, or one that the engine cannot read.
    """
    needed = {"config.json": True, "tokenizer.json": True}
    optional = {"tokenizer_config.json": False, "generation_config.json": False}
    texts: dict[str, Any] = {
        name: _json(path / name, needed=must) for name, must in (needed | optional).items()
    }
    texts["chat_template.jinja"] = _text(path / "chat_template.jinja")
    single = path / _SINGLE
    tensors = _open(single) if single.exists() else _shards(path)
    # old checkpoints store the frequencies too, which follow from config.json
    kept = {name: t for name, t in tensors.items() if not name.endswith(_DERIVED)}
    return ModelFolder(path, texts, kept)
