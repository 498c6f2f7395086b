"""The server over a real socket, with a model whose tokens are known."""

from __future__ import annotations

import asyncio
import json
import threading
import time

import httpx2
import pytest

from llm.tests.served import (
    BLOCKS,
    SAID,
    background,
    chat,
    complete,
    events,
    until,
)


def test_an_answer_has_the_fields_that_clients_read(shared):
    body = chat(shared, max_tokens=4).json()
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "caf\ufffd"}
    assert choice["finish_reason"] == "length"
    assert body["object"] == "chat.completion"
    assert body["usage"] == {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}


@pytest.mark.parametrize("more", [{}, {"stop": "the e"}, {"stop": [". t", "\u20ac"]}])
def test_a_stream_says_what_one_body_says(shared, more):
    whole = complete(shared, **more).json()
    pieces = events(complete(shared, stream=True, stream_options={"include_usage": True}, **more))
    texts = [piece["choices"][0]["text"] for piece in pieces[:-1]]
    assert "".join(texts) == whole["choices"][0]["text"]
    assert not any("\ufffd" in text for text in texts[:-2])
    assert pieces[-2]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert pieces[-1]["usage"] == whole["usage"]
    assert len({piece["id"] for piece in pieces}) == 1


def test_a_stream_of_a_conversation_says_who_speaks(shared):
    first, *pieces, last = events(chat(shared, stream=True))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    said = "".join(piece["choices"][0]["delta"]["content"] for piece in pieces)
    assert said == SAID.encode()[:20].decode(errors="replace")
    assert last["choices"][0]["delta"] == {}


def test_a_stop_string_ends_an_answer_and_is_no_part_of_it(shared):
    body = complete(shared, stop=["\u20ac."]).json()
    assert body["choices"][0]["text"] == "caf\u00e9 th"
    assert body["choices"][0]["finish_reason"] == "stop"


BAD = [
    ({"prompt": 3}, "prompt", 400),
    ({"prompt": []}, "prompt", 400),
    ({"prompt": ""}, "prompt", 400),
    ({"prompt": ["a", "b"]}, "prompt", 400),
    ({"prompt": [256]}, "prompt", 400),
    ({"prompt": [True]}, "prompt", 400),
    ({"prompt": "\ud800"}, "prompt", 400),
    ({"prompt": "a" * 500}, "prompt", 400),
    ({"max_tokens": 0}, "max_tokens", 400),
    ({"max_tokens": 1.5}, "max_tokens", 400),
    ({"max_tokens": True}, "max_tokens", 400),
    ({"temperature": -1}, "temperature", 400),
    ({"temperature": "hot"}, "temperature", 400),
    ({"top_p": 1.1}, "top_p", 400),
    ({"seed": 2**63}, "seed", 400),
    ({"stop": ""}, "stop", 400),
    ({"stop": ["a"] * 5}, "stop", 400),
    ({"stop": 4}, "stop", 400),
    ({"stream": "yes"}, "stream", 400),
    ({"stream_options": {}}, "stream_options", 400),
    ({"stream": True, "stream_options": {"colour": 1}}, "stream_options.colour", 400),
    ({"\ud800": 1}, "?", 400),
    ({"n": 2}, "n", 400),
    ({"logprobs": 1}, "logprobs", 400),
    ({"tools": [{}]}, "tools", 400),
    ({"logit_bias": {"1": 2}}, "logit_bias", 400),
    ({"colour": "red"}, "colour", 400),
    ({"model": "another"}, "model", 404),
    ({"model": 4}, "model", 400),
]


@pytest.mark.parametrize(("body", "param", "status"), BAD)
def test_a_bad_field_is_named(shared, body, param, status):
    reply = shared.client.post("/v1/completions", content=json.dumps({"prompt": "ab", **body}))
    assert reply.status_code == status
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ("hi", "messages"),
        ([], "messages"),
        ([3], "messages[0]"),
        ([{"role": "tool", "content": "a"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": "a", "colour": 1}], "messages[0].colour"),
        ([{"role": "assistant", "content": "a", "tool_calls": [{}]}], "messages[0].tool_calls"),
    ],
)
def test_a_bad_message_is_named(shared, messages, param):
    reply = chat(shared, messages=messages)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"{", b"[]", b"\xff", b"[" * 1900, b'{"n": NaN}', b'{"n":' + b"9" * 900 + b"}"),
        b'{"prompt": "a", "max_tokens": 1, "max_tokens": 2}',
    ],
)
def test_a_body_that_is_no_object_is_refused(shared, raw):
    reply = shared.client.post("/v1/completions", content=raw)
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] in {"invalid_json", "invalid_type"}


def test_a_prompt_that_does_not_fit_says_so_in_the_words_of_openai(shared):
    error = complete(shared, prompt="a" * 101).json()["error"]
    assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_is_refused(shared, chunked):
    size, piece = 90_000, 9_000
    raw = b" " * size
    content = (raw[:piece] for _ in range(size // piece)) if chunked else raw
    reply = shared.client.post("/v1/completions", content=content)
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "body_too_large")


def test_what_clients_send_by_habit_is_accepted(shared):
    habits = {"user": "me", "n": 1, "logprobs": None, "store": False, "model": "tiny"}
    asks = {"response_format": {"type": "text"}, "tool_choice": "none", "logit_bias": {}}
    assert complete(shared, **habits, **asks).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/completions", 405), ("POST", "/v1/models", 405), ("GET", "/v2", 404)],
)
def test_other_routes_are_refused_as_json(shared, method, path, status):
    reply = shared.client.request(method, path)
    assert (reply.status_code, reply.json()["error"]["type"]) == (status, "invalid_request_error")


