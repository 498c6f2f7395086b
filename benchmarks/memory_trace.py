"""Records what the engine of ``examples/llm`` allocates: prompts, then decoding, on one thread.

torch's profiler reports every allocation of the CPU allocator with its address, those inside
kernels included, and every release. The trace is in the form of the adaptor ``Logging``, without
times, packed with xz. Weights and the KV cache were there before and are not in it.
"""

from __future__ import annotations

import csv
import json
import lzma
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import torch

import trivet
from trivet.memory.adaptors import Entry

FOLDER = Path(__file__).resolve().parent
DATA = FOLDER / "data"
TRACES = {
    "smollm2-135m-one": ([128], 128),
    "smollm2-135m-mixed": ([500, 90, 300, 40, 170, 700, 20, 250], 256),
}
"""Name -> lengths of the prompts, and the most tokens of a step; 32 steps of decoding each."""
sys.path.insert(0, str(FOLDER.parent / "examples"))  # the engine is an example, not a package

from llm import gguf  # noqa: E402
from llm.fetch import fetch  # noqa: E402
from llm.model import Llama  # noqa: E402
from llm.schedule import Scheduler, generate  # noqa: E402


def run(model: Llama, prompts: list[int], budget: int, steps: int) -> None:
    """Prompts of so many tokens, each followed by so many steps."""
    c = model.config
    scheduler = Scheduler(
        model.pool, max_batch=len(prompts), budget=budget, context=c.context, eos=frozenset()
    )
    for length in prompts:
        scheduler.submit([token % c.vocab for token in range(100, 100 + length)], steps + 1)
    for _ in generate(model, scheduler):
        pass


def recorded(prompts: list[int], budget: int) -> list[dict[str, Any]]:
    """The events of the profiler, in order."""
    torch.set_num_threads(1)
    file = gguf.read(fetch(lambda text: print(text, file=sys.stderr)))
    device = trivet.device("auto")
    model = Llama(device, file, dtype=torch.float32, num_blocks=256, block_size=16)
    run(model, [8], 8, 1)  # what is made once is made now
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        run(model, prompts, budget, 32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return sorted((e for e in events if e.get("name") == "[memory]"), key=lambda e: float(e["ts"]))


def entries(events: list[dict[str, Any]]) -> Iterator[Entry]:
    """Lines of a log; what was allocated before the recording and freed in it is left out."""
    live: dict[int, tuple[int, int]] = {}
    number = 0
    for event in events:
        address, nbytes = event["args"]["Addr"], event["args"]["Bytes"]
        if nbytes > 0:
            number += 1
            live[address] = number, nbytes
            yield Entry("allocate", number, nbytes)
        elif address in live:
            yield Entry("deallocate", *live.pop(address))
    for known, nbytes in live.values():
        yield Entry("deallocate", known, nbytes)


@click.command(help=__doc__)
@click.argument("names", nargs=-1, type=click.Choice(list(TRACES)))
def main(names: tuple[str, ...]) -> None:
    """Records and writes traces, all of them by default."""
    DATA.mkdir(parents=True, exist_ok=True)
    for name in names or TRACES:
        target = DATA / f"{name}.csv.xz"
        lines = [(e.op, e.id, e.bytes) for e in entries(recorded(*TRACES[name]))]
        with lzma.open(target, "wt", encoding="utf-8", newline="", preset=9) as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerows([("op", "id", "bytes"), *lines])
        print(f"wrote {target}, {target.stat().st_size} bytes, {len(lines)} lines")


if __name__ == "__main__":
    main()
