"""Bodies of replies: a whole answer, or the pieces of a stream."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import Any, Literal

from llm.protocol.asks import Ask
from llm.schedule import Finish

Reason = Literal["stop", "length"]


def reason(finish: Finish) -> Reason:
    """Why an answer ended, in OpenAI's words."""
    return "stop" if finish == "stop" else "length"


@dataclass(frozen=True)
class Reply:
    """Writes the bodies of one request; all carry the same id."""

    ask: Ask
    model: str
    created: int = field(default_factory=lambda: int(time.time()))
    key: str = field(default_factory=lambda: secrets.token_hex(12))

    def whole(self, text: str, tokens: int, why: Reason) -> dict[str, Any]:
        """The answer in one body."""
        said = (
            {"message": {"role": "assistant", "content": text}} if self.ask.chat else {"text": text}
        )
        kind = "chat.completion" if self.ask.chat else "text_completion"
        body = self._body(kind, [self._choice(said, why)])
        return {**body, "usage": self.usage(tokens)}

    def opening(self) -> list[dict[str, Any]]:
        """What a stream starts with: a conversation names who speaks."""
        return [self._chunk({"role": "assistant", "content": ""}, None)] if self.ask.chat else []

    def piece(self, text: str) -> dict[str, Any]:
        """The next text of a stream."""
        return self._chunk({"content": text} if self.ask.chat else {"text": text}, None)

    def closing(self, tokens: int, why: Reason) -> list[dict[str, Any]]:
        """What a stream ends with: why, and how many tokens if the client asks."""
        last = [self._chunk({} if self.ask.chat else {"text": ""}, why)]
        if self.ask.with_usage:
            last.append({**self._body(self._stream_kind, []), "usage": self.usage(tokens)})
        return last

    def usage(self, tokens: int) -> dict[str, int]:
        """How many tokens the prompt and the answer have."""
        prompt = len(self.ask.prompt)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": tokens,
            "total_tokens": prompt + tokens,
        }

    @property
    def _stream_kind(self) -> str:
        return "chat.completion.chunk" if self.ask.chat else "text_completion"

    def _chunk(self, said: dict[str, Any], why: Reason | None) -> dict[str, Any]:
        said = {"delta": said} if self.ask.chat else said
        return self._body(self._stream_kind, [self._choice(said, why)])

    @staticmethod
    def _choice(said: dict[str, Any], why: Reason | None) -> dict[str, Any]:
        return {"index": 0, **said, "logprobs": None, "finish_reason": why}

    def _body(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        seed = self.ask.sampling.reported_seed
        return {
            "id": f"{'chatcmpl' if self.ask.chat else 'cmpl'}-{self.key}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
            **({} if seed is None else {"seed": seed}),
        }
