"""What the engine's KV cache saves by sharing beginnings, and that a short one changes no token.

The model is SmolLM2-135M with the first of its layers alone, so that a run takes a minute; the
head, which nothing saves, weighs more that way, so the speed-up is rather too small.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import click
import torch
from report import Row, publish

import trivet

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

from llm import gguf  # the engine is an example, not a package
from llm.cache import Usage
from llm.fetch import fetch
from llm.model import Llama
from llm.schedule import Scheduler, generate
from llm.source import Stored
from llm.swap import HostMemory
from llm.tokenizer import Tokenizer

LAYERS, BLOCK, BLOCKS = 10, 16, 512
REQUESTS, PREFIX, SUFFIX = 64, 512, 32
BATCH, BUDGET = 8, 256  # as the command has them


class Shallow:
    """A model file without its last layers."""

    def __init__(self, file: gguf.ModelFile, layers: int) -> None:
        self.path, self.names, self._file = file.path, file.names, file
        self.adjacent_pairs = file.adjacent_pairs
        self.config = replace(file.config, layers=layers)
        dropped = tuple(f"blk.{i}." for i in range(layers, file.config.layers))
        self.tensors: Mapping[str, Stored] = {
            name: tensor for name, tensor in file.tensors.items() if not name.startswith(dropped)
        }

    def tokenizer(self) -> Tokenizer:
        """The file's own."""
        return self._file.tokenizer()


class Engine:
    """The model with a cache of some blocks.

    Args:
        file: The model.
        num_blocks: Of the cache.
    """

    def __init__(self, file: Shallow, num_blocks: int) -> None:
        device = trivet.device("cpu")
        self._model = Llama(device, file, dtype=torch.float32, num_blocks=num_blocks,
                            block_size=BLOCK)  # fmt: skip

    def answers(
        self, prompts: Sequence[list[int]], tokens: int, *, share: bool, swap: bool = False
    ) -> tuple[list[list[int]], float, Usage]:
        """The tokens of every prompt, the processor time of all, and what the cache did."""
        self._model.pool.forget()
        scheduler = Scheduler(
            self._model.pool,
            max_batch=BATCH,
            budget=BUDGET,
            context=self._model.config.context,
            eos=frozenset(),
            salt=self._model.salt if share else None,
            store=HostMemory(self._model.caches) if swap else None,
        )
        requests = [scheduler.submit(prompt, tokens) for prompt in prompts]
        start = time.process_time()
        for _ in generate(self._model, scheduler):
            pass
        return [r.output for r in requests], time.process_time() - start, scheduler.usage


def _same(some: Sequence[list[int]], others: Sequence[list[int]]) -> float:
    """The share of the requests whose tokens are the same."""
    return sum(a == b for a, b in zip(some, others, strict=True)) / len(some)


def _prompts(count: int, length: int, vocab: int, seed: int) -> list[list[int]]:
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(17, vocab, (count, length), generator=rng).tolist()


def prefix_rows(file: Shallow) -> list[Row]:
    """One beginning for all requests, which nothing has computed before."""
    engine, vocab = Engine(file, BLOCKS), file.config.vocab
    (prefix,) = _prompts(1, PREFIX, vocab, 1)
    prompts = [prefix + suffix for suffix in _prompts(REQUESTS, SUFFIX, vocab, 2)]
    engine.answers(prompts[:1], 1, share=False)  # what the first call of all costs
    shared, fast, usage = engine.answers(prompts, 1, share=True)
    plain, slow, _ = engine.answers(prompts, 1, share=False)
    text = f"no sharing, {REQUESTS} requests of {PREFIX} + {SUFFIX} tokens, processor time"
    reused = f"{usage.reused_tokens} of {usage.prompt_tokens} prompt tokens"
    return [
        Row("memory.prefix_reuse_prefill_speedup", slow / fast, "ratio", text),
        Row("memory.prefix_reuse_prefill_seconds", fast, "s", f"{slow:.1f} s; {reused} reused"),
        Row("memory.prefix_reuse_same_tokens", _same(shared, plain), "share", "no sharing"),
    ]


def short_rows(file: Shallow) -> list[Row]:
    """Requests that need three times the cache, beside one that holds them all."""
    prompts, tokens = _prompts(BATCH, 32, file.config.vocab, 3), 64
    need = BATCH * -(-(32 + tokens) // BLOCK)
    ample, base, _ = Engine(file, need).answers(prompts, tokens, share=False)
    short, found = Engine(file, need // 3), []
    for name, swap in (("swap", True), ("recompute", False)):
        got, seconds, usage = short.answers(prompts, tokens, share=False, swap=swap)
        text = f"{need} blocks; {need // 3} here, {usage.preemptions} times put aside"
        found += [
            Row(f"memory.{name}_same_tokens", _same(got, ample), "share", text),
            Row(f"memory.{name}_cost", seconds / base, "ratio", f"{need} blocks, processor time"),
        ]
    return found


def rows(*, quick: bool = False) -> list[Row]:
    """All figures, on one thread; none of them has a quicker form."""
    if quick:
        return []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        file = Shallow(gguf.read(fetch(lambda text: print(text, file=sys.stderr))), LAYERS)
        return [*prefix_rows(file), *short_rows(file)]
    finally:
        torch.set_num_threads(threads)


@click.command()
@click.option("--json", "target", type=click.Path(path_type=Path), help="Write figures.")
def main(*, target: Path | None) -> None:
    """Measures what sharing beginnings saves, and what a short cache costs."""
    publish("memory_prefix", rows(), target)


if __name__ == "__main__":
    main()
