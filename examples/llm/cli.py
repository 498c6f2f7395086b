"""The command line: answers prompts with a small language model on whatever device is installed."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import torch
from rich.console import Console
from rich.progress import Progress

import trivet
from llm import report, source
from llm.errors import EngineError, RequestError
from llm.fetch import fetch
from llm.model import Llama
from llm.schedule import Scheduler, generate
from trivet.errors import TrivetError

DEMO = "Explain in one short paragraph why the sky is blue."
MOST_THREADS = 4 * (os.cpu_count() or 1)


Setting = tuple[str, object, str]


def settle(device: trivet.Device, name: str, given: object, fallback: object) -> Setting:
    """The user's own value, else the device's proposal with its reason, else the engine's."""
    if given is not None:
        return name, given, "command line"
    if name in device.defaults:
        value, reason, plugin = device.defaults[name]
        return name, value, f"{plugin}: {reason}"
    return name, fallback, "engine"


def as_dtype(name: object) -> torch.dtype:
    """The floating dtype of that name."""
    dtype = getattr(torch, str(name), None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise RequestError(f"{name!r} is not a floating dtype", fix="use --dtype float32")
    return dtype


def refuse_broken_text(prompts: tuple[str, ...]) -> None:
    """Refuses a prompt with bytes that are no text; Python hands them on as lone surrogates."""
    for prompt in prompts:
        try:
            prompt.encode()
        except UnicodeEncodeError as error:
            what = f"the prompt {prompt!a} is not valid text at character {error.start}"
            raise RequestError(what, fix="give it in the encoding of the terminal") from None


def say(notes: Console, text: str) -> None:
    """Prints text that may quote anything: brackets in it are brackets, and no line is folded."""
    notes.print(text, markup=False, highlight=False, soft_wrap=True)


def run(options: SimpleNamespace, screen: Console, notes: Console) -> dict[str, Any]:
    """Loads the model, answers all prompts in one batch, and returns the report."""
    refuse_broken_text(options.prompts)
    if options.threads:
        torch.set_num_threads(options.threads)
    path = options.model or fetch(lambda text: say(notes, text))
    times = [time.perf_counter()]
    device = trivet.device(options.device, strict=options.strict)
    dtype = settle(device, "dtype", options.dtype, "float32")
    block = settle(device, "block_size", options.block_size, 16)
    block_size = int(str(block[1]))

    file = source.read(path)
    config, tokenizer = file.config, file.tokenizer()
    with Progress(console=notes, transient=True, disable=not notes.is_terminal) as progress:
        bar = progress.add_task("loading", total=config.layers)
        model = Llama(
            device,
            file,
            dtype=as_dtype(dtype[1]),
            num_blocks=-(-options.cache_tokens // block_size),
            block_size=block_size,
            observe=options.observe,
            advance=lambda: progress.advance(bar),
        )

    scheduler = Scheduler(
        model.pool,
        max_batch=options.batch,
        budget=options.budget,
        context=config.context,
        eos=tokenizer.eos,
    )
    prompts = [p if options.raw else tokenizer.chat(p) for p in options.prompts]
    requests = [scheduler.submit(tokenizer.encode(p), options.max_tokens) for p in prompts]
    texts = report.Texts(tokenizer, dict(zip(requests, options.prompts, strict=True)), screen)
    times.append(time.perf_counter())
    for request, token in generate(model, scheduler):
        times.append(time.perf_counter())
        texts.push(request, token)
    info = device.info
    where = "device", f"{info.kind}:{info.index} {info.name}", f"{options.device}: {device.reason}"
    return report.collect([where, dtype, block], texts.texts, model.calls(), times)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--prompt", "prompts", multiple=True, default=(DEMO,), help="May be repeated.")
@click.option("--raw", is_flag=True, help="Give the prompt as it is, without the chat template.")
@click.option("--max-tokens", type=click.IntRange(1), default=64, show_default=True)
@click.option("--batch", type=click.IntRange(1), default=8, help="Most requests in one step.")
@click.option("--budget", type=click.IntRange(1), default=256, help="Most tokens in one step.")
@click.option("--cache-tokens", type=click.IntRange(1), default=2048, show_default=True)
@click.option("--device", default="auto", show_default=True, help="A device that is installed.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]))
@click.option("--block-size", type=click.IntRange(1), help="Tokens in one block of the KV cache.")
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    help="GGUF file or directory; else SmolLM2.",
)
@click.option("--threads", type=click.IntRange(1, MOST_THREADS), help="CPU threads.")
@click.option("--strict", is_flag=True, help="Refuse the reference where the vendor has code.")
@click.option("--observe", is_flag=True, help="Count which implementation ran each operator.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def main(**given: Any) -> None:
    """Answers prompts with SmolLM2-135M-Instruct, or another Llama model in a GGUF file."""
    options = SimpleNamespace(**given)
    notes = Console(stderr=True)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a model may say what the terminal cannot show
    try:
        result = run(options, Console(quiet=options.as_json), notes)
        with report.writing():
            if options.as_json:
                click.echo(json.dumps(result))
            else:
                report.show(result, Console())
    except (EngineError, TrivetError) as error:
        say(notes, f"error: {error}")
        sys.exit(2)
    except KeyboardInterrupt:
        notes.print("\nstopped")
        sys.exit(130)
