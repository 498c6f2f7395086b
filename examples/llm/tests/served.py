"""A server over a real socket, with a model whose tokens are known, and how tests ask it."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import httpx2

from llm.protocol.asks import Defaults
from llm.schedule import Scheduler
from llm.serving import app
from llm.serving.engine_thread import Worker
from llm.serving.server import Server
from trivet.memory import KvBlocks

SAID = "caf\u00e9 th\u20ac. the end"
BLOCKS = 40


class Model:
    """Says ``SAID`` byte by byte, again and again; waits while its gate is shut."""

    def __init__(self):
        self.gate, self.broken = threading.Event(), False
        self.gate.set()

    def step(self, pieces):
        assert self.gate.wait(20)
        if self.broken:
            raise RuntimeError("broken on purpose")
        said = SAID.encode()
        return [said[len(p.request.output) % len(said)] for p in pieces if p.samples]


@contextmanager
def running_server(patience=5.0, body_seconds=20.0, blocks=BLOCKS, salt=None):
    """A server on a free port, and what a test may turn in it."""
    tokenizer = SimpleNamespace(
        encode=lambda text: list(text.encode()),
        decode=lambda ids: bytes(ids).decode(errors="replace"),
        chat=lambda turns: "".join(f"{t['role'][0]}:{t['content']};" for t in turns),
    )
    model, pool = Model(), KvBlocks(blocks, 4)
    plan = Scheduler(pool, max_batch=4, budget=32, context=100, eos=frozenset(), salt=salt)
    worker = Worker(model, plan, pool, tokenizer, capacity=6)
    service = app.Service(
        worker,
        tokenizer,
        256,
        "tiny",
        Defaults(20, {"temperature": 0.0}),
        most_bytes=2000,
        patience=patience,
        facts={"memory_bytes": {"kv_cache": 4096}},
        calls=lambda: [{"site": 's"\n', "implementation": "a/b", "calls": 3}],
        body_seconds=body_seconds,
    )
    running = Server(service)
    thread = threading.Thread(target=running.run)
    thread.start()
    until(lambda: running.started)
    port = running.servers[0].sockets[0].getsockname()[1]
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
        yield SimpleNamespace(
            model=model, pool=pool, worker=worker, client=client, port=port, running=running
        )
    model.gate.set()
    running.should_exit = True
    thread.join(20)
    assert not thread.is_alive()
    assert worker.join(20)
    assert pool.num_free == blocks


def until(true, seconds=20):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def complete(server, **body):
    return server.client.post("/v1/completions", json={"prompt": "ab", **body})


def chat(server, **body):
    says = [{"role": "user", "content": "ab"}]
    return server.client.post("/v1/chat/completions", json={"messages": says, **body})


def events(response):
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = response.text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def background(server, count, **body):
    replies = []

    def one():
        replies.append(complete(server, **body))

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads, replies


def exchanged(server, data):
    """What comes back for some bytes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as link:
        link.sendall(data)
        got = b""
        while piece := link.recv(65536):
            got += piece
    head, _, body = got.partition(b"\r\n\r\n")
    return int(head.split()[1]), body
