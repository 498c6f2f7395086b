"""Takes the tensors of a model file, merges those that are used together, and packs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from llm.errors import ModelFileError
from llm.parallel.shards import Shard
from llm.source import Source


@dataclass(frozen=True)
class Layer:
    """The weights of one layer; those of matrices are handles, or packs once a step uses them.

    Biases and the norms of heads are None in models without them.
    """

    norm: torch.Tensor
    qkv: Any
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    out: Any
    out_bias: torch.Tensor | None
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

    def __init__(self, file: Source) -> None:
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

    Some files store the two members of each rotated pair next to each other; here the first
    members of a head come first, then the second ones. ``weight``: [heads * head_dim, hidden].
    """
    rows, hidden = weight.shape
    pairs = weight.view(heads, rows // heads // 2, 2, hidden)
    return pairs.transpose(1, 2).reshape(rows, hidden)


def load(
    file: Source,
    shard: Shard,
    place: Callable[[torch.Tensor], torch.Tensor],
    prepare: Callable[[str, torch.Tensor, torch.Tensor | None], Any],
    advance: Callable[[], None],
) -> Weights:
    """Reads all weights; merges query, key and value into one matrix, gate and up into another.

    Args:
        file: The model.
        shard: The part of it that this rank has.
        place: Copies a tensor to the device, in the dtype of the model.
        prepare: Packs a weight, with its bias, for a site of the plan and returns a handle.
        advance: Is called once a layer.

    Raises:
        ModelFileError: A tensor is missing, has another shape, or is left over.
    """
    c, reader = shard.whole, Reader(file)
    layers = []
    for i in range(c.layers):
        layers.append(_layer(reader, file, shard, i, place, prepare))
        advance()

    def take(part: str, *shape: int) -> torch.Tensor:
        return place(shard.cut(part, reader.take(f"{file.names[part]}.weight", *shape)))

    embedding, head_name = take("embedding", c.vocab, c.hidden), f"{file.names['head']}.weight"
    tied = not reader.has(head_name) if c.tied is None else c.tied
    head = embedding if tied else take("head", c.vocab, c.hidden)
    if tied and reader.has(head_name) and not torch.equal(take("head", c.vocab, c.hidden), head):
        what = f"{file.path}: the head is tied to the embedding, and {head_name!r} differs from it"
        raise ModelFileError(what, fix="check tie_word_embeddings")
    norm = take("norm", c.hidden)
    reader.finish()
    return Weights(embedding, layers, norm, prepare("head", head, None))


def _layer(
    reader: Reader,
    file: Source,
    shard: Shard,
    number: int,
    place: Callable[[torch.Tensor], torch.Tensor],
    prepare: Callable[[str, torch.Tensor, torch.Tensor | None], Any],
) -> Layer:
    c = shard.whole
    q_rows, kv_rows = c.heads * c.head_dim, c.kv_heads * c.head_dim

    def whole(part: str, *shape: int, kind: str = "weight") -> torch.Tensor:
        return reader.take(f"{file.names[f'layer.{part}'].format(number)}.{kind}", *shape)

    def take(part: str, *shape: int, kind: str = "weight") -> torch.Tensor:
        return shard.cut(part, whole(part, *shape, kind=kind), kind=kind)

    def turned(part: str, heads: int) -> torch.Tensor:
        weight = whole(part, heads * c.head_dim, c.hidden)
        return shard.cut(part, split_halves(weight, heads) if file.adjacent_pairs else weight)

    def biases(*parts: tuple[str, int]) -> torch.Tensor:
        return place(torch.cat([take(part, rows, kind="bias") for part, rows in parts]))

    qkv = torch.cat([turned("q", c.heads), turned("k", c.kv_heads), take("v", kv_rows, c.hidden)])
    qkv_parts = ("q", q_rows), ("k", kv_rows), ("v", kv_rows)
    qkv_bias = biases(*qkv_parts) if c.qkv_bias else None
    out_bias = biases(("out", c.hidden)) if c.out_bias else None
    gate_up = torch.cat([take("gate", c.inter, c.hidden), take("up", c.inter, c.hidden)])
    return Layer(
        norm=place(take("norm", c.hidden)),
        qkv=prepare("qkv", place(qkv), qkv_bias),
        qkv_bias=qkv_bias,
        q_norm=place(take("q_norm", c.head_dim)) if c.qk_norm else None,
        k_norm=place(take("k_norm", c.head_dim)) if c.qk_norm else None,
        out=prepare("out", place(take("out", c.hidden, q_rows)), out_bias),
        out_bias=out_bias,
        mlp_norm=place(take("mlp_norm", c.hidden)),
        gate_up=prepare("gate_up", place(gate_up), None),
        down=prepare("down", place(take("down", c.hidden, c.inter)), None),
    )
