"""What a run shows: text as it comes, then what was chosen, what ran, and how fast."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from llm import bound
from llm.errors import OutputError
from llm.schedule import Request
from llm.timing import shares

_CHOICES = {"sample_token", "penalize_logits"}
_CUT = {
    "length": "cut",
    "cache": "cut: the KV cache is full",
    "context": "cut: the context of the model is full",
}


@contextmanager
def writing() -> Iterator[None]:
    """Turns a failure to write the output into one clear error; a closed pipe stays quiet.

    Raises:
        OutputError: The disk is full, for example.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        with suppress(OSError):  # what is still buffered would fail once more when Python ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise OutputError(f"the output cannot be written: {error.strerror}") from error


class Texts:
    """Collects the text of each request; prints one after the other, each as it comes.

    Args:
        prompts: Each request and what the user wrote, which is shown above the answer.
        console: Where they are printed.
    """

    def __init__(self, prompts: dict[Request, str], console: Console) -> None:
        self._unseen = {
            request: textwrap.indent(prompt, "> ", lambda _: True) + "\n"
            for request, prompt in prompts.items()
        }
        self._ended: set[Request] = set()
        self._console = console
        self.texts = dict.fromkeys(prompts, "")

    def push(self, request: Request, piece: str) -> None:
        """Adds a piece of text and prints what is next in the order of the prompts."""
        if request.finish:
            self._ended.add(request)
        self.texts[request] += piece
        self._unseen[request] += piece
        with writing():
            self._print()

    def _print(self) -> None:
        for first, text in list(self._unseen.items()):
            self._console.out(text, end="", highlight=False)
            self._unseen[first] = ""
            if first not in self._ended:
                break
            del self._unseen[first]
            why = _CUT.get(first.finish)
            cut = f"\n[{len(first.output)} tokens, {why}]" if why else ""
            self._console.out(cut + "\n", highlight=False)


