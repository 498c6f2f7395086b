"""The engine of ``examples/llm`` on a GPU: tokens a second of decoding, beside transformers.

The weights are random and those of a real model's shape: what a step costs does not depend on their
values. Both engines get the same. ``share`` is the time in which the device could read all weights
and all keys and values of the step, at the bandwidth of a copy, over the time of the step.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
from gpu_clock import clock
from report import Row, picture, publish

import trivet

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent / "examples"))  # the engine is an example, not a package

from engine_peers import Task, prompts_of, wall  # noqa: E402

from llm.config import Config  # noqa: E402
from llm.model import Llama  # noqa: E402
from llm.schedule import Scheduler, generate  # noqa: E402
from llm.tokenizer import Tokenizer  # noqa: E402
from trivet.rope import Rope  # noqa: E402

PROMPT, STEPS, PAGE = 128, 24, 16
OURS = "trivet"
SHAPES = {
    "smollm2_135m": {"layers": 30, "hidden": 576, "inter": 1536, "heads": 9, "kv_heads": 3,
                     "head_dim": 64, "vocab": 49152, "context": 8192},
    "llama_8b": {"layers": 32, "hidden": 4096, "inter": 14336, "heads": 32, "kv_heads": 8,
                 "head_dim": 128, "vocab": 128256, "context": 8192},
}  # fmt: skip
_PARTS = {
    "norm": "input_layernorm", "q": "self_attn.q_proj", "k": "self_attn.k_proj",
    "v": "self_attn.v_proj", "out": "self_attn.o_proj", "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
}  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    """A tensor of random numbers, the same whenever its name is asked for."""

    name: str
    shape: tuple[int, ...]
    device: torch.device

    def dequantise(self) -> torch.Tensor:
        """Draws it on the device."""
        rng = torch.Generator(self.device).manual_seed(zlib.crc32(self.name.encode()))
        found = torch.randn(self.shape, generator=rng, device=self.device)
        return found.mul_(self.shape[-1] ** -0.5) if len(self.shape) > 1 else found.abs_().add_(0.5)


class RandomModel:
    """A model of some shape with random weights, as the engine reads one."""

    path = Path("random")
    adjacent_pairs = False

    def __init__(self, sizes: Mapping[str, Any], device: torch.device) -> None:
        rope = Rope(rotary_dim=sizes["head_dim"], theta=500000.0)
        self.config = c = Config(**sizes, eps=1e-5, rope=rope, tied=False)
        self.names = {f"layer.{part}": f"model.layers.{{}}.{n}" for part, n in _PARTS.items()}
        self.names |= {"embedding": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
        queries, keys = c.heads * c.head_dim, c.kv_heads * c.head_dim
        shapes = {
            "norm": (c.hidden,), "q": (queries, c.hidden), "k": (keys, c.hidden),
            "v": (keys, c.hidden), "out": (c.hidden, queries), "mlp_norm": (c.hidden,),
            "gate": (c.inter, c.hidden), "up": (c.inter, c.hidden), "down": (c.hidden, c.inter),
        }  # fmt: skip
        whole: dict[str, tuple[int, ...]] = {
            f"{self.names[f'layer.{part}'].format(i)}.weight": shape
            for i in range(c.layers) for part, shape in shapes.items()
        }  # fmt: skip
        whole["model.embed_tokens.weight"] = whole["lm_head.weight"] = (c.vocab, c.hidden)
        whole["model.norm.weight"] = (c.hidden,)
        self.tensors = {n: Drawn(n, shape, device) for n, shape in whole.items()}

    def tokenizer(self) -> Tokenizer:
        """Refuses: its tokens are numbers."""
        raise NotImplementedError

    def bytes_a_step(self, task: Task, itemsize: int) -> int:
        """Bytes of weights and of keys and values that a step of decoding reads."""
        c = self.config
        weights = sum(torch.Size(t.shape).numel() for n, t in self.tensors.items()
                      if n != "model.embed_tokens.weight")  # fmt: skip
        rows = task.prompts * (task.length + task.steps // 2)
        return (weights + 2 * c.layers * rows * c.kv_heads * c.head_dim) * itemsize


class Ours:
    """The engine of the example."""

    def __init__(self, device: trivet.Device, model: RandomModel, dtype: torch.dtype, most: int,
                 capture: Sequence[int]) -> None:  # fmt: skip
        pages = most * -(-(PROMPT + STEPS + 2) // PAGE) + 1
        more: dict[str, Any] = {"capture": tuple(capture)} if capture else {}
        self.model = Llama(device, model, dtype=dtype, num_blocks=pages, block_size=PAGE, **more)

    def seconds(self, task: Task) -> list[float]:
        """Seconds of the prompts, then of each step, scheduling included."""
        scheduler = Scheduler(
            self.model.pool,
            max_batch=task.prompts,
            budget=task.prompts * task.length,
            context=self.model.config.context,
            eos=frozenset(),
        )
        for prompt in prompts_of(task, self.model.config.vocab):
            scheduler.submit(prompt, task.steps + 1)
        events, times = generate(self.model, scheduler), []
        for _ in range(task.steps + 1):
            start = wall()
            for _ in range(task.prompts):
                next(events)
            times.append(wall() - start)
        scheduler.cancel_all()
        return times


class Transformers:
    """transformers' model with the same weights and a static cache, eager or compiled."""

    def __init__(self, model: RandomModel, dtype: torch.dtype, device: torch.device) -> None:
        import transformers  # type: ignore[import-not-found,unused-ignore]

        c = model.config
        self.library: Any = transformers
        self.config = transformers.LlamaConfig(
            vocab_size=c.vocab, hidden_size=c.hidden, intermediate_size=c.inter,
            num_hidden_layers=c.layers, num_attention_heads=c.heads, head_dim=c.head_dim,
            num_key_value_heads=c.kv_heads, max_position_embeddings=c.context,
            rope_theta=c.rope.theta, rms_norm_eps=c.eps, tie_word_embeddings=False,
        )  # fmt: skip
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            with device:
                self.model = transformers.LlamaForCausalLM(self.config).eval()
        finally:
            torch.set_default_dtype(before)
        own = self.model.state_dict()
        for name, stored in model.tensors.items():
            own[name].copy_(stored.dequantise())
        self.device = device

    @torch.inference_mode()
    def seconds(self, task: Task, *, compiled: bool) -> list[float]:
        """Seconds of the prompts, then of each step and its choice."""
        forward = self.model.forward
        decoding = torch.compile(forward, mode="reduce-overhead") if compiled else forward
        ids, times = torch.tensor(prompts_of(task, self.config.vocab_size), device=self.device), []
        room = task.length + task.steps + 1
        cache = self.library.StaticCache(config=self.config, max_cache_len=room)
        for step in range(task.steps + 1):
            start = wall()
            out = (decoding if step else forward)(
                input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1
            )
            ids = out.logits[:, -1].argmax(-1, keepdim=True).clone()
            ids.tolist()  # an engine sends its tokens away
            times.append(wall() - start)
        return times


