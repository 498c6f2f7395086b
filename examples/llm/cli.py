"""The commands: answers prompts or a file of them, or serves them over HTTP."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console

from llm import batch, options, report
from llm.answer import Answer
from llm.errors import EngineError, RequestError
from llm.fetch import fetch
from llm.parallel.follower import follow
from llm.parallel.place import Place
from llm.parallel.ranks import Ranks, joined
from llm.protocol.asks import Defaults
from llm.sampling import Sampling
from llm.schedule import generate
from llm.start import say, start
from llm.timing import Times, shares
from llm.trace import Trace
from trivet.errors import TrivetError

MOST_SPANS = 200_000  # of single calls in a trace: some twenty megabytes
DEMO = "Explain in one short paragraph why the sky is blue."


def refuse_broken_text(prompts: tuple[str, ...]) -> None:
    """Refuses a prompt with bytes that are no text; Python hands them on as lone surrogates."""
    for prompt in prompts:
        try:
            prompt.encode()
        except UnicodeEncodeError as error:
            what = f"the prompt {prompt!a} is not valid text at character {error.start}"
            raise RequestError(what, fix="give it in the encoding of the terminal") from None


def run(
    given: SimpleNamespace, screen: Console, notes: Console, ranks: Ranks | None = None
) -> dict[str, Any]:
    """Loads the model, answers all prompts in one batch, and returns the report."""
    refuse_broken_text((*given.prompts, *given.stops))
    if "" in given.stops:
        raise RequestError("a stop string is empty", fix="give --stop a text, or leave it out")
    times = [time.perf_counter()]
    timing = times_for(given)
    engine = start(given, notes, timing, ranks)
    model = timing.whole(engine.model) if timing else engine.model
    trace, scheduler = Trace(model), engine.scheduler
    prompts = [p if given.raw else engine.tokenizer.chat(p) for p in given.prompts]
    sampling = Sampling(**options.chosen(given))
    requests = [
        scheduler.submit(engine.tokenizer.encode(p), given.max_tokens, sampling) for p in prompts
    ]
    for request in requests:
        trace.submitted(request)
    answers = {request: Answer(engine.tokenizer, given.stops) for request in requests}
    texts = report.Texts(dict(zip(requests, given.prompts, strict=True)), screen)
    times.append(time.perf_counter())
    for request, token in generate(trace if given.trace else model, scheduler):
        times.append(time.perf_counter())
        piece = answers[request].push(token, last=bool(request.finish))
        if answers[request].stopped:
            scheduler.end(request, "stop")
        texts.push(request, piece)
    calls, settings = engine.model.calls(), list(engine.settings)
    if sampling.is_random:
        source = "engine: drawn" if given.seed is None else "command line"
        settings.append(("seed", sampling.seed, source))
    if given.trace:
        trace.write(given.trace, calls, settings, timing.spans if timing else ())
    steps = timing.steps if timing else 0.0
    memory, decode = engine.model.memory(), engine.model.decode
    captured = decode.report() if decode else None
    usage = asdict(scheduler.usage)
    every = engine.of_ranks()
    return report.collect(
        settings, texts.texts, calls, memory, times, usage, steps, captured, every
    )


def times_for(given: SimpleNamespace) -> Times | None:
    """What takes the time of each call, if that is asked for; a trace keeps the calls as well."""
    return Times(MOST_SPANS if given.trace else 0) if given.time else None


def run_file(given: SimpleNamespace, notes: Console, ranks: Ranks | None = None) -> None:
    """Answers the lines of a file; says on the error output how many.

    The options of sampling hold where a line says nothing.
    """
    source: Path = given.batch_file
    target = given.output or source.with_suffix(".out.jsonl")
    timing = times_for(given)
    engine = start(given, notes, timing, ranks)
    plain = timing.whole(engine.model) if timing else engine.model
    trace = Trace(plain)
    defaults = Defaults(given.max_tokens, options.chosen(given))
    model = trace if given.trace else plain
    counts = batch.run(engine, model, source, target, defaults, notes, raw=given.raw)
    calls = engine.model.calls()
    if given.trace:
        trace.write(given.trace, calls, engine.settings, timing.spans if timing else ())
    said = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    say(notes, f"{target}: {said or 'no lines'}")
    say(notes, report.cache_text(asdict(engine.scheduler.usage)))
    if given.seed is not None:
        say(notes, f"seed {given.seed} where a line has none")
    with report.writing():
        if given.observe:
            report.show_calls(calls, Console())
            report.show_ranks(engine.of_ranks(), Console())
        if timing:
            report.show_time(shares(calls, timing.steps), Console())


def refuse_useless(given: SimpleNamespace, options_given: set[str]) -> None:
    """Refuses options that the kind of run would ignore.

    Raises:
        RequestError: Names all of them.
    """
    if given.batch_file is None:
        if given.output is not None:
            what = "--output is the file of answers to a --batch-file, and there is none"
            raise RequestError(what, fix="give --batch-file, or leave --output out")
        return
    for_prompts = {"prompts": "--prompt", "as_json": "--json", "stops": "--stop"}
    if useless := [name for key, name in for_prompts.items() if key in options_given]:
        what = f"a --batch-file takes no {' and no '.join(useless)}"
        fix = "give prompt and stop in the lines of the file; its answers are JSON lines"
        raise RequestError(what, fix=fix)


@contextmanager
def ending(notes: Console) -> Iterator[None]:
    """Shows an error that a user can mend as one message, and an interrupt as one word."""
    try:
        yield
    except (EngineError, TrivetError) as error:
        say(notes, f"error: {error}")
        sys.exit(2)
    except KeyboardInterrupt:
        notes.print("\nstopped")
        sys.exit(130)


def fetch_first(given: SimpleNamespace, notes: Console) -> None:
    """Fetches the model once, before other ranks are started that want it."""
    if given.tp not in {None, 1} and given.model is None:
        given.model = fetch(lambda text: say(notes, text))


def answer(given: SimpleNamespace, notes: Console, ranks: Ranks | None) -> None:
    """Answers what the options ask, or follows the first rank that does."""
    if ranks is not None and ranks.place.rank:
        serve_first_rank(given, ranks)
        return
    if given.batch_file:
        run_file(given, notes, ranks)
        return
    result = run(given, Console(quiet=given.as_json), notes, ranks)
    with report.writing():
        if given.as_json:
            click.echo(json.dumps(result))
        else:
            report.show(result, Console())


def serve_first_rank(given: SimpleNamespace, ranks: Ranks) -> None:
    """Loads this rank's part of the model and follows the first rank until it ends."""
    given.save_lock = None
    engine = start(given, Console(quiet=True), ranks=ranks)
    assert ranks.channel is not None  # noqa: S101  (``start`` has joined the ranks)
    follow(engine.model, ranks.channel, ranks)


