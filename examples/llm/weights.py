"""Takes the tensors of a model file, merges those that are used together, and packs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from llm.config import Config
from llm.errors import ModelFileError
from llm.gguf import ModelFile


@dataclass(frozen=True)
class Layer:
    """The weights of one layer; those of matrices are handles, or packs once a step uses them."""

    norm: torch.Tensor
    qkv: Any
    out: Any
    mlp_norm: torch.Tensor
    gate_up: Any
    down: Any


@dataclass(frozen=True)
class Weights:
    """All weights of a model."""

    embedding: torch.Tensor
    layers: list[Layer]
    norm: torch.Tensor
    head: Any


class Reader:
    """Hands each tensor of a file out once, so that missing and unused ones are noticed."""

    def __init__(self, file: ModelFile) -> None:
        self._file, self._left = file, dict(file.tensors)

    def has(self, name: str) -> bool:
        """Whether a tensor of this name was not taken yet."""
        return name in self._left

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor as float32, in a storage of its own.

        Raises:
            ModelFileError: There is no such tensor, it has another shape, or holds numbers that
                are not finite.
        """
        stored = self._left.pop(name, None)
        if stored is None:
            raise ModelFileError(f"{self._file.path}: tensor {name!r} is missing")
        if stored.shape != shape:
            what = f"{self._file.path}: tensor {name!r} has shape {list(stored.shape)}"
            raise ModelFileError(f"{what}, the metadata says {list(shape)}")
        values = stored.dequantise()
        # The sum is one cheap pass; only one that is not finite is worth a second.
        if not bool(values.sum().isfinite()) and not bool(values.isfinite().all()):
            what = f"{self._file.path}: tensor {name!r} holds numbers that are not finite"
            raise ModelFileError(what, fix="download the model file again")
        return values

    def finish(self) -> None:
        """Refuses a file with tensors that nothing took: the model would compute wrongly."""
        if self._left:
            names = ", ".join(sorted(self._left)[:3])
            what = f"{self._file.path}: {len(self._left)} tensors are not used: {names}"
            raise ModelFileError(what, fix="this model has parts that this engine does not know")


def split_halves(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorders rows of a query or key projection for rotation of half-split pairs.

    The file stores the two members of each rotated pair next to each other; here the first
    members of a head come first, then the second ones. ``weight``: [heads * head_dim, hidden].
    """
    rows, hidden = weight.shape
    pairs = weight.view(heads, rows // heads // 2, 2, hidden)
    return pairs.transpose(1, 2).reshape(rows, hidden)


def load(
    file: ModelFile,
    config: Config,
    place: Callable[[torch.Tensor], torch.Tensor],
    prepare: Callable[[str, torch.Tensor], Any],
    advance: Callable[[], None],
) -> Weights:
    """Reads all weights; merges query, key and value into one matrix, gate and up into another.

    Args:
        file: The model file.
        config: Its sizes.
        place: Copies a tensor to the device, in the dtype of the model.
        prepare: Packs a weight for a site of the plan and returns a handle.
        advance: Is called once a layer.

    Raises:
        ModelFileError: A tensor is missing, has another shape, or is left over.
    """
    c, reader = config, Reader(file)
    q_rows, kv_rows = c.heads * c.head_dim, c.kv_heads * c.head_dim

    def matrix(site: str, *parts: torch.Tensor) -> Any:
        return prepare(site, place(torch.cat(parts) if len(parts) > 1 else parts[0]))

    def layer(i: int) -> Layer:
        def take(name: str, *shape: int) -> torch.Tensor:
            return reader.take(f"blk.{i}.{name}.weight", *shape)

        query = split_halves(take("attn_q", q_rows, c.hidden), c.heads)
        key = split_halves(take("attn_k", kv_rows, c.hidden), c.kv_heads)
        gate = take("ffn_gate", c.inter, c.hidden)
        made = Layer(
            norm=place(take("attn_norm", c.hidden)),
            qkv=matrix("qkv", query, key, take("attn_v", kv_rows, c.hidden)),
            out=matrix("out", take("attn_output", c.hidden, q_rows)),
            mlp_norm=place(take("ffn_norm", c.hidden)),
            gate_up=matrix("gate_up", gate, take("ffn_up", c.inter, c.hidden)),
            down=matrix("down", take("ffn_down", c.hidden, c.inter)),
        )
        advance()
        return made

    layers = [layer(i) for i in range(c.layers)]
    embedding = place(reader.take("token_embd.weight", c.vocab, c.hidden))
    tied = not reader.has("output.weight")
    head = embedding if tied else place(reader.take("output.weight", c.vocab, c.hidden))
    norm = place(reader.take("output_norm.weight", c.hidden))
    reader.finish()
    return Weights(embedding, layers, norm, prepare("head", head))
