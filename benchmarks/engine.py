"""Speed of the engine of ``examples/llm`` on one machine: prefill, and decoding of 1 and 8 prompts.

The same engine and model run with the installed packages and with the references alone; where
transformers is installed, its own engine runs the same weights too. Engines take turns in every
round, and the median of a row's rounds is reported, so that a machine that slows down slows all.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import click
import torch
from report import Row, picture, publish

import trivet

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent / "examples"))  # the engine is an example, not a package

from llm import gguf, weights  # noqa: E402
from llm.config import Config  # noqa: E402
from llm.fetch import fetch  # noqa: E402
from llm.model import Llama  # noqa: E402
from llm.schedule import Scheduler, generate  # noqa: E402

PROMPT = 128  # tokens in the cache before decoding is measured
PREFILL = 256
INSTALLED, REFERENCES, TRANSFORMERS = "installed", "references", "transformers"


class Task(NamedTuple):
    """What is measured: so many prompts of one length, then so many steps of decoding."""

    name: str
    prompts: int
    length: int
    steps: int


class Engine(Protocol):
    """Something that can be timed."""

    def seconds(self, task: Task) -> list[float]:
        """Seconds of the prefill, then of each step of decoding."""


def prompts_of(task: Task, vocab: int) -> list[list[int]]:
    """Prompts of random words, the same in every run."""
    rng = torch.Generator().manual_seed(1)
    return torch.randint(17, vocab, (task.prompts, task.length), generator=rng).tolist()


class Ours:
    """The engine of the example."""

    def __init__(self, device: trivet.Device, file: gguf.ModelFile) -> None:
        self._model = Llama(device, file, dtype=torch.float32, num_blocks=128, block_size=16)

    def seconds(self, task: Task) -> list[float]:
        """Times whole steps, scheduling included."""
        config = self._model.config
        scheduler = Scheduler(
            self._model.pool,
            max_batch=task.prompts,
            budget=task.prompts * task.length,
            context=config.context,
            eos=frozenset(),
        )
        for prompt in prompts_of(task, config.vocab):
            scheduler.submit(prompt, task.steps + 1)
        events = generate(self._model, scheduler)
        times = []
        for _ in range(task.steps + 1):
            start = time.perf_counter()
            for _ in range(task.prompts):
                next(events)
            times.append(time.perf_counter() - start)
        scheduler.cancel()
        return times


class Peer:
    """transformers' engine with the same weights, eager, with its default attention."""

    def __init__(self, file: gguf.ModelFile) -> None:
        import transformers  # type: ignore[import-not-found,unused-ignore]

        c = Config.read(file.metadata)
        config = transformers.LlamaConfig(
            vocab_size=c.vocab,
            hidden_size=c.hidden,
            intermediate_size=c.inter,
            num_hidden_layers=c.layers,
            num_attention_heads=c.heads,
            num_key_value_heads=c.kv_heads,
            max_position_embeddings=c.context,
            rope_theta=c.theta,
            rms_norm_eps=c.eps,
            tie_word_embeddings=True,
        )
        self._vocab = c.vocab
        self._model = transformers.LlamaForCausalLM(config).eval()
        self._model.load_state_dict(self._weights(file, c), strict=False)

    @staticmethod
    def _weights(file: gguf.ModelFile, c: Config) -> dict[str, torch.Tensor]:
        """The tensors under the names that transformers gives them."""
        names = {
            "attn_q": "self_attn.q_proj",
            "attn_k": "self_attn.k_proj",
            "attn_v": "self_attn.v_proj",
            "attn_output": "self_attn.o_proj",
            "attn_norm": "input_layernorm",
            "ffn_norm": "post_attention_layernorm",
            "ffn_gate": "mlp.gate_proj",
            "ffn_up": "mlp.up_proj",
            "ffn_down": "mlp.down_proj",
        }
        heads = {"attn_q": c.heads, "attn_k": c.kv_heads}
        found = {}
        for name, stored in file.tensors.items():
            tensor = stored.dequantise()
            first, *rest = name.split(".")
            if first == "blk":
                layer, part, _ = rest
                if part in heads:
                    tensor = weights.split_halves(tensor, heads[part])
                found[f"model.layers.{layer}.{names[part]}.weight"] = tensor
            else:
                target = "embed_tokens" if first == "token_embd" else "norm"
                found[f"model.{target}.weight"] = tensor
        return found

    @torch.inference_mode()
    def seconds(self, task: Task) -> list[float]:
        """Times whole forward passes with the cache of transformers."""
        ids, cache, times = torch.tensor(prompts_of(task, self._vocab)), None, []
        for _ in range(task.steps + 1):
            start = time.perf_counter()
            out = self._model(
                input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1
            )
            ids, cache = out.logits[:, -1].argmax(-1, keepdim=True), out.past_key_values
            times.append(time.perf_counter() - start)
        return times


