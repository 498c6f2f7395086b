"""The options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click

from llm.sampling import Sampling

MOST_THREADS = 4 * (os.cpu_count() or 1)
_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _all(*options: _Decorator) -> _Decorator:
    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def engine(cache_tokens: int) -> _Decorator:
    """Which model runs where; ``cache_tokens``: how many the cache holds unless it is said."""
    model = click.Path(path_type=Path)
    return _all(
        click.option("--batch", type=click.IntRange(1), default=8, help="Requests in a step."),
        click.option("--budget", type=click.IntRange(1), default=256, help="Tokens in a step."),
        click.option(
            "--cache-tokens", type=click.IntRange(1), default=cache_tokens, show_default=True
        ),
        click.option("--device", default="auto", show_default=True, help="One that is installed."),
        click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"])),
        click.option("--block-size", type=click.IntRange(1), help="Tokens in a cache block."),
        click.option("--model", type=model, help="A GGUF file; else SmolLM2-135M."),
        click.option("--threads", type=click.IntRange(1, MOST_THREADS), help="CPU threads."),
        click.option("--strict", is_flag=True, help="Refuse the reference where there is better."),
        click.option("--observe", is_flag=True, help="Count which implementation ran where."),
    )


sampling = _all(
    click.option(
        *("--temperature", "temperature"),
        type=click.FloatRange(0),
        default=0.0,
        show_default=True,
        help="0 takes the most likely token.",
    ),
    click.option("--top-k", type=click.IntRange(0), default=0, help="Keep so many tokens."),
    click.option("--top-p", type=click.FloatRange(0, 1), default=1.0, help="Keep this much."),
    click.option("--min-p", type=click.FloatRange(0, 1), default=0.0, help="Of the likeliest."),
    click.option("--seed", type=click.IntRange(-(2**63), 2**63 - 1), help="Gives a text again."),
    click.option("--repetition-penalty", type=click.FloatRange(0, min_open=True), default=1.0),
    click.option("--presence-penalty", type=click.FloatRange(-2, 2), default=0.0),
    click.option("--frequency-penalty", type=click.FloatRange(-2, 2), default=0.0),
    click.option("--stop", "stops", multiple=True, help="Ends an answer; may be repeated."),
)


def chosen(options: SimpleNamespace) -> Sampling:
    """The sampling that the options describe; without a seed, one is drawn."""
    return Sampling(
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        repetition=options.repetition_penalty,
        presence=options.presence_penalty,
        frequency=options.frequency_penalty,
        **({} if options.seed is None else {"seed": options.seed}),
    )
