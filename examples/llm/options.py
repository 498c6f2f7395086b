"""The options that several commands share."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
from click.core import ParameterSource

_DTYPES = ["float32", "bfloat16", "float16"]
_MODEL = "A GGUF file, or a directory with config.json and safetensors; else SmolLM2-135M-Instruct."
MOST_THREADS = 4 * (os.cpu_count() or 1)
_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _all(*options: _Decorator) -> _Decorator:
    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _sizes(context: click.Context, option: click.Parameter, value: str | None) -> Any:
    """Sizes of captured steps; none of them for off, None where nobody said."""
    if value is None or value == "off":
        return None if value is None else ()
    try:
        sizes = tuple(sorted({int(size) for size in value.split(",")}))
    except ValueError:
        sizes = (0,)
    if sizes[0] < 1:
        what = f"{value!r} is neither off nor numbers of requests, as in 1,2,4,8"
        raise click.BadParameter(what, context, option)
    return sizes


def _bytes(context: click.Context, option: click.Parameter, value: float | None) -> Any:
    """GiB that are a number; infinity is none."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is no amount of memory", context, option)
    return value


def refuse_two_sizes(context: click.Context) -> None:
    """Refuses a command line that says the size of the cache twice.

    Raises:
        UsageError: It has tokens and bytes.
    """
    names = ("cache_tokens", "kv_cache_gib")
    if all(context.get_parameter_source(n) is ParameterSource.COMMANDLINE for n in names):
        what = "--cache-tokens and --kv-cache-gib both say how large the KV cache is: give one"
        raise click.UsageError(what)


def _cache(tokens: int) -> _Decorator:
    """How large the KV cache is, and what becomes of blocks."""
    return _all(
        click.option(
            "--cache-tokens",
            type=click.IntRange(1),
            default=tokens,
            show_default=True,
            help="Tokens that the KV cache holds.",
        ),
        click.option(
            "--kv-cache-gib",
            type=click.FloatRange(0, min_open=True),
            callback=_bytes,
            help="GiB of the KV cache, instead of --cache-tokens.",
        ),
        click.option(
            "--prefix-cache/--no-prefix-cache",
            default=True,
            help="Whether a prompt takes what the cache has of its beginning; it does by default.",
        ),
        click.option(
            "--preempt",
            type=click.Choice(["recompute", "swap"]),
            default="recompute",
            show_default=True,
            help="Where the cache is short, a request waits; then its keys and values are computed "
            "again, or come back from host memory.",
        ),
    )


def engine(cache_tokens: int) -> _Decorator:
    """Which model runs where; ``cache_tokens``: how many the cache holds unless it is said."""
    model = click.Path(path_type=Path)
    return _all(
        click.option(
            "--batch",
            type=click.IntRange(1),
            default=8,
            show_default=True,
            help="Requests in a step.",
        ),
        click.option(
            "--budget",
            type=click.IntRange(1),
            default=256,
            show_default=True,
            help="Tokens in a step.",
        ),
        _cache(cache_tokens),
        click.option(
            "--device", default="auto", show_default=True, help="auto, or one that is installed."
        ),
        click.option("--dtype", type=click.Choice(_DTYPES), help="Else as the device proposes."),
        click.option(
            "--block-size",
            type=click.IntRange(1),
            help="Tokens in a cache block; else as the device proposes.",
        ),
        click.option("--model", type=model, help=_MODEL),
        click.option(
            "--tp",
            type=click.IntRange(1),
            help="Ranks that share the model out; else as torchrun or srun started, or 1.",
        ),
        click.option(
            "--rank-timeout",
            type=click.FloatRange(1),
            default=120.0,
            show_default=True,
            help="Seconds that a rank waits for another one before the run ends.",
        ),
        click.option(
            "--threads",
            type=click.IntRange(1, MOST_THREADS),
            help="CPU threads, of each rank; else ranks share the cores out.",
        ),
        click.option("--strict", is_flag=True, help="Refuse the reference where there is better."),
        click.option(
            "--capture",
            callback=_sizes,
            help="Numbers of requests whose decode steps are captured (1,2,4,8), or off; else as "
            "the device is: on where it captures in hardware.",
        ),
        click.option("--observe", is_flag=True, help="Count which implementation ran where."),
        click.option(
            "--save-lock",
            type=click.Path(path_type=Path),
            help="Write which implementation each site takes; TRIVET_LOCK holds a run to it.",
        ),
    )


sampling = _all(
    click.option(
        *("--temperature", "temperature"),
        type=click.FloatRange(0),
        default=0.0,
        show_default=True,
        help="0 takes the most likely token.",
    ),
    click.option(
        "--top-k",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        help="Keep so many of the likeliest tokens; 0 keeps all.",
    ),
    click.option(
        "--top-p",
        type=click.FloatRange(0, 1),
        default=1.0,
        show_default=True,
        help="Keep the likeliest tokens whose probabilities reach this sum.",
    ),
    click.option(
        "--min-p",
        type=click.FloatRange(0, 1),
        default=0.0,
        show_default=True,
        help="Drop tokens below this part of the largest probability.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(-(2**63), 2**63 - 1),
        help="Of the random choice; else one is drawn and told.",
    ),
    click.option(
        "--repetition-penalty",
        type=click.FloatRange(0, min_open=True),
        default=1.0,
        show_default=True,
        help="Divides logits of tokens that were seen; 1 is off.",
    ),
    click.option(
        "--presence-penalty",
        type=click.FloatRange(-2, 2),
        default=0.0,
        show_default=True,
        help="Is taken once from the logit of a token that was said.",
    ),
    click.option(
        "--frequency-penalty",
        type=click.FloatRange(-2, 2),
        default=0.0,
        show_default=True,
        help="Is taken from it for each time that it was said.",
    ),
    click.option("--stop", "stops", multiple=True, help="Ends an answer; may be repeated."),
)


def chosen(options: SimpleNamespace) -> dict[str, Any]:
    """What the options say of sampling, as keywords of ``Sampling``; no seed unless it is given."""
    return {
        "temperature": options.temperature,
        "top_k": options.top_k,
        "top_p": options.top_p,
        "min_p": options.min_p,
        "repetition": options.repetition_penalty,
        "presence": options.presence_penalty,
        "frequency": options.frequency_penalty,
        **({} if options.seed is None else {"seed": options.seed}),
    }
