"""The server when it is stopped, and when what comes is no request."""

from __future__ import annotations

import asyncio
import json

import pytest

from llm.serving import app
from llm.serving import engine_thread as worker_module
from llm.tests.served import (
    background,
    chat,
    exchanged,
    running_server,
    until,
)


def test_a_message_in_parts_is_their_text(shared):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    says = [{"role": "user", "content": parts, "name": "me", "tool_calls": None}]
    assert chat(shared, messages=says).json()["usage"]["prompt_tokens"] == len("u:ab;")


POST = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n"


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\r\n\r\n",
        POST + b"Content-Length: -5\r\n\r\n{}",
        POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
        POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}",
    ],
)
def test_what_is_no_http_is_refused_as_json(shared, data):
    status, body = exchanged(shared, data)
    assert (status, json.loads(body)["error"]["code"]) == (400, "invalid_http")


def test_a_body_whose_end_does_not_come_is_refused():
    with running_server(body_seconds=0.05) as server:
        status, body = exchanged(server, POST + b"Content-Length: 50\r\n\r\n{}")
    assert (status, json.loads(body)["error"]["code"]) == (408, "body_timeout")


def test_requests_on_one_connection_are_all_answered(shared):
    body = b'{"prompt": "ab", "max_tokens": 1}'
    one = POST + b"Content-Length: %d\r\n\r\n" % len(body) + body
    _, rest = exchanged(shared, 2 * one + one.replace(b"Host", b"Connection: close\r\nHost"))
    assert rest.count(b"HTTP/1.1 200 OK") == 2
    assert rest.count(b'"text":"c"') == 3


def test_calls_are_counters_with_quoted_labels(shared):
    text = shared.client.get("/metrics").text
    assert 'trivet_calls_total{site="s\\"\\n",implementation="a/b"} 3\n' in text
    assert shared.client.get("/health").json()["calls"] == {'s"\n': {"a/b": 3}}


@pytest.mark.parametrize("stream", [False, True])
def test_what_outlives_the_patience_is_refused_while_the_step_still_runs(stream, capfd):
    with running_server(patience=0.05) as server:
        server.model.gate.clear()
        threads, replies = background(server, 2, stream=stream)
        until(lambda: len(server.worker._open) == 2)
        server.running.should_exit = True
        for thread in threads:
            thread.join()
        assert not server.model.gate.is_set()
        assert server.worker._thread.is_alive()
        assert [reply.status_code for reply in replies] == [500, 500]
        assert {reply.json()["error"]["code"] for reply in replies} == {"engine_stopped"}
        assert server.worker.status.outcomes == {}
    assert server.worker._outcomes == {"stopped": 2}
    assert "Traceback" not in capfd.readouterr().err


def test_the_patience_is_spent_once(server, monkeypatch):
    server.model.gate.clear()
    threads, _ = background(server, 1)
    until(lambda: len(server.worker._open) == 1)
    waited = []
    monkeypatch.setattr(server.worker, "join", lambda seconds: waited.append(seconds) or False)
    now = [100.0]
    monkeypatch.setattr(worker_module.time, "monotonic", lambda: now[0])
    server.worker.stop(3.0)
    now[0] += 2
    server.worker.stop(3.0)
    monkeypatch.undo()
    threads[0].join()
    assert waited == [3.0, 1.0]


def test_a_request_that_is_cancelled_before_its_body_came_is_answered():
    sent = []

    async def run():
        async def endless(*_):
            await asyncio.sleep(3600)

        async def send(message):
            sent.append(message)

        task = asyncio.create_task(app.Cancellable(endless)({"type": "http"}, endless, send))
        await asyncio.sleep(0)
        task.cancel()
        await task

    asyncio.run(run())
    assert sent[0]["status"] == 500
    assert json.loads(sent[1]["body"])["error"]["code"] == "engine_stopped"
