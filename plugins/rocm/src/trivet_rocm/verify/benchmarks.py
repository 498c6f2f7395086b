"""Each kernel beside torch's and AITER's, in captured graphs: microseconds, and whether they agree.

``python -m trivet_rocm.verify.benchmarks --out FILE`` writes rows of operator, shape, who, median
microseconds warm and cold, or why there is none. AITER is asked only where it is installed.
"""

from __future__ import annotations

import argparse
import json
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

import trivet

Call = Callable[[], object]
_TOKENS: Final = (1, 16, 256, 4096)
_HIDDEN: Final = (4096, 8192)
_BF16: Final = torch.bfloat16


class Cell(NamedTuple):
    """One call, by who answers it; peers are made when they are asked for."""

    operator: str
    shape: str
    who: Mapping[str, Callable[[], Call]]


def _aiter(name: str, make: Callable[[Any], Call]) -> Callable[[], Call]:
    def made() -> Call:
        return make(getattr(import_module("aiter"), name))

    return made


def cells(dev: trivet.Device) -> Iterator[Cell]:
    """Norms, gates, rotary embedding and decoding at a model's sizes."""
    for hidden in _HIDDEN:
        weight = torch.ones(hidden, dtype=_BF16, device=dev.torch)
        for tokens in _TOKENS:
            x = torch.randn(tokens, hidden, dtype=_BF16, device=dev.torch)
            wide = torch.randn(tokens, 2 * hidden, dtype=_BF16, device=dev.torch)
            yield _norm(dev, x, weight)
            yield _gate(dev, wide)
    for sequences, context in ((1, 8192), (16, 2048), (64, 2048)):
        yield _decode(dev, sequences, context)


def _norm(dev: trivet.Device, x: Tensor, weight: Tensor) -> Cell:
    run = dev.bind("rms_norm", {"dtype": "bfloat16", "hidden": x.shape[1], "contiguous": True})
    return Cell(
        "rms_norm",
        f"{x.shape[0]}x{x.shape[1]}",
        {
            "trivet": lambda: lambda: run(x, weight, 1e-6),
            "torch": lambda: lambda: functional.rms_norm(x, weight.shape, weight, 1e-6),
            "aiter": _aiter("rms_norm", lambda f: lambda: f(x, weight, 1e-6)),
        },
    )


def _gate(dev: trivet.Device, wide: Tensor) -> Cell:
    width = wide.shape[1] // 2
    run = dev.bind("silu_and_mul", {"dtype": "bfloat16", "inter": width, "contiguous": True})
    out = torch.empty(wide.shape[0], width, dtype=wide.dtype, device=wide.device)

    def into(f: Any) -> Call:
        def call() -> Tensor:
            f(out, wide)
            return out

        return call

    return Cell(
        "silu_and_mul",
        f"{wide.shape[0]}x{width}",
        {
            "trivet": lambda: lambda: run(wide),
            "torch": lambda: lambda: functional.silu(wide[:, :width]) * wide[:, width:],
            "aiter": _aiter("silu_and_mul", into),
        },
    )


def _decode(dev: trivet.Device, sequences: int, context: int) -> Cell:
    heads, kv_heads, dim, page = 32, 8, 128, 16
    pages = context // page
    q = torch.randn(sequences, heads, dim, dtype=_BF16, device=dev.torch)
    shape = sequences * pages, page, kv_heads, dim
    k, v = (torch.randn(shape, dtype=_BF16, device=dev.torch) for _ in range(2))
    table = torch.arange(shape[0], device=dev.torch, dtype=torch.int32).view(sequences, pages)
    start = torch.arange(sequences + 1, device=dev.torch, dtype=torch.int32)
    lengths = torch.full((sequences,), context, device=dev.torch, dtype=torch.int32)
    run = dev.ops.paged_attention

    def dense() -> Tensor:
        keys, values = (t.view(sequences, context, kv_heads, dim).transpose(1, 2) for t in (k, v))
        made = functional.scaled_dot_product_attention(
            q[:, :, None], keys, values, scale=dim**-0.5, enable_gqa=True
        )
        return made[:, :, 0]

    return Cell(
        "paged_attention",
        f"{sequences} of {context}",
        {
            "trivet": lambda: (
                lambda: run(q, k, v, table, start, lengths, 1, context, dim**-0.5, [])
            ),
            "torch": lambda: dense,
        },
    )


def measured(cell: Cell, watch: Any) -> list[dict[str, Any]]:
    """Rows of a cell: times, the largest difference from torch's result, or why there is none."""
    rows, wanted = [], None
    for who in sorted(cell.who, key=lambda name: name != "torch"):
        row: dict[str, Any] = {"operator": cell.operator, "shape": cell.shape, "who": who}
        if who == "aiter" and find_spec("aiter") is None:
            rows.append(row | {"reason": "aiter is not installed"})
            continue
        try:
            call = cell.who[who]()
            result = call()
            if isinstance(result, Tensor):
                result = result.float()
                wanted = result if wanted is None else wanted
                row["difference"] = float((result - wanted).abs().max())
            row |= {"us": median(watch.warm(call)), "cold_us": median(watch.cold(call))}
        except Exception:  # noqa: BLE001 - a peer that fails is a row
            row["reason"] = traceback.format_exc(limit=-2)
        rows.append(row)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the rows; 0 where each of ours has a time."""
    from trivet_rocm.kernel_set import Stopwatch

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", required=True)
    out = Path(parser.parse_args(arguments).out)
    dev = trivet.device("rocm")
    watch = Stopwatch(dev.torch)
    rows: list[dict[str, Any]] = []
    for cell in cells(dev):
        rows += measured(cell, watch)
        text = json.dumps({"device": watch.about(), "rows": rows}, indent=1)
        out.write_text(text + "\n", encoding="utf-8")
    return 0 if all("us" in row for row in rows if row["who"] == "trivet") else 1


if __name__ == "__main__":
    raise SystemExit(main())
