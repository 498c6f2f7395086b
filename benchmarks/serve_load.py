"""Load on the server of ``examples/llm``: many clients that ask, leave early, and send nonsense.

The server is a child process. A well-formed request must never fail, a bad one must get the right
status, and in the end every block of the cache must be free; anything else makes the exit status 1.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import httpx2
from rich.console import Console
from rich.progress import Progress

COMMAND = Path(__file__).resolve().parent.parent / "examples" / "llm"
PROMPTS = ("Name three rivers.", "What is a trivet?", "Count to ten.", "Write a line on the sea.")
BAD: list[tuple[bytes, int]] = [
    (b"{", 400),
    (b"[]", 400),
    (b'{"messages": 3}', 400),
    (b'{"messages": [{"role": "user", "content": "a"}], "n": 2}', 400),
    (b'{"messages": [{"role": "user", "content": "a"}], "temperature": "hot"}', 400),
    (b'{"model": "none", "messages": [{"role": "user", "content": "a"}]}', 404),
    (json.dumps({"messages": [{"role": "user", "content": "a b " * 20_000}]}).encode(), 400),
    (b" " * (2 << 20), 413),
]


@dataclass
class Tally:
    """What came of the requests; times in seconds."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    tokens: int = 0
    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)

    def fail(self, what: str) -> None:
        """Notes what must not happen."""
        self.outcomes["failed"] += 1
        self.failures.append(what[:200])