def test_the_model_is_listed(shared):
    (model,) = shared.client.get("/v1/models").json()["data"]
    assert shared.client.get(f"/v1/models/{model['id']}").json() == model
    assert shared.client.get("/v1/models/other").status_code == 404


def test_health_metrics_and_page_say_the_same(server):
    complete(server)
    facts = server.client.get("/health").json()
    assert facts["state"] == "running"
    assert facts["cache"] == {"blocks_free": BLOCKS, "blocks": BLOCKS}
    assert facts["tokens"] == 20
    assert f"llm_cache_blocks_free {BLOCKS}\n" in server.client.get("/metrics").text
    assert 'llm_requests_total{outcome="length"} 1' in server.client.get("/metrics").text
    assert 'llm_memory_bytes{tag="kv_cache"} 4096\n' in server.client.get("/metrics").text
    assert facts["memory_bytes"] == {"kv_cache": 4096}
    assert "<h1>tiny</h1>" in server.client.get("/").text


def leave_early(server, **body):
    """Opens a request and hangs up once it runs; the model stands still meanwhile."""
    server.model.gate.clear()
    with pytest.raises(httpx2.ReadTimeout):
        server.client.post("/v1/completions", json={"prompt": "ab", **body}, timeout=0.2)
    until(lambda: not server.worker._inbox.empty())  # the server has noticed
    server.model.gate.set()
    until(lambda: server.worker.status.outcomes.get("cancelled"))


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_gives_its_blocks_back(server, stream):
    leave_early(server, stream=stream, max_tokens=90)
    until(lambda: server.pool.num_free == BLOCKS)
    assert server.worker.status.tokens < 90
    assert complete(server).status_code == 200


def test_a_client_that_leaves_in_the_middle_of_a_stream_does_too(server):
    body = {"prompt": "ab", "max_tokens": 90, "stream": True}
    steps = server.model.step

    def slowly(pieces):
        time.sleep(0.005)
        return steps(pieces)

    server.model.step = slowly
    with server.client.stream("POST", "/v1/completions", json=body) as reply:
        next(reply.iter_lines())
    until(lambda: server.worker.status.outcomes.get("cancelled"))
    until(lambda: server.pool.num_free == BLOCKS)
    assert complete(server).status_code == 200


def test_a_full_queue_says_when_to_come_again(server):
    server.model.gate.clear()
    threads, replies = background(server, 6)
    until(lambda: len(server.worker._open) == 6)
    busy = complete(server)
    assert (busy.status_code, busy.headers["retry-after"]) == (429, "1")
    assert busy.json()["error"]["type"] == "rate_limit_error"
    server.model.gate.set()
    for thread in threads:
        thread.join()
    assert [reply.status_code for reply in replies] == [200] * 6
    assert complete(server).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_fails_answers_everybody_and_says_so(server, stream):
    server.model.gate.clear()
    threads, replies = background(server, 3, stream=stream)
    until(lambda: len(server.worker._open) == 3)
    server.model.broken = True
    server.model.gate.set()
    for thread in threads:
        thread.join()
    assert [reply.status_code for reply in replies] == [500] * 3
    assert "broken on purpose" in replies[0].json()["error"]["message"]
    assert server.pool.num_free == BLOCKS
    assert complete(server).status_code == 503
    health = server.client.get("/health")
    assert (health.status_code, health.json()["state"]) == (503, "failed")


def test_a_stream_that_fails_in_the_middle_says_so_and_ends(server):
    def once(pieces):
        if pieces[0].request.output:
            raise RuntimeError("broken on purpose")
        return [65 for p in pieces if p.samples]

    server.model.step = once
    first, last = events(complete(server, stream=True))
    assert first["choices"][0]["text"] == "A"
    assert last["error"]["code"] == "engine_failed"


def test_many_clients_at_a_time_get_what_each_gets_alone(server):
    wants = {n: complete(server, max_tokens=n).json()["choices"] for n in range(1, 20)}

    async def every():
        async with httpx2.AsyncClient(base_url=server.client.base_url, timeout=20) as client:

            async def one(n):
                while True:
                    body = {"prompt": "ab" * n, "max_tokens": n}
                    reply = await client.post("/v1/completions", json=body)
                    if reply.status_code != 429:
                        return reply.json()["choices"]
                    await asyncio.sleep(0.01)

            return await asyncio.gather(*(one(n) for n in wants))

    assert asyncio.run(every()) == list(wants.values())


def test_stopping_finishes_what_is_open(server):
    server.model.gate.clear()
    threads, replies = background(server, 2)
    until(lambda: len(server.worker._open) == 2)
    stopper = threading.Thread(target=server.worker.stop)
    stopper.start()
    until(lambda: server.worker._state == "draining")
    assert complete(server).status_code == 503
    server.model.gate.set()
    for thread in (*threads, stopper):
        thread.join()
    assert [reply.status_code for reply in replies] == [200, 200]
    assert server.worker.status.state == "stopped"
