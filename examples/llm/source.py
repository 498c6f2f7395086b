"""What the engine asks of a model, whatever format it is stored in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch

from llm.config import Config
from llm.tokenizer import Tokenizer


class Stored(Protocol):
    """One tensor of a model that was not read yet."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape in torch's order."""

    def dequantise(self) -> torch.Tensor:
        """Float32 numbers in a storage of their own."""


class Source(Protocol):
    """A model that was opened; nothing of it is executed, and no number was read yet.

    ``names`` says what the format calls each part of ``weights.Layer`` and ``weights.Weights``,
    without ``.weight`` or ``.bias``; ``{}`` stands for the number of a layer. ``adjacent_pairs``
    says that the two rows of a rotated pair lie next to each other.
    """

    @property
    def path(self) -> Path:
        """Where it is, for messages."""

    @property
    def tensors(self) -> Mapping[str, Stored]:
        """Every tensor by the name that the format gives it."""

    @property
    def names(self) -> Mapping[str, str]:
        """The part of the model and its name in the format."""

    @property
    def adjacent_pairs(self) -> bool:
        """How the rows of queries and keys are ordered."""

    @property
    def config(self) -> Config:
        """Its sizes and features."""

    def tokenizer(self) -> Tokenizer:
        """Its tokenizer, read anew."""


def read(path: Path) -> Source:
    """Opens a directory of safetensors, or a GGUF file.

    Raises:
        ModelFileError: Nothing is there, it is damaged, or of a kind that is not supported.
    """
    from llm import folder, gguf  # both are made of what is above

    # of a path that cannot be (too long, say) Path.is_dir raises, and opening it says why
    return folder.read(path) if os.path.isdir(path) else gguf.read(path)  # noqa: PTH112
