"""Answers a file of requests, one JSON object a line, and writes each answer as it is finished.

A line is a request of OpenAI's batch files (``custom_id``, ``url``, ``body``), or an object with
``prompt`` and options of sampling. A line of the output is on the disk before the next is written;
a run that is started again goes on where the output ends.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.progress import Progress

from llm.answer import Answer
from llm.errors import OutputError, PromptTooLong, RequestError
from llm.protocol import asks
from llm.protocol.failures import Refusal, invalid
from llm.protocol.replies import Reply, reason
from llm.schedule import Model, Request, generate
from llm.start import Engine

_URLS = {"/v1/chat/completions": True, "/v1/completions": False}


@dataclass
class _Open:
    """A line that is being answered."""

    name: str
    simple: bool
    reply: Reply
    answer: Answer
    text: str = ""


_BEGIN = b'{"custom_id": '
"""How each line of an output begins."""


def finished(path: Path) -> set[str]:
    """The ids of the answers in an output; a last line that was cut is taken away.

    Nothing is taken from a file that is something else.

    Raises:
        OutputError: The file cannot be read, or is no output of this command.
    """
    try:
        with path.open("rb+") as file:
            raw = file.read()
            whole = raw.rfind(b"\n") + 1
            done = {str(json.loads(line)["custom_id"]) for line in raw[:whole].splitlines()}
            if raw[whole:][: len(_BEGIN)] != _BEGIN[: len(raw) - whole]:
                raise ValueError("its end is no answer that was cut")  # noqa: TRY301 - as above
            file.truncate(whole)
            return done
    except FileNotFoundError:
        return set()
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        what = f"{path} exists and is no output of a batch: {error!r}"
        raise OutputError(what, fix="give another file with --output") from error


class Batch:
    """One run over a file.

    Args:
        engine: Answers.
        model: Runs the steps: the engine's own, or one that stands before it.
        defaults: What holds where a line says nothing.
        output: Where answers are appended.
        raw: Whether a simple line's prompt is given without the chat template.
    """

    def __init__(
        self, engine: Engine, model: Model, defaults: asks.Defaults, output: TextIO, *, raw: bool
    ) -> None:
        self._engine, self._model, self._defaults = engine, model, defaults
        self._output, self._raw = output, raw
        self._open: dict[Request, _Open] = {}
        self.outcomes: Counter[str] = Counter()

    def run(self, lines: Iterator[tuple[int, bytes]], done: set[str]) -> Iterator[None]:
        """Answers the lines and yields once for each that is finished."""
        seen: set[str] = set()
        scheduler, room = self._engine.scheduler, 64  # enough to keep the batch full

        def refill() -> Iterator[None]:
            for number, raw in lines:
                if self._begin(number, raw, done, seen):
                    yield None
                if len(self._open) >= room:
                    return

        yield from refill()
        for request, token in generate(self._model, scheduler):
            line = self._open[request]
            line.text += line.answer.push(token, last=bool(request.finish))
            if line.answer.stopped:
                scheduler.end(request, "stop")
            if request.finish:
                del self._open[request]
                self._write(line.name, self._answered(line, request), None)
                yield None
                yield from refill()

    def _begin(self, number: int, raw: bytes, done: set[str], seen: set[str]) -> bool:
        """Hands a line to the scheduler; true when there is nothing left to do for it."""
        name = f"line-{number}"
        try:
            line = asks.parse(raw)
            name = str(line.get("custom_id", name))
            if name in seen:
                raise invalid("custom_id", f"custom_id {name!a} was there before")
            seen.add(name)
            if name in done:
                self.outcomes["kept"] += 1
                return True
            simple = "body" not in line
            ask = self._ask(line, simple=simple)
            scheduler = self._engine.scheduler
            request = scheduler.submit(ask.prompt, ask.max_tokens, ask.sampling)
        except Refusal as error:
            self._write(name, None, {**error.body["error"], "line": number})
            return True
        except RequestError as error:
            code = "context_length_exceeded" if isinstance(error, PromptTooLong) else None
            refusal = Refusal(400, str(error).partition("\n")[0], code=code)
            self._write(name, None, {**refusal.body["error"], "line": number})
            return True
        reply = Reply(ask, self._engine.name)
        answer = Answer(self._engine.tokenizer, ask.stops)
        self._open[request] = _Open(name, simple, reply, answer)
        return False

    def _ask(self, line: dict[str, Any], *, simple: bool) -> asks.Ask:
        if simple:
            body = {key: value for key, value in line.items() if key != "custom_id"}
            chat = not self._raw and isinstance(body.get("prompt"), str)
            if chat:
                body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
        else:
            body, url = line["body"], line.get("url", "/v1/chat/completions")
            if not isinstance(body, dict):
                raise invalid("body", "body must be an object", "invalid_type")
            if not isinstance(url, str) or url not in _URLS or line.get("method", "POST") != "POST":
                raise invalid("url", f"url must be one of {', '.join(_URLS)}, method POST")
            chat = _URLS[url]
        if body.get("stream"):
            raise invalid("stream", "a line of a batch cannot be a stream", "unsupported_parameter")
        vocab = self._engine.model.config.vocab
        return asks.read(body, self._engine.tokenizer, vocab, self._defaults, chat=chat)

    @staticmethod
    def _answered(line: _Open, request: Request) -> dict[str, Any]:
        tokens, why = len(request.output), reason(request.finish)
        if not line.simple:
            body = line.reply.whole(line.text, tokens, why)
            return {"response": {"status_code": 200, "request_id": body["id"], "body": body}}
        seed = request.sampling.reported_seed
        answer = {"text": line.text, "finish_reason": why, "usage": line.reply.usage(tokens)}
        return answer if seed is None else {**answer, "seed": seed}

    def _write(
        self, name: str, answer: dict[str, Any] | None, error: dict[str, Any] | None
    ) -> None:
        line = {"custom_id": name, **(answer or {"response": None}), "error": error}
        try:
            self._output.write(json.dumps(line) + "\n")
            self._output.flush()
        except OSError as failure:
            raise OutputError(f"the answers cannot be written: {failure.strerror}") from failure
        self.outcomes["answered" if error is None else "refused"] += 1


def _lines(file: Any) -> Iterator[tuple[int, bytes]]:
    return ((n, raw) for n, raw in enumerate(file, 1) if raw.strip())


def run(
    engine: Engine,
    model: Model,
    source: Path,
    target: Path,
    defaults: asks.Defaults,
    notes: Console,
    *,
    raw: bool,
) -> dict[str, int]:
    """Answers all lines of ``source`` into ``target`` with a progress bar.

    Returns:
        How many lines were answered, refused, and kept from an earlier run.

    Raises:
        RequestError: The source cannot be read.
        OutputError: The target cannot be written.
    """
    done = finished(target)
    try:
        with source.open("rb") as file:
            total = sum(1 for _ in _lines(file))
        file = source.open("rb")
    except OSError as error:
        raise RequestError(f"{source}: {error.strerror}") from error
    try:
        output = target.open("a", encoding="utf-8")
    except OSError as error:
        file.close()
        raise OutputError(f"{target}: {error.strerror}") from error
    with file, output, Progress(console=notes, disable=not notes.is_terminal) as progress:
        bar = progress.add_task(source.name, total=total)
        batch = Batch(engine, model, defaults, output, raw=raw)
        for _ in batch.run(_lines(file), done):
            progress.advance(bar)
    return dict(batch.outcomes)
