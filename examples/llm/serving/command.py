"""Runs the server until it is told to stop."""

from __future__ import annotations

import os
import platform
import signal
import socket
from collections.abc import Callable
from importlib.metadata import version
from types import SimpleNamespace

import torch

from llm import bound
from llm.errors import RequestError
from llm.protocol.asks import Defaults
from llm.start import Engine

_FIX = "python -m pip install 'starlette>=0.40' 'uvicorn>=0.30'"


def serve(
    options: SimpleNamespace, start: Callable[[], Engine], say: Callable[[str], None]
) -> None:
    """Serves until SIGTERM or an interrupt; then finishes what is open.

    Args:
        options: Of the command.
        start: Loads the model; called once the rest is known to work.
        say: Is told where the server listens.

    Raises:
        RequestError: The libraries are missing, or the port cannot be had.
    """
    try:
        import uvicorn  # noqa: F401  # named first where both are missing

        from llm.serving import app
        from llm.serving.engine_thread import Worker
        from llm.serving.server import GRACE, Server
    except ModuleNotFoundError as error:
        what = f"the server needs {error.name}, which is not installed"
        raise RequestError(what, fix=_FIX) from error
    try:
        listener = socket.create_server((options.host, options.port), backlog=1024)
    except OSError as error:
        what = f"{options.host}:{options.port} cannot be listened on: {error.strerror or error}"
        raise RequestError(what, fix="use another --port, or --port 0 for any") from error
    with listener:
        engine = start()
        capacity = options.batch + options.queue
        worker = Worker(
            engine.model,
            engine.scheduler,
            engine.model.pool,
            engine.tokenizer,
            capacity=capacity,
        )
        service = app.Service(
            worker,
            engine.tokenizer,
            engine.model.config.vocab,
            options.name or engine.name,
            Defaults(options.max_tokens, {"temperature": options.temperature}),
            options.max_body,
            options.drain,
            {
                "settings": {name: f"{value} ({who})" for name, value, who in engine.settings},
                "sites": bound.by_site(engine.model.bound()),
                "memory_bytes": engine.model.memory(),
                "versions": {
                    "trivet": version("trivet"),
                    "torch": torch.__version__,
                    "python": platform.python_version(),
                },
                "capacity": capacity,
            },
            engine.model.calls if options.observe else list,
        )
        # uvicorn raises a signal again once it has shut down, for whoever handled it before: here
        # nobody does, as a server that was told to stop and did so has not failed.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        host, port = listener.getsockname()[:2]
        say(f"{service.name} on http://{host}:{port}")
        Server(service).run(sockets=[listener])
        if not worker.join(GRACE):
            os._exit(0)  # a step hangs: Python would wait for its libraries, or be ended by them
        if worker.status.state == "failed":
            raise RequestError(f"the engine failed: {worker.status.error}") from worker.failure
