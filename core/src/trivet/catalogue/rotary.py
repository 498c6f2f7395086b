"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trivet.catalogue._choices import declared
from trivet.catalogue._numerics import exactly, up
from trivet.contracts import Cases, operator

PAIRINGS = ("neox", "interleaved")
"""Which features of a head turn together."""


def rotate(t: Tensor, cos: Tensor, sin: Tensor, pairing: str) -> Tensor:
    """The first ``2 * rotary_half`` features of each head, turned; the rest as it is."""
    f, n = up(t), cos.shape[-1]
    c, s = cos.unsqueeze(-2), sin.unsqueeze(-2)
    if pairing == "neox":
        a, b = f[..., :n], f[..., n : 2 * n]
        turned = torch.cat((a * c - b * s, b * c + a * s), -1)
    else:
        a, b = f[..., 0 : 2 * n : 2], f[..., 1 : 2 * n : 2]
        turned = torch.stack((a * c - b * s, b * c + a * s), -1).flatten(-2)
    return torch.cat((turned.to(t.dtype), t[..., 2 * n :]), -1)


def by_complex_numbers(
    q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, pairing: str = "neox"
) -> list[Tensor]:
    """Multiplies complex numbers, pair by pair."""
    n, turn = cos.shape[-1], torch.complex(cos, sin).unsqueeze(-2)
    results = []
    for t in (q, k):
        if t is None:
            continue
        result = t.clone()
        first = slice(0, n) if pairing == "neox" else slice(0, 2 * n, 2)
        second = slice(n, 2 * n) if pairing == "neox" else slice(1, 2 * n, 2)
        turned = torch.complex(t[..., first], t[..., second]) * turn
        result[..., first], result[..., second] = turned.real, turned.imag
        results.append(result)
    return results


def angles(
    dims: Mapping[str, int],
    dtype: torch.dtype,  # noqa: ARG001  # angles are float32 by contract
    rng: torch.Generator,
) -> dict[str, Any]:
    """Angles of positions up to 2**17, as a model with theta 1e5 has them."""
    positions = torch.randint(0, 2**17, (dims["tokens"], 1), generator=rng).double()
    half = dims["rotary_half"]
    angle = positions * 1e5 ** (-torch.arange(half, dtype=torch.float64) / half)
    return {"cos": angle.cos().float(), "sin": angle.sin().float()}


@operator(
    shapes={
        "q": "*tokens heads head_dim",
        "k": "*tokens kv_heads head_dim",
        "cos": "*tokens rotary_half",
        "sin": "*tokens rotary_half",
    },
    dtypes={"cos": "float32", "sin": "float32"},
    returns=[("*tokens heads head_dim", "q"), ("*tokens kv_heads head_dim", "k")],
    inplace={"q": 0, "k": 1},
    choices={"pairing": PAIRINGS},
    cases=Cases(
        sizes=(
            {"tokens": 7, "heads": 9, "kv_heads": 3, "head_dim": 64, "rotary_half": 32},
            {"tokens": 1, "heads": 1, "kv_heads": 1, "head_dim": 128, "rotary_half": 64},
            {"tokens": 5, "heads": 4, "kv_heads": 2, "head_dim": 80, "rotary_half": 16},
            {"tokens": 33, "heads": 3, "head_dim": 20, "rotary_half": 5},
            {"tokens": 0, "heads": 2, "kv_heads": 2, "head_dim": 8, "rotary_half": 4},
        ),
        scalars=({}, {"pairing": "interleaved"}),
        inputs=angles,
    ),
    oracle=by_complex_numbers,
)
def rotary_embedding(
    q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, pairing: str = "neox"
) -> list[Tensor]:
    """Rotates pairs of features of ``q`` and ``k`` by each token's angles.

    Source: arXiv:2104.09864. ``cos`` and ``sin`` are float32 rows per token ``[*tokens,
    rotary_half]``, gathered once a step. ``rotary_dim = 2 * rotary_half <= head_dim``; the rest
    of a head passes through unchanged. Pairs are (i, i + rotary_half) for ``neox`` and
    (2i, 2i + 1) for ``interleaved``.
    """
    declared("pairing", pairing, PAIRINGS)
    with exactly(q):  # autocast refuses to join some dtypes
        return [rotate(t, cos, sin, pairing) for t in (q, k) if t is not None]
