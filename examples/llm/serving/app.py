"""The routes of the server; they know HTTP and tickets, and nothing of models or blocks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llm.errors import PromptTooLong, RequestError
from llm.protocol import asks
from llm.protocol.failures import Refusal, invalid
from llm.protocol.replies import Reply
from llm.serving import pages
from llm.serving.engine_thread import Ended, Event, Text, Ticket, Worker
from llm.tokenizer import Tokenizer

_DROPPED = 64  # times the limit: so much of a body that is too large is still read


@dataclass(frozen=True)
class Service:
    """What the routes need.

    Attributes:
        worker: The engine thread.
        tokenizer: Turns prompts into tokens.
        vocab: Tokens that exist.
        name: What the model is called.
        defaults: What holds where a request says nothing.
        most_bytes: The largest body that is read.
        patience: Seconds that open requests get when the server stops.
        facts: Device, versions and the like, for ``/health``.
        body_seconds: How long the body of a request may take to come.
        calls: How often which implementation ran at each site, if it is counted.
    """

    worker: Worker
    tokenizer: Tokenizer
    vocab: int
    name: str
    defaults: asks.Defaults = field(default_factory=asks.Defaults)
    most_bytes: int = 1 << 20
    patience: float = 30.0
    facts: dict[str, Any] = field(default_factory=dict)
    calls: Callable[[], list[dict[str, Any]]] = list
    body_seconds: float = 60.0


class Answering(Response):
    """Sends one answer, whole or as a stream; a client that leaves cancels its ticket."""

    def __init__(self, worker: Worker, ticket: Ticket, events: Events, reply: Reply) -> None:
        super().__init__()
        self._worker, self._ticket, self._events, self._reply = worker, ticket, events, reply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs until the last event, or until the client is gone."""
        watch = asyncio.create_task(self._leave(receive))
        try:
            if self._ticket.ask.stream:
                await self._stream(scope, receive, send)
            else:
                await self._whole(scope, receive, send)
        except OSError:  # the client left while something was sent
            pass
        finally:
            watch.cancel()
            self._worker.cancel(self._ticket)  # does nothing to one that has ended

    async def _leave(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._events.put_nowait(None)

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        text = ""
        while (event := await self._events.get()) is not None:
            if isinstance(event, Text):
                text += event.text
                continue
            response = (
                JSONResponse(self._reply.whole(text, event.tokens, event.why))
                if isinstance(event, Ended)
                else refused(event)
            )
            await response(scope, receive, send)
            return

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        first = await self._events.get()
        if first is None:
            return
        if isinstance(first, Refusal):  # nothing was sent yet, so the status can still say it
            await refused(first)(scope, receive, send)
            return
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        head = Response(headers=headers, media_type="text/event-stream")
        raw = [(k, v) for k, v in head.raw_headers if k != b"content-length"]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        bodies: list[dict[str, Any]] = self._reply.opening()
        event: Event = first
        while True:
            if isinstance(event, Text):
                bodies.append(self._reply.piece(event.text))
            elif isinstance(event, Ended):
                bodies += self._reply.closing(event.tokens, event.why)
            else:
                bodies = [event.body]
            lines = "".join(f"data: {json.dumps(body)}\n\n" for body in bodies)
            more = isinstance(event, Text)
            if not more:
                lines += "data: [DONE]\n\n"
            await send(_chunk(lines, more=more))
            if not more:
                return
            following = await self._events.get()
            if following is None:
                return
            bodies, event = [], following


Events = asyncio.Queue[Event | None]


def _chunk(lines: str, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": lines.encode(), "more_body": more}


def refused(refusal: Refusal) -> Response:
    """The reply to a request that is refused."""
    return JSONResponse(refusal.body, refusal.status, refusal.headers)


async def read_body(request: Request, most: int, seconds: float) -> bytes:
    """The whole body, which must come within so many seconds.

    What is too much is read and dropped, within reason: a connection that is closed over bytes
    that nobody read is reset, and the client would never see the refusal.

    Raises:
        Refusal: It is larger than ``most`` bytes, or its end does not come.
    """
    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(seconds):
            async for piece in request.stream():
                size += len(piece)
                if size <= most:
                    body += piece
                elif size > most * _DROPPED:
                    break
    except TimeoutError:
        what = f"the end of the body did not come within {seconds:g} seconds; {size} bytes came"
        raise Refusal(408, what, code="body_timeout", headers={"Connection": "close"}) from None
    if size > most:
        what = f"the body is larger than {most} bytes"
        raise Refusal(413, what, code="body_too_large", headers={"Connection": "close"})
    return bytes(body)


def _emitter(events: Events) -> Callable[[Event], None]:
    """Carries events from the engine's thread into the loop of the server."""
    loop = asyncio.get_running_loop()

    def emit(event: Event) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(events.put_nowait, event)

    return emit


async def answer(service: Service, request: Request, *, chat: bool) -> Response:
    """Checks a request, hands it to the engine, and answers it."""
    try:
        body = asks.parse(await read_body(request, service.most_bytes, service.body_seconds))
        # In a thread, as a long prompt takes a while to be turned into tokens.
        ask = await asyncio.to_thread(
            asks.read, body, service.tokenizer, service.vocab, service.defaults, chat=chat
        )
        _known(service, ask.model)
        events: Events = asyncio.Queue()
        ticket = service.worker.submit(ask, _emitter(events))
    except Refusal as refusal:
        return refused(refusal)
    except ClientDisconnect:
        return Response(status_code=499)  # nobody reads it
    except RequestError as error:
        code = "context_length_exceeded" if isinstance(error, PromptTooLong) else "invalid_value"
        what = str(error).partition("\n")[0]
        return refused(invalid("messages" if chat else "prompt", what, code))
    return Answering(service.worker, ticket, events, Reply(ask, service.name))


def _unknown(service: Service, name: str) -> Refusal:
    what = f"the model {name!a} does not exist; this server has {service.name!r}"
    return Refusal(404, what, param="model", code="model_not_found")


def _known(service: Service, name: str | None) -> None:
    if name not in (None, service.name):
        raise _unknown(service, str(name))


def _model(service: Service) -> dict[str, Any]:
    return {"id": service.name, "object": "model", "created": 0, "owned_by": "local"}


async def _failure(_: Request, error: Exception) -> Response:
    """Routes that do not exist, and methods that they do not take."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    what = error.detail if isinstance(error, HTTPException) else "the server failed"
    headers = error.headers if isinstance(error, HTTPException) else None
    return refused(Refusal(status, what, headers=dict(headers or {})))


Endpoint = Callable[[Request], Awaitable[Response]]


def _routes(service: Service) -> list[Route]:
    async def chat(request: Request) -> Response:
        return await answer(service, request, chat=True)

    async def complete(request: Request) -> Response:
        return await answer(service, request, chat=False)

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [_model(service)]})

    async def model(request: Request) -> Response:
        if request.path_params["name"] != service.name:
            return refused(_unknown(service, request.path_params["name"]))
        return JSONResponse(_model(service))

    def facts() -> dict[str, Any]:
        return pages.health(service.worker, service.name, service.facts, service.calls())

    async def health(_: Request) -> Response:
        found = facts()
        return JSONResponse(found, 200 if found["state"] == "running" else 503)

    async def page(_: Request) -> Response:
        return HTMLResponse(pages.page(facts()))

    async def metrics(_: Request) -> Response:
        kind = "text/plain; version=0.0.4"
        said = pages.metrics(service.worker, service.calls(), service.facts.get("memory_bytes"))
        return PlainTextResponse(said, media_type=kind)

    posts: dict[str, Endpoint] = {"/v1/chat/completions": chat, "/v1/completions": complete}
    gets: dict[str, Endpoint] = {
        "/v1/models": models,
        "/v1/models/{name:path}": model,
        "/health": health,
        "/metrics": metrics,
        "/": page,
    }
    return [Route(path, f, methods=["POST"]) for path, f in posts.items()] + [
        Route(path, f, methods=["GET"]) for path, f in gets.items()
    ]


class Cancellable:
    """Answers a request that the server cancels because it ends, instead of failing."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the request; what was not answered by then gets the error body."""
        started = False

        async def sent(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, sent)
        except asyncio.CancelledError:
            if scope["type"] == "http" and not started:
                what = "the server stopped before the request was whole"
                await refused(Refusal(500, what, code="engine_stopped"))(scope, receive, send)


def make(service: Service) -> Starlette:
    """The application; it starts the engine's thread and drains it at the end."""

    @asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        service.worker.start()
        try:
            yield
        finally:
            await asyncio.to_thread(service.worker.stop, service.patience)

    handlers: dict[Any, Any] = {HTTPException: _failure, Exception: _failure}
    return Starlette(
        routes=_routes(service),
        lifespan=life,
        exception_handlers=handlers,
        middleware=[Middleware(Cancellable)],
    )