def collect(
    settings: list[tuple[str, object, str]],
    texts: dict[Request, str],
    calls: list[dict[str, Any]],
    memory: dict[str, int],
    times: list[float],
    usage: Mapping[str, int],
    steps: float = 0.0,
    captured: list[dict[str, Any]] | None = None,
    ranks: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """The report as plain values.

    Args:
        settings: Names, values, and who chose each.
        texts: The text of each request.
        calls: What ran at each site.
        memory: Bytes that the device's ledger counts, by what they are for.
        times: When loading began, when it ended, when each token came; in seconds.
        usage: What the KV cache saved and cost.
        steps: Seconds of all steps, if they were timed.
        captured: What each captured size cost, if steps were captured.
        ranks: What ran on each rank, if they are several.
    """
    start, loaded, *tokens = times
    return {
        "settings": [{"name": n, "value": v, "source": s} for n, v, s in settings],
        "results": [
            {
                "text": text,
                "ids": r.output,
                "prompt_tokens": len(r.prompt),
                "finish": r.finish,
                **({} if r.sampling.reported_seed is None else {"seed": r.sampling.seed}),
            }
            for r, text in texts.items()
        ],
        "calls": calls,
        **({"time": shares(calls, steps)} if steps else {}),
        **({"capture": captured} if captured else {}),
        **({"ranks": ranks} if ranks else {}),
        "memory": memory,
        "cache": dict(usage),
        "load_seconds": loaded - start,
        "first_token_seconds": tokens[0] - loaded,
        "tokens_per_second": len(tokens) / (tokens[-1] - loaded),
    }


def _table(title: str, heads: list[str], rows: list[list[object]]) -> Table:
    """A light table; its cells quote plugins and paths, so they are never read as markup."""
    table = Table(*heads, title=title, title_justify="left", box=box.SIMPLE)
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    return table


def show_calls(calls: list[dict[str, Any]], console: Console) -> None:
    """Prints what ran at each site and why, or what is bound when nothing was counted."""
    if any(row["calls"] is None for row in calls):
        sites: dict[str, tuple[str, list[str]]] = {}
        for row in calls:
            sites.setdefault(row["site"], (_operator(row), []))[1].append(row["implementation"])
        lines: list[list[object]] = [[s, op, ", ".join(n)] for s, (op, n) in sites.items()]
        console.print(_table("what is bound", ["site", "operator", "implementations"], lines))
    else:
        lines = [
            [r["site"], _operator(r), r["implementation"], r["calls"], r["why"]] for r in calls
        ]
        heads = ["site", "operator", "implementation", "calls", "why"]
        console.print(_table("what ran", heads, lines))
    if slow := bound.on_reference(calls):
        every = {row["site"] for row in calls}
        say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
        say(f"{len(slow)} of {len(every)} sites run on the reference of trivet:")
        for site, one in slow.items():
            say(f"  {site}, trivet explain {one['operator']}: {one['why']}")
        say("")


def _operator(row: Mapping[str, Any]) -> str:
    return str(row["operator"]) + ("" if row["form"] == "functional" else f", {row['form']}")


def show_time(rows: list[dict[str, Any]], console: Console) -> None:
    """Prints where the time of the steps went, the longest first."""
    lines: list[list[object]] = [
        [
            *(row[key] for key in ("site", "operator", "implementation")),
            "" if row["calls"] is None else row["calls"],
            f"{row['seconds'] * 1e3:.1f}",
            f"{row['share']:.1%}",
            f"{row['seconds'] / row['calls'] * 1e6:.1f}" if row["calls"] else "",
        ]
        for row in rows
    ]
    heads = ["site", "operator", "implementation", "calls", "ms", "share", "µs a call"]
    console.print(_table("where the time of the steps went", heads, lines))


def show_ranks(ranks: list[dict[str, Any]], console: Console) -> None:
    """Prints where each rank is, and what ran on those that differ from the first one."""
    if not ranks:
        return
    lines: list[list[object]] = []
    for row in ranks:
        same = _ran(row) == _ran(ranks[0])
        what = "" if row is ranks[0] else "as rank 0" if same else "below"
        megabytes = sum(row["memory"].values()) / 1e6
        where = [row["rank"], row["host"], row["process"], row["device"]]
        lines.append([*where, f"{megabytes:.0f}", what])
    heads = ["rank", "host", "process", "device", "MB", "what ran"]
    console.print(_table("ranks", heads, lines))
    for row in ranks[1:]:
        if _ran(row) != _ran(ranks[0]):
            console.print(f"rank {row['rank']}:", highlight=False)
            show_calls(row["calls"], console)


def _ran(row: Mapping[str, Any]) -> list[tuple[object, ...]]:
    """What ran on a rank; the first one alone chooses tokens."""
    calls = [c for c in row["calls"] if c["operator"] not in _CHOICES]
    return [(c["site"], c["implementation"], c["calls"]) for c in calls]


def show_capture(rows: list[dict[str, Any]], console: Console) -> None:
    """Prints what each captured size cost, and how often it was replayed."""
    lines: list[list[object]] = [
        [r["rows"], r["kind"], r["replays"], r["graphs"], f"{r['seconds']:.2f}", r["bytes"]]
        for r in rows
    ]
    heads = ["rows", "kind", "replays", "graphs", "seconds", "bytes"]
    console.print(_table("captured decode steps", heads, lines))


def cache_text(usage: Mapping[str, int]) -> str:
    """One sentence about what the KV cache saved and cost."""
    reused, prompt = usage["reused_tokens"], usage["prompt_tokens"]
    short = f", requests put aside: {n}" if (n := usage["preemptions"]) else ""
    return f"KV cache: {reused} of {prompt} prompt tokens were there already{short}"


def show(report: dict[str, Any], console: Console) -> None:
    """Prints the report as tables, and memory and speed below them."""
    show_calls(report["calls"], console)
    show_ranks(report.get("ranks", []), console)
    if "time" in report:
        show_time(report["time"], console)
    if "capture" in report:
        show_capture(report["capture"], console)
    settings = [list(row.values()) for row in report["settings"]]
    console.print(_table("settings", ["setting", "value", "chosen by"], settings))
    sizes = ", ".join(
        f"{k.replace('_', ' ')} {v / 1e6:.0f} MB" for k, v in report["memory"].items()
    )
    console.print(f"memory: {sizes}", highlight=False)
    console.print(cache_text(report["cache"]), highlight=False)
    console.print(
        f"load {report['load_seconds']:.1f} s, first token {report['first_token_seconds']:.2f} s, "
        f"{report['tokens_per_second']:.1f} tokens/s"
    )
