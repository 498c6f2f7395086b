"""What uvicorn does otherwise than this server needs: how it stops, and how it refuses nonsense."""

from __future__ import annotations

import json
import math
import socket
import threading
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from llm.protocol.failures import Refusal
from llm.serving import app

GRACE = 1  # seconds after the patience: for replies to be sent, and for the last step


class JsonProtocol(H11Protocol):
    """Refuses what is no HTTP with the same error body as everything else."""

    def send_400_response(self, msg: str) -> None:
        """Answers unless an answer has begun, and closes the connection."""
        cycle: Any = self.cycle  # none before the first request
        if cycle is None or cycle.response_complete or not cycle.response_started:
            body = json.dumps(Refusal(400, msg, code="invalid_http").body).encode()
            head = (
                "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()


class Server(uvicorn.Server):
    """Tells the engine's thread at once when the server is to stop.

    uvicorn first waits for the open requests, and these for the thread: told by the end of the
    application alone, it would have its patience after uvicorn had lost its own.
    """

    def __init__(self, service: app.Service, port: int = 0) -> None:
        config = uvicorn.Config(
            app.make(service),
            port=port,
            http=JsonProtocol,
            log_level="warning",
            access_log=False,
            server_header=False,
            # Requests end by the worker's patience; this is for clients that do not read.
            timeout_graceful_shutdown=math.ceil(service.patience) + GRACE,
        )
        super().__init__(config)
        self._service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stops the engine while uvicorn waits for the open requests."""
        worker, patience = self._service.worker, self._service.patience
        threading.Thread(target=worker.stop, args=(patience,), daemon=True).start()
        await super().shutdown(sockets)
