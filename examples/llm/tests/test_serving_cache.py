"""A server whose cache is too small for all that runs, and one that shares beginnings."""

from __future__ import annotations

import pytest

from llm.protocol.asks import Ask
from llm.sampling import GREEDY
from llm.serving.engine_thread import Ended, Text
from llm.tests.served import SAID, background, complete, events, running_server, until


@pytest.fixture
def small():
    """Ten blocks of four tokens: less than two answers of 30 tokens need."""
    with running_server(blocks=10) as made:
        yield made


@pytest.mark.parametrize("stream", [False, True])
def test_answers_are_whole_although_requests_are_put_aside(small, stream):
    small.model.gate.clear()
    threads, replies = background(small, 5, max_tokens=30, stream=stream)
    until(lambda: len(small.worker._open) == 5)
    small.model.gate.set()
    for thread in threads:
        thread.join()
    said = SAID.encode() * 2
    for reply in replies:
        if stream:
            text = "".join(piece["choices"][0]["text"] for piece in events(reply))
        else:
            text = reply.json()["choices"][0]["text"]
        assert text == said[:30].decode(errors="replace")
    use = small.client.get("/health").json()["cache_use"]
    assert use["preemptions"] > 0
    assert use["prompt_tokens"] == 5 * 2
    assert f"llm_preemptions_total {use['preemptions']}\n" in small.client.get("/metrics").text


def test_a_request_that_is_put_aside_can_be_cancelled_and_the_others_end(small):
    worker, told = small.worker, [[], [], []]
    small.model.gate.clear()
    tickets = [
        worker.submit(Ask(False, [1, 2], 30, GREEDY, (), True, False, None), events_.append)
        for events_ in told
    ]
    steps = small.model.step

    def step(pieces):
        for ticket in tickets:
            if ticket.request is not None and ticket.request.preempted and not cancelled:
                cancelled.append(ticket)
                worker.cancel(ticket)
        return steps(pieces)

    cancelled, small.model.step = [], step
    small.model.gate.set()
    until(lambda: sum(worker.status.outcomes.values()) == 3)
    assert worker.status.outcomes == {"cancelled": 1, "length": 2}
    for ticket, heard in zip(tickets, told, strict=True):
        texts = "".join(event.text for event in heard if isinstance(event, Text))
        assert SAID.startswith(texts[: len(SAID)])
        assert isinstance(heard[-1], Ended) != (ticket in cancelled)
    until(lambda: small.pool.num_free == 10)


def test_the_health_page_says_what_was_reused():
    with running_server(salt=b"m") as server:
        for _ in range(2):
            assert complete(server, prompt="a" * 17).status_code == 200
        use = {"prompt_tokens": 34, "reused_tokens": 16, "preemptions": 0}
        assert server.client.get("/health").json()["cache_use"] == use
        assert "llm_reused_tokens_total 16\n" in server.client.get("/metrics").text
        assert "reused tokens 16" in server.client.get("/").text