Seconds = Callable[[Task], list[float]]


def peers(
    model: RandomModel, dtype: torch.dtype, device: torch.device, *, compiled: bool
) -> dict[str, Seconds]:
    """transformers, where it is installed."""
    if not importlib.util.find_spec("transformers"):
        print("missing transformers: not installed", file=sys.stderr)
        return {}
    made = Transformers(model, dtype, device)
    found: dict[str, Seconds] = {"transformers_eager": partial(made.seconds, compiled=False)}
    if compiled:
        found["transformers_compiled"] = partial(made.seconds, compiled=True)
    return found


def measure(name: str, model: RandomModel, engines: Mapping[str, Seconds], tasks: Sequence[Task],
            copy: float, itemsize: int, until: float) -> list[Row]:  # fmt: skip
    """The median step of every engine, after a run that is not counted."""
    rows: list[Row] = []
    for task in tasks:
        steps: dict[str, float] = {}
        for engine, seconds in engines.items():
            if time.monotonic() > until:
                print(f"time is over before {task.name} of {engine}", file=sys.stderr)
                continue
            try:
                seconds(task._replace(steps=min(6, task.steps)))
                steps[engine] = statistics.median(seconds(task)[2:])
            except Exception as error:  # what a peer raises is its line
                words = " ".join(str(error).split())[:300]
                if engine == OURS:
                    raise
                print(f"{name} {task.name} {engine}: {type(error).__name__}: {words}",
                      file=sys.stderr)  # fmt: skip
        head = f"gpu_engine.{name}.{task.name}"
        limit = model.bytes_a_step(task, itemsize) / copy
        for engine, took in steps.items():
            rows.append(Row(f"{head}.{engine}", task.prompts / took, "tokens/s", "wall time"))
            rows.append(Row(f"{head}.{engine}.share", limit / took, "share", "of the memory limit"))
            if engine != OURS and OURS in steps:
                ratio = took / steps[OURS]
                rows.append(Row(f"{head}.vs_{engine}", ratio, "ratio", "times as fast"))
        print(
            f"{head}: " + ", ".join(f"{e} {1e3 * s:.2f} ms" for e, s in steps.items()), flush=True
        )
    return rows


@click.command()
@click.option("--json", "target", type=click.Path(path_type=Path), help="Write the figures.")
@click.option("--model", "names", multiple=True, type=click.Choice(list(SHAPES)))
@click.option("--batch", "batches", multiple=True, type=int, help="Prompts at once.")
@click.option("--capture", is_flag=True, help="Steps of these batches are captured.")
@click.option("--no-compiled", is_flag=True, help="Leave compiled transformers out.")
@click.option("--no-peer", is_flag=True, help="Leave transformers out.")
@click.option("--seconds", default=480.0, help="No engine is started on a task later.")
@click.option("--quick", is_flag=True, help="Few steps: whether it runs.")
def main(
    target: Path | None, names: tuple[str, ...], batches: tuple[int, ...], capture: bool,
    no_compiled: bool, no_peer: bool, seconds: float, quick: bool,
) -> None:  # fmt: skip
    """Measures decoding of the example engine on the GPU."""
    until = time.monotonic() + seconds
    where = clock()
    copy, chosen = where.copy_bandwidth(), batches or (1, 32, 256)
    tasks = [Task(f"decode_b{n}", n, PROMPT, 4 if quick else STEPS) for n in chosen]
    device, dtype, rows = trivet.device(where.device.type), torch.bfloat16, list[Row]()
    for name in names or SHAPES:
        model = RandomModel(SHAPES[name], where.device)
        engines: dict[str, Seconds] = {}
        ours = Ours(device, model, dtype, max(chosen), chosen if capture else ())
        engines[OURS] = ours.seconds
        if not no_peer:
            engines |= peers(model, dtype, where.device, compiled=not no_compiled)
        rows += measure(name, model, engines, tasks, copy, dtype.itemsize, until)
        del ours, engines
        where.release()
    publish("gpu_engine", rows, target)
    ratios = [r for r in rows if r.unit == "ratio"]
    if target and ratios:
        picture(target.with_suffix(".png"), "decoding on the GPU, times as fast", ratios)


if __name__ == "__main__":
    main()
