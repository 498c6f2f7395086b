"""Which product of a weight is the fastest for how many rows, on one thread of this machine.

Every way of multiplying takes its turn in each round; times are medians of thread CPU time. What is
measured here stands as a table in ``trivet_cpu.on_torch.linear_facts``. With ``--isa`` oneDNN, MKL
and torch are held to an instruction set in a child process, so that a wide machine shows a narrower
one.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
import torch
from report import Row, picture, publish
from torch import Tensor
from torch.nn.functional import linear as torch_linear

from trivet_cpu import isa
from trivet_cpu.on_torch import linear

SHAPES = ((576, 576), (3072, 576), (576, 1536), (4096, 4096))  # out_features, in_features
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
BYTES = 48 << 20  # distinct weights of one shape: they come from memory, as in a model
LIMITS = {"avx2": ("AVX2", "avx2", "AVX2"), "avx512": ("AVX512_CORE", "avx512", "AVX512"),
          "avx512_bf16": ("AVX512_CORE_BF16", "avx512", "AVX512")}  # fmt: skip


def weights_of(out: int, inner: int) -> list[Tensor]:
    """Weights on a grid of sixteen numbers for each 32 elements."""
    made = []
    for _ in range(max(1, BYTES // (4 * out * inner))):
        d = (torch.rand(out * inner // 32, 1) * 0.01 + 1e-4).half().float()
        q = torch.randint(0, 16, (out * inner // 32, 32)).float()
        q[:, 0] = 0
        made.append((q * d - 0.0625).view(out, inner))
    return made


Products = dict[str, Callable[[Tensor, int], object]]


def packed(x: Tensor, pack: Tensor) -> Tensor:
    """The product of oneDNN over a reordered weight."""
    result: Tensor = linear._pointwise(x, pack, None, "none", [], "")  # noqa: SLF001
    return result


def float32(weights: list[Tensor]) -> Products:
    """Ways to multiply float32 rows."""
    packs = [linear._reorder_float32({}, w, None) for w in weights]  # noqa: SLF001  # measured here
    if any(len(pack) != 3 for pack in packs):
        msg = "the weights are not on a grid"
        raise RuntimeError(msg)
    return {
        "torch": lambda x, i: torch_linear(x, weights[i]),
        "onednn": lambda x, i: packed(x, packs[i][0]),
        "grid": lambda x, i: linear._grid_product(x, *packs[i][1:], packs[i][2], False),  # noqa: SLF001
    }


def bfloat16(weights: list[Tensor]) -> Products:
    """Ways to multiply bfloat16 rows."""
    narrow = [w.bfloat16() for w in weights]
    wide = [linear._widen({}, w, None)[0] for w in narrow]  # noqa: SLF001
    found: Products = {
        "torch": lambda x, i: torch_linear(x, narrow[i]),
        "widened": lambda x, i: packed(x.float(), wide[i]).bfloat16(),
    }
    try:
        packs = [linear._reorder({}, w, None)[0] for w in narrow]  # noqa: SLF001
    except RuntimeError as error:
        print(f"oneDNN does not pack bfloat16 here: {error}", file=sys.stderr)
    else:
        found["onednn"] = lambda x, i: packed(x, packs[i])
    return found


def medians(products: Products, x: Tensor, count: int, rounds: int) -> dict[str, float]:
    """Median seconds of a pass over all weights, by product."""
    seen: dict[str, list[float]] = {name: [] for name in products}
    for number in range(rounds + 1):
        for name, product in products.items():
            start = time.thread_time()
            for i in range(count):
                product(x, i)
            if number:
                seen[name].append(time.thread_time() - start)
    return {name: statistics.median(times) for name, times in seen.items()}


def measure(rounds: int, level: str) -> list[Row]:
    """Time of torch's product over the time of every other, for each shape and number of rows."""
    found = []
    for out, inner in SHAPES:
        weights = weights_of(out, inner)
        for name, make in (("fp32", float32), ("bf16", bfloat16)):
            products = make(weights)
            for rows in ROWS:
                x = torch.randn(rows, inner)
                times = medians(products, x if name == "fp32" else x.bfloat16(), len(weights),
                                rounds)  # fmt: skip
                for product, seconds in times.items():
                    if product != "torch":
                        head = f"linear_rows.{level}.{name}.{out}x{inner}.{rows}.{product}"
                        found.append(Row(head, times["torch"] / seconds, "x", "torch's product"))
            print(f"{out}x{inner} {name} done", file=sys.stderr)
    return found


def held_to(level: str, target: Path | None, quick: bool) -> int:
    """Runs this script again, without ``--isa``, in a child that is held to an instruction set."""
    onednn, torch_level, mkl = LIMITS[level]
    limits = {"ONEDNN_MAX_CPU_ISA": onednn, "ATEN_CPU_CAPABILITY": torch_level,
              "MKL_ENABLE_INSTRUCTIONS": mkl}  # fmt: skip
    again = [*(["--json", str(target)] if target else []), *(["--quick"] if quick else [])]
    return subprocess.run(
        [sys.executable, __file__, *again], env={**os.environ, **limits}, check=False
    ).returncode


@click.command()
@click.option(
    "--json",
    "target",
    type=click.Path(path_type=Path),
    help="Write figures, and a PNG beside them.",
)
@click.option("--quick", is_flag=True, help="Fewer rounds.")
@click.option("--isa", "level", type=click.Choice([*LIMITS]), help="Hold libraries to this.")
def main(*, target: Path | None, quick: bool, level: str | None) -> None:
    """Measures every way to multiply with a weight by the number of rows."""
    if level:
        sys.exit(held_to(level, target, quick))
    torch.set_num_threads(1)
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "").lower() or "all"
    kernels = "avx2" if limit == "avx2" else isa.level()
    with torch.inference_mode(), isa.using(kernels):
        found = measure(3 if quick else 7, limit)
    publish("linear_rows", found, target)
    if target:
        widest = [r for r in found if ".4096x4096." in r.name]
        picture(target.with_suffix(".png"), "times as fast as torch's product", widest)


if __name__ == "__main__":
    main()
