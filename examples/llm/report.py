"""What a run shows: text as it comes, then what was chosen, what ran, and how fast."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from llm.schedule import Request
from llm.tokenizer import TextStream, Tokenizer


class Texts:
    """Collects the text of each request; prints one after the other, each as it comes."""

    def __init__(self, tokenizer: Tokenizer, requests: list[Request], console: Console) -> None:
        self._streams = {request: TextStream(tokenizer) for request in requests}
        self._unseen = dict.fromkeys(requests, "")
        self._ended: set[Request] = set()
        self._console = console
        self.texts = dict.fromkeys(requests, "")

    def push(self, request: Request, token: int) -> None:
        """Adds a token and prints what is next in the order of the prompts."""
        piece = self._streams[request].push(token)
        if request.finish:
            piece += self._streams[request].close()
            self._ended.add(request)
        self.texts[request] += piece
        self._unseen[request] += piece
        for first, text in list(self._unseen.items()):
            self._console.out(text, end="", highlight=False)
            self._unseen[first] = ""
            if first not in self._ended:
                break
            del self._unseen[first]
            self._console.out("\n" + "-" * 8 if self._unseen else "", highlight=False)


def collect(
    settings: list[tuple[str, object, str]],
    texts: dict[Request, str],
    calls: list[dict[str, Any]],
    times: list[float],
) -> dict[str, Any]:
    """The report as plain values.

    Args:
        settings: Names, values, and who chose each.
        texts: The text of each request.
        calls: What ran at each site.
        times: When loading began, when it ended, when each token came; in seconds.
    """
    start, loaded, *tokens = times
    return {
        "settings": [{"name": n, "value": v, "source": s} for n, v, s in settings],
        "results": [
            {"text": text, "ids": r.output, "prompt_tokens": len(r.prompt), "finish": r.finish}
            for r, text in texts.items()
        ],
        "calls": calls,
        "load_seconds": loaded - start,
        "first_token_seconds": tokens[0] - loaded,
        "tokens_per_second": len(tokens) / (tokens[-1] - loaded),
    }


def show(report: dict[str, Any], console: Console) -> None:
    """Prints the report as tables."""
    settings = Table("setting", "value", "chosen by", title="settings")
    for row in report["settings"]:
        settings.add_row(*map(str, row.values()))
    calls = Table("site", "implementation", "calls", title="what ran")
    for row in report["calls"]:
        calls.add_row(row["site"], row["implementation"], str(row["calls"] or "not counted"))
    console.print(settings, calls)
    console.print(
        f"load {report['load_seconds']:.1f} s, first token {report['first_token_seconds']:.2f} s, "
        f"{report['tokens_per_second']:.1f} tokens/s"
    )