def memory(pid: int) -> int:
    """Resident bytes of a process; 0 where the system does not say."""
    status = Path(f"/proc/{pid}/status")
    found = re.search(r"VmRSS:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return int(found[1]) * 1024 if found else 0


def percentiles(values: list[float]) -> dict[str, float]:
    """The usual percentiles, in milliseconds."""
    if len(values) < 2:
        return {}
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {f"p{n}": round(cuts[n - 1] * 1e3, 1) for n in (50, 90, 99)}


class Client:
    """One client that sends one request after the other until time is up."""

    def __init__(self, http: httpx2.AsyncClient, tally: Tally, seed: int, tokens: int) -> None:
        self._http, self._tally, self._rng = http, tally, random.Random(seed)
        self._tokens = tokens

    async def run(self, end: float) -> None:
        """Sends requests of every kind by chance."""
        kinds = (self._whole, self._stream, self._leave, self._nonsense)
        while time.monotonic() < end:
            (kind,) = self._rng.choices(kinds, (4, 4, 1, 1))
            try:
                await kind()
            except httpx2.HTTPError as error:
                self._tally.fail(f"{kind.__name__}: {error!r}")

    def _body(self, **more: Any) -> dict[str, Any]:
        content = " ".join(self._rng.choices(PROMPTS, k=self._rng.randint(1, 4)))
        return {
            "messages": [{"role": "user", "content": content}],
            "max_tokens": self._rng.randint(1, self._tokens),
            "temperature": self._rng.choice((0, 0.8)),
            **more,
        }

    async def _whole(self) -> None:
        start = time.monotonic()
        reply = await self._http.post("/v1/chat/completions", json=self._body())
        if await self._busy(reply.status_code, reply.headers):
            return
        if reply.status_code != 200:
            self._tally.fail(f"{reply.status_code}: {reply.text}")
            return
        self._tally.whole.append(time.monotonic() - start)
        self._tally.tokens += reply.json()["usage"]["completion_tokens"]
        self._tally.outcomes["whole"] += 1

    async def _stream(self, most: int = 1 << 30) -> None:
        """Reads a stream, or leaves it after some pieces."""
        body = self._body(stream=True, stream_options={"include_usage": True})
        last, events, usage = time.monotonic(), 0, None
        async with self._http.stream("POST", "/v1/chat/completions", json=body) as reply:
            if await self._busy(reply.status_code, reply.headers):
                return
            if reply.status_code != 200:
                self._tally.fail(f"{reply.status_code}: {(await reply.aread())!r}")
                return
            async for line in reply.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                event, now = json.loads(line[6:]), time.monotonic()
                if "error" in event:
                    self._tally.fail(line)
                    return
                (self._tally.between if events else self._tally.first).append(now - last)
                last, usage, events = now, event.get("usage") or usage, events + 1
                if events >= most:
                    self._tally.outcomes["left"] += 1
                    return
        if usage is None:
            self._tally.fail("a stream ended early")
            return
        self._tally.tokens += usage["completion_tokens"]
        self._tally.outcomes["stream"] += 1

    async def _leave(self) -> None:
        await self._stream(self._rng.randint(1, 8))

    async def _nonsense(self) -> None:
        raw, want = self._rng.choice(BAD)
        reply = await self._http.post("/v1/chat/completions", content=raw)
        if reply.status_code == want and "message" in reply.json()["error"]:
            self._tally.outcomes[f"refused {want}"] += 1
        else:
            self._tally.fail(f"nonsense got {reply.status_code}, not {want}")

    async def _busy(self, status: int, headers: httpx2.Headers) -> bool:
        """Waits as long as a server says that has too much to do."""
        if status != 429:
            return False
        self._tally.outcomes["busy 429"] += 1
        await asyncio.sleep(float(headers["retry-after"]))
        return True


async def load(
    where: str, pid: int, clients: int, minutes: float, tokens: int
) -> tuple[Tally, dict[str, Any]]:
    """Runs the clients; what came of it, and how the server was at the end."""
    tally, resident = Tally(), [memory(pid)]
    limits = httpx2.Limits(max_connections=None)
    console = Console(stderr=True)
    async with httpx2.AsyncClient(base_url=where, timeout=300, limits=limits) as http:
        start = time.monotonic()
        end = start + minutes * 60
        tasks = [
            asyncio.create_task(Client(http, tally, seed, tokens).run(end))
            for seed in range(clients)
        ]
        with Progress(console=console, disable=not console.is_terminal) as progress:
            bar = progress.add_task("load", total=minutes * 60)
            while (now := time.monotonic()) < end:
                done = sum(tally.outcomes.values())
                progress.update(bar, completed=now - start, description=f"{done} requests")
                if now - start > 60 * len(resident):
                    resident.append(memory(pid))
                await asyncio.sleep(0.5)
        await asyncio.gather(*tasks)
        seconds = time.monotonic() - start
        health = (await http.get("/health")).json()
        for _ in range(100):  # what the last clients left is cancelled at the next step
            if health["cache"]["blocks_free"] == health["cache"]["blocks"]:
                break
            await asyncio.sleep(0.1)
            health = (await http.get("/health")).json()
    resident.append(memory(pid))
    return tally, {"seconds": seconds, "resident_bytes": resident, "health": health}


def summary(tally: Tally, ran: dict[str, Any], clients: int, code: int) -> dict[str, Any]:
    """All figures as plain values."""
    cache = ran["health"]["cache"]
    return {
        "clients": clients,
        "seconds": round(ran["seconds"], 1),
        "requests": dict(sorted(tally.outcomes.items())),
        "failed": tally.outcomes["failed"],
        "failures": tally.failures[:20],
        "tokens_per_second": round(tally.tokens / ran["seconds"], 1),
        "first_token_ms": percentiles(tally.first),
        "between_tokens_ms": percentiles(tally.between),
        "whole_ms": percentiles(tally.whole),
        "resident_mib": [round(n / 2**20, 1) for n in ran["resident_bytes"]],
        "blocks_free": cache["blocks_free"],
        "blocks": cache["blocks"],
        "server_exit": code,
    }


def address(child: subprocess.Popen[str]) -> str:
    """Where the server says that it listens.

    Raises:
        ClickException: It ends before it says so.
    """
    said = []
    for line in child.stderr or ():
        said.append(line)
        if found := re.search(r" on (http://\S+)$", line.strip()):
            return found[1]
    raise click.ClickException(f"the server did not start: {''.join(said)}")


@click.command()
@click.option("--minutes", type=click.FloatRange(0, min_open=True), default=10.0, show_default=True)
@click.option("--clients", type=click.IntRange(1), default=64, show_default=True)
@click.option("--tokens", type=click.IntRange(1), default=32, help="Most tokens of an answer.")
@click.option("--json", "target", type=click.Path(path_type=Path), help="Where figures go.")
@click.argument("server", nargs=-1)
def main(
    minutes: float, clients: int, tokens: int, target: Path | None, server: tuple[str, ...]
) -> None:
    """Puts load on a server; arguments after -- are those of its command."""
    command = [sys.executable, str(COMMAND), "serve", "--port", "0", *server]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        try:
            where = address(child)
            tally, ran = asyncio.run(load(where, child.pid, clients, minutes, tokens))
            child.send_signal(signal.SIGTERM)
            code = child.wait(60)
        finally:
            child.kill()
    figures = summary(tally, ran, clients, code)
    print(json.dumps(figures, indent=2))
    if target:
        target.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    if figures["failed"] or figures["blocks_free"] != figures["blocks"] or code:
        sys.exit(1)


if __name__ == "__main__":
    main()