@dataclass(frozen=True)
class Result:
    """Tokens per second of every engine at one task with so many threads."""

    task: str
    threads: int
    speed: dict[str, float]


def rate(task: Task, times: Sequence[float]) -> float:
    """Tokens per second: of the prefill when nothing is decoded, else of the median step."""
    if task.steps == 0:
        return task.prompts * task.length / times[0]
    return task.prompts / statistics.median(times[1:])


def measure(
    engines: dict[str, Engine], tasks: Sequence[Task], threads: Sequence[int], rounds: int
) -> list[Result]:
    """Runs all engines in turn, ``rounds`` times, after a round that is not counted."""
    results = []
    for count in threads:
        torch.set_num_threads(count)
        for task in tasks:
            speeds: dict[str, list[float]] = {name: [] for name in engines}
            for number in range(rounds + 1):
                for name, engine in engines.items():
                    speed = rate(task, engine.seconds(task))
                    if number:
                        speeds[name].append(speed)
            medians = {name: statistics.median(found) for name, found in speeds.items()}
            results.append(Result(task.name, count, medians))
    return results


def rows(results: Sequence[Result]) -> list[Row]:
    """The speed of every engine, then how many times as fast the installed packages are."""
    found = []
    for r in results:
        others = [name for name in r.speed if name != INSTALLED]
        against = ", ".join(f"{name} {r.speed[name]:.1f}" for name in others)
        found.append(Row(f"engine.{r.task}_t{r.threads}", r.speed[INSTALLED], "tokens/s", against))
        for name in others:
            ratio = r.speed[INSTALLED] / r.speed[name]
            found.append(Row(f"engine.{r.task}_t{r.threads}.vs_{name}", ratio, "ratio", name))
    return found


def engines_of(say: Callable[[str], None], *, peer: bool) -> dict[str, Engine]:
    """The engines that this machine can run."""
    file = gguf.read(fetch(say))
    device = trivet.device("cpu")
    engines: dict[str, Engine] = {INSTALLED: Ours(device, file)}
    with trivet.prefer(**{"*": "reference"}):
        engines[REFERENCES] = Ours(device, file)
    if peer and importlib.util.find_spec(TRANSFORMERS):
        engines[TRANSFORMERS] = Peer(file)
    return engines


@click.command()
@click.option("--quick", is_flag=True, help="Fewer steps and rounds.")
@click.option("--json", "target", type=click.Path(path_type=Path), help="Write the figures there.")
@click.option("--no-peer", is_flag=True, help="Leave transformers out.")
def main(*, quick: bool, target: Path | None, no_peer: bool) -> None:
    """Measures the example engine: tokens per second of prefill and of decoding."""
    steps, rounds = (6, 1) if quick else (32, 5)
    tasks = [
        Task("decode_b1", 1, PROMPT, steps),
        Task("decode_b8", 8, PROMPT, steps),
        Task(f"prefill_{PREFILL}", 1, PREFILL, 0),
    ]
    threads = sorted({1, torch.get_num_threads()})
    found = rows(measure(engines_of(print, peer=not no_peer), tasks, threads, rounds))
    publish("engine", found, target)
    png = target.with_suffix(".png") if target else FOLDER / "results" / "engine.png"
    picture(png, "the installed packages, times as fast", [r for r in found if r.unit == "ratio"])


if __name__ == "__main__":
    main()