def run_rank(place: Place, options_given: Mapping[str, Any]) -> None:
    """The main program of a rank that the first one has started."""
    given = SimpleNamespace(**options_given)
    with ending(Console(stderr=True)), joined(given, run_rank, place) as ranks:
        assert ranks is not None  # noqa: S101  (a place was given)
        serve_first_rank(given, ranks)


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--prompt", "prompts", multiple=True, default=(DEMO,), help="What is asked; may be repeated."
)
@click.option("--raw", is_flag=True, help="Give the prompt as it is, without the chat template.")
@click.option(
    "--max-tokens",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Most tokens of an answer.",
)
@options.engine(cache_tokens=2048)
@options.sampling
@click.option(
    "--batch-file", type=click.Path(path_type=Path), help="Answer its JSON lines instead."
)
@click.option(
    "--output", type=click.Path(path_type=Path), help="Answers to the file; else FILE.out.jsonl."
)
@click.option("--trace", type=click.Path(path_type=Path), help="A timeline for Perfetto.")
@click.option("--time", is_flag=True, help="Take the time of each call, on the host.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.pass_context
def main(context: click.Context, /, **values: Any) -> None:
    """Answers prompts, or the lines of a file, with a language model.

    The model is SmolLM2-135M-Instruct, or with --model another one: a GGUF file of the Llama
    family, or a directory of safetensors (Llama, Mistral, Qwen2, Qwen3).
    """
    source = context.get_parameter_source
    on_line = {name for name in values if source(name) is ParameterSource.COMMANDLINE}
    if context.invoked_subcommand:
        if on_line:
            raise click.UsageError(f"options of {context.invoked_subcommand} stand after it")
        return
    options.refuse_two_sizes(context)
    given, notes = SimpleNamespace(**values), Console(stderr=True)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a model may say what the terminal cannot show
    with ending(notes):
        refuse_useless(given, on_line)
        fetch_first(given, notes)
        with joined(given, run_rank) as ranks:
            answer(given, notes, ranks)


@main.command(context_settings={"show_default": True})
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, help="0 takes any free one.")
@click.option("--name", help="What the model is called; else the name of its file.")
@click.option("--queue", type=click.IntRange(0), default=64, help="Most requests that wait.")
@click.option(
    "--max-tokens",
    type=click.IntRange(1),
    default=256,
    help="Most tokens of an answer whose request names no number.",
)
@click.option(
    "--temperature",
    type=click.FloatRange(0, 2),
    default=1.0,
    help="Of requests that name none; 0 takes the most likely token.",
)
@click.option("--max-body", type=click.IntRange(1), default=1 << 20, help="Bytes of a request.")
@click.option(
    "--drain",
    type=click.FloatRange(0),
    default=30.0,
    help="Seconds for open requests to finish in when the server is stopped.",
)
@options.engine(cache_tokens=8192)
@click.pass_context
def serve(context: click.Context, /, **values: Any) -> None:
    """Serves OpenAI's interface over HTTP until SIGTERM or an interrupt."""
    from llm.serving.command import serve as run_server

    options.refuse_two_sizes(context)
    given, notes = SimpleNamespace(**values), Console(stderr=True)

    with ending(notes):
        fetch_first(given, notes)
        with joined(given, run_rank) as ranks:
            if ranks is not None and ranks.place.rank:
                serve_first_rank(given, ranks)
            else:
                load = partial(start, given, notes, ranks=ranks)
                run_server(given, load, lambda text: say(notes, text))
