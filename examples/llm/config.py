"""The sizes and features of a model; each format has a reader that fills them in."""

from __future__ import annotations

from dataclasses import dataclass

from llm.errors import ModelFileError
from trivet.rope import Rope


@dataclass(frozen=True)
class Config:
    """A decoder of the Llama family with grouped queries; sizes are counts of elements.

    Args:
        layers: Decoder layers.
        hidden: Elements of a token between layers.
        inter: Elements of a token inside the MLP.
        heads: Heads of queries.
        kv_heads: Heads of keys and of values; each serves ``heads / kv_heads`` queries.
        head_dim: Elements of a head.
        vocab: Rows of the embedding.
        context: Most tokens of a sequence.
        eps: Is added to mean squares.
        rope: The angles by which positions turn queries and keys.
        window: How many of the last keys a query sees; 0 is all.
        qk_norm: Whether each head of queries and keys is normalised (Qwen3).
        qkv_bias: Whether the projections of queries, keys and values have one.
        out_bias: Whether the projection after attention has one.
        tied: Whether the head is the embedding; None when the file says it by having no head.

    Raises:
        ModelFileError: Two sizes contradict each other.
    """

    layers: int
    hidden: int
    inter: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    eps: float
    rope: Rope
    window: int = 0
    qk_norm: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    tied: bool | None = None

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads or self.head_dim % 2 or self.rope.rotary_dim > self.head_dim:
            sizes = f"{self.heads} heads of {self.head_dim}, {self.kv_heads} of keys"
            raise ModelFileError(f"the sizes of the attention do not divide each other: {sizes}")
