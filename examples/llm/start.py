"""Loads a model for the options of a command, and says who chose each setting."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

import trivet
from llm import bound, cache_size, decode, source
from llm.cache import Store
from llm.errors import OutputError, RequestError
from llm.fetch import fetch
from llm.model import Llama
from llm.parallel.follower import SharedStore, report
from llm.parallel.ranks import Ranks
from llm.parallel.shards import Shard
from llm.schedule import Scheduler
from llm.swap import HostMemory
from llm.timing import Times
from llm.tokenizer import Tokenizer

Setting = tuple[str, object, str]


@dataclass(frozen=True)
class Engine:
    """A loaded model with its queue; ``settings``: names, values, and who chose each."""

    name: str
    model: Llama
    scheduler: Scheduler
    tokenizer: Tokenizer
    settings: list[Setting]
    ranks: Ranks | None = None

    def of_ranks(self) -> list[dict[str, Any]]:
        """What ran on each of several ranks; all others wait for orders. None for one alone."""
        if self.ranks is None or self.ranks.channel is None:
            return []
        self.ranks.channel.tell_all("report")
        others = [json.loads(text) for text in self.ranks.channel.listen()]
        return [report(self.model, self.ranks), *others]


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


def say(notes: Console, text: str) -> None:
    """Prints text that may quote anything: brackets in it are brackets, and no line is folded."""
    notes.print(text, markup=False, highlight=False, soft_wrap=True)


def save_lock(model: Llama, path: Path) -> str:
    """Writes which implementation each site took; returns a sentence that says so.

    Raises:
        OutputError: The file cannot be written.
    """
    try:
        model.plan.save_lock(path)
    except OSError as error:
        raise OutputError(f"the lock cannot be written: {error}") from error
    return f"{path}: lock of {len(model.plan.sites)} sites, digest {model.plan.digest}"


def sizes(
    device: trivet.Device, given: tuple[int, ...] | None, batch: int
) -> tuple[str, tuple[int, ...], str]:
    """Which decode steps are captured: as the user says, else powers of two up to the batch.

    Without a word, only where the device captures in hardware: what emulates it saves no time.
    """
    if given is not None:
        return "capture", given, "command line"
    execution = device.capture.execution.value
    powers = tuple(1 << i for i in range((batch - 1).bit_length() + 1))
    return "capture", powers if execution == "hardware" else (), f"device: {execution}"


def store_of(model: Llama, ranks: Ranks | None) -> Store:
    """Where blocks go of requests that are put aside."""
    own = HostMemory(model.caches)
    return SharedStore(own, ranks.channel) if ranks and ranks.channel else own


def chosen(
    options: SimpleNamespace,
    device: trivet.Device,
    dtype: Setting,
    block: Setting,
    capture: tuple[str, tuple[int, ...], str],
) -> list[Setting]:
    """The engine's own settings, and who chose each."""
    info = device.info
    where = "device", f"{info.kind}:{info.index} {info.name}", f"{options.device}: {device.reason}"
    shown = ", ".join(map(str, capture[1])) or "off"
    settings: list[Setting] = [where, dtype, block, ("capture", shown, capture[2])]
    if options.strict:
        settings.append(("strict", True, "command line"))
    if not options.prefix_cache:
        settings.append(("prefix_cache", "off", "command line"))
    if options.preempt != "recompute":
        settings.append(("preempt", options.preempt, "command line"))
    return settings


def start(
    options: SimpleNamespace,
    notes: Console,
    times: Times | None = None,
    ranks: Ranks | None = None,
) -> Engine:
    """Loads the model, or fetches it first.

    Args:
        options: Of the command.
        notes: Where progress is shown.
        times: Takes the time of each call.
        ranks: Those of the run, where they are several; they load together.
    """
    if options.threads:
        torch.set_num_threads(options.threads)
    path = options.model or fetch(lambda text: say(notes, text))
    if ranks is None:
        device = trivet.device(options.device, strict=options.strict)
    else:
        device = ranks.device(options.device, strict=options.strict, threads=options.threads)
        ranks.join(device)
    dtype = settle(device, "dtype", options.dtype, "float32")
    block = settle(device, "block_size", options.block_size, 16)
    block_size = int(str(block[1]))
    capture = sizes(device, options.capture, options.batch)

    file = source.read(path)
    config, tokenizer = file.config, file.tokenizer()
    shard = Shard(config) if ranks is None else Shard(config, ranks.place.rank, ranks.place.size)
    num_blocks = cache_size.blocks(options, shard.largest, block_size, as_dtype(dtype[1]))
    with Progress(console=notes, transient=True, disable=not notes.is_terminal) as progress:
        bar = progress.add_task("loading", total=config.layers)
        model = Llama(
            device,
            file,
            dtype=as_dtype(dtype[1]),
            num_blocks=num_blocks,
            block_size=block_size,
            observe=options.observe,
            times=times,
            advance=lambda: progress.advance(bar),
            capture=capture[1],
            team=None if ranks is None else ranks.team(shard, as_dtype(dtype[1])),
        )
    if ranks is not None:
        ranks.loaded()
    if model.decode is not None:
        say(notes, decode.text(model.decode.report(), model.decode.execution))
    if options.save_lock:
        say(notes, save_lock(model, options.save_lock))
    scheduler = Scheduler(
        model.pool,
        max_batch=options.batch,
        budget=options.budget,
        context=config.context,
        eos=tokenizer.eos,
        salt=model.salt if options.prefix_cache else None,
        store=store_of(model, ranks) if options.preempt == "swap" else None,
    )
    name = path.name if path.is_dir() else path.stem
    settings = [*chosen(options, device, dtype, block, capture), *bound.settings(model.plan)]
    if ranks is not None:
        settings.append(("tp", ranks.place.size, ranks.by))
    return Engine(name, model, scheduler, tokenizer, settings, ranks)
