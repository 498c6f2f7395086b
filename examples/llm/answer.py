"""The text of one request as it grows: whole characters only, and nothing from a stop string on."""

from __future__ import annotations

from collections.abc import Sequence

from llm.tokenizer import TextStream, Tokenizer


class Answer:
    """Turns tokens into text that may be shown at once.

    The start of a stop string is held back until it is clear that no stop string follows, so that
    the pieces together are the whole text wherever the borders of the tokens lie.

    Args:
        tokenizer: Decodes the tokens.
        stops: Texts that end the answer; they are no part of it.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()) -> None:
        self._stream, self._stops, self._held = TextStream(tokenizer), tuple(stops), ""
        self.stopped = False

    def push(self, token: int, *, last: bool) -> str:
        """The text that this token makes certain; ``last`` when no token follows."""
        text = self._held + self._stream.push(token)
        if last:
            text += self._stream.close()
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = 0 if last else max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of the text may be the start of the stop string."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
