"""Normalisation of each query and key head, as Qwen3 and Gemma 3 do it before they rotate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from trivet.catalogue.norm import by_length, normalised
from trivet.contracts import Cases, operator
from trivet.errors import DomainError


def _parts(
    q: Tensor, k: Tensor | None, q_weight: Tensor, k_weight: Tensor | None
) -> list[tuple[Tensor, Tensor]]:
    """Each part with its weight.

    Raises:
        DomainError: ``k`` or ``k_weight`` is given without the other one.
    """
    if (k is None) != (k_weight is None):
        lone, missing = ("k", "k_weight") if k_weight is None else ("k_weight", "k")
        msg = f"{lone} is given, {missing} is not"
        raise DomainError(msg, fix="pass both, or neither")
    parts = [(q, q_weight)]
    if k is not None and k_weight is not None:
        parts.append((k, k_weight))
    return parts


def _oracle(
    q: Tensor,
    k: Tensor | None,
    q_weight: Tensor,
    k_weight: Tensor | None,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,  # noqa: ARG001  # rounding order has no meaning in fp64
) -> list[Tensor]:
    """Divides head by head by its length."""
    rows = [(t, w) for t, w in ((q, q_weight), (k, k_weight)) if t is not None and w is not None]
    return [by_length(t, w, eps, weight_offset) for t, w in rows]


def _composed(parts: Mapping[str, Callable[..., Any]], given: Mapping[str, Any]) -> list[Tensor]:
    """Two norms over the last dim."""
    scalars = [given[n] for n in ("eps", "weight_offset", "weight_in_float32")]
    pairs = _parts(*(given[n] for n in ("q", "k", "q_weight", "k_weight")))
    return [parts["rms_norm"](t, weight, *scalars) for t, weight in pairs]


@operator(
    shapes={
        "q": "*tokens heads head_dim",
        "k": "*tokens kv_heads head_dim",
        "q_weight": "head_dim",
        "k_weight": "head_dim",
    },
    dtypes={"q_weight": "W", "k_weight": "W"},
    returns=[("*tokens heads head_dim", "q"), ("*tokens kv_heads head_dim", "k")],
    inplace={"q": 0, "k": 1},
    cases=Cases(
        sizes=(
            {"tokens": 7, "heads": 9, "kv_heads": 3, "head_dim": 64},
            {"tokens": 1, "heads": 4, "kv_heads": 1, "head_dim": 128},
            {"tokens": 5, "heads": 2, "kv_heads": 2, "head_dim": 17},
            {"tokens": 0, "heads": 2, "kv_heads": 2, "head_dim": 8},
        ),
        scalars=(
            {},
            {"weight_in_float32": True},
            {"eps": 1e-5, "weight_offset": 1.0, "weight_in_float32": True},
            {"weight_offset": 1.0},
        ),
        composed=_composed,
    ),
    oracle=_oracle,
)
def qk_rms_norm(
    q: Tensor,
    k: Tensor | None,
    q_weight: Tensor,
    k_weight: Tensor | None,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    weight_in_float32: bool = False,
) -> list[Tensor]:
    """Normalises each head of ``q`` and of ``k`` as ``rms_norm`` does a row.

    Source: Yang et al. 2025 (Qwen3), arXiv:2505.09388; Gemma Team 2025 (Gemma 3),
    arXiv:2503.19786. ``q_weight`` and ``k_weight`` are one head long and serve all heads of their
    part; ``k`` and ``k_weight`` are given together or not at all. ``q`` and ``k`` may be strided
    views of one packed projection. The scalars are those of ``rms_norm``.
    """
    scalars = (eps, weight_offset, weight_in_float32)
    return [normalised(t, w, *scalars) for t, w in _parts(q, k, q_weight, k_weight)]
