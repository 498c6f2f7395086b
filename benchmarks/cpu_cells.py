"""What is timed of the CPU package: the cells of the activations and of layer_norm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from trivet_cpu.compiled import activation, layer_norm

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
COPY_FROM_TOKENS = 512
GELUS = {"none": "gelu", "tanh": "gelu_tanh"}

Call = Callable[[], object]


@dataclass(frozen=True)
class Cell:
    """What is timed for one shape.

    Args:
        operator: its name.
        dtype: a key of ``DTYPES``.
        shape: shown in the name of the row.
        big: whether it counts for the fraction of a copy.
        ours: the allocating form.
        kept: the form that writes where it is told, if there is one.
        torch: torch's forms by name.
        nbytes: bytes read and written.
    """

    operator: str
    dtype: str
    shape: str
    big: bool
    ours: Call
    kept: Call | None
    torch: dict[str, Call]
    nbytes: int


def gates(name: str, tokens: int, hidden: int) -> Iterator[Cell]:
    """silu_and_mul and gelu_and_mul of rows of 2*hidden."""
    x = torch.randn(tokens, 2 * hidden).to(DTYPES[name])
    out = torch.empty_like(x[:, :hidden])
    gate, up = x.chunk(2, -1)

    def cell(operator: str, ours: Call, kept: Call, theirs: Callable[[Tensor], Tensor]) -> Cell:
        forms: dict[str, Call] = {
            "two calls": lambda: theirs(gate) * up,
            "second in place": lambda: theirs(gate).mul_(up),
        }
        big = tokens >= COPY_FROM_TOKENS
        shape = f"{tokens}x{hidden}"
        return Cell(operator, name, shape, big, ours, kept, forms, x.nbytes + out.nbytes)

    yield cell(
        "silu_and_mul",
        lambda: activation.silu_and_mul(x),
        lambda: activation.silu_and_mul_out(x, out=out),
        functional.silu,
    )
    for kind, operator in GELUS.items():
        yield cell(
            f"{operator}_and_mul",
            partial(activation.gelu_and_mul, x, kind),
            partial(activation.gelu_and_mul_out, x, kind, out=out),
            partial(functional.gelu, approximate=kind),
        )


def activations(name: str, tokens: int, hidden: int) -> Iterator[Cell]:
    """Activations of rows of hidden: silu and both forms of gelu."""
    x = torch.randn(tokens, hidden).to(DTYPES[name])
    out = torch.empty_like(x)

    def cell(operator: str, ours: Call, kept: Call, forms: dict[str, Call]) -> Cell:
        big = tokens >= COPY_FROM_TOKENS
        return Cell(operator, name, f"{tokens}x{hidden}", big, ours, kept, forms, 2 * x.nbytes)

    yield cell(
        "silu",
        lambda: activation.silu(x),
        lambda: activation.silu_out(x, out=out),
        {"F.silu": lambda: functional.silu(x)},
    )
    for kind, operator in GELUS.items():
        yield cell(
            operator,
            partial(activation.gelu, x, kind),
            partial(activation.gelu_out, x, kind, out=out),
            {"F.gelu": partial(functional.gelu, x, approximate=kind)},
        )


def layer_norms(name: str, tokens: int, hidden: int) -> Iterator[Cell]:
    """layer_norm with weight and bias."""
    x, weight, bias = (torch.randn(n, hidden).to(DTYPES[name]).squeeze(0) for n in (tokens, 1, 1))
    x = x.view(tokens, hidden)
    out = torch.empty_like(x)
    yield Cell(
        "layer_norm",
        name,
        f"{tokens}x{hidden}",
        tokens >= COPY_FROM_TOKENS,
        lambda: layer_norm.layer_norm(x, weight, bias),
        lambda: layer_norm.layer_norm_out(x, weight, bias, out=out),
        {"F.layer_norm": lambda: functional.layer_norm(x, (hidden,), weight, bias, 1e-5)},
        2 * x.nbytes,
    )
