"""A request body, checked and turned into what the engine needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llm.errors import RequestError
from llm.protocol import fields
from llm.protocol.failures import Refusal, invalid
from llm.sampling import Sampling
from llm.tokenizer import Tokenizer

_ROLES = ("system", "developer", "user", "assistant")
_MOST_DIGITS = 400  # longer numbers are no values, and Python takes long to read them


@dataclass(frozen=True)
class Ask:
    """What one request asks for; ``chat`` decides in whose words it is answered."""

    chat: bool
    prompt: list[int]
    max_tokens: int
    sampling: Sampling
    stops: tuple[str, ...]
    stream: bool
    with_usage: bool
    model: str | None


@dataclass(frozen=True)
class Defaults:
    """What holds where a request says nothing.

    Attributes:
        max_tokens: Most tokens of an answer.
        sampling: Keywords of ``Sampling``. A temperature of 1 is OpenAI's own default; without a
            seed, every request draws its own.
    """

    max_tokens: int = 256
    sampling: Mapping[str, Any] = field(default_factory=lambda: {"temperature": 1.0})


def parse(raw: bytes) -> dict[str, Any]:
    """The JSON object in a body.

    Raises:
        Refusal: It is no JSON, or no object.
    """

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    def whole(digits: str) -> int:
        if len(digits) > _MOST_DIGITS:
            raise ValueError("a number is too long")
        return int(digits)

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(found := dict(pairs)) != len(pairs):
            name = next(n for i, (n, _) in enumerate(pairs) if n in dict(pairs[:i]))
            raise ValueError(f"{fields.shown(name)} is there twice in one object")
        return found

    try:
        body = json.loads(raw, parse_constant=constant, parse_int=whole, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        what = f"the body is not valid JSON: {error}"
        raise Refusal(400, what, code="invalid_json") from None
    if not isinstance(body, dict):
        raise Refusal(400, "the body must be a JSON object", code="invalid_type")
    return body


def read(
    body: dict[str, Any], tokenizer: Tokenizer, vocab: int, defaults: Defaults, *, chat: bool
) -> Ask:
    """Checks a body and turns its prompt into tokens.

    Raises:
        Refusal: A field is unknown, unsupported, or has a wrong type or value.
    """
    fields.check_names(body, frozenset({"messages"} if chat else {"prompt"}))
    stream = fields.flag(body, "stream")
    options = body.get("stream_options")
    if options is not None and not (isinstance(options, dict) and stream):
        raise invalid("stream_options", "stream_options is an object, and only with stream=true")
    fields.check_part(options or {}, "stream_options", {"include_usage", "include_obfuscation"})
    model = body.get("model")
    if model is not None:
        model = fields.text(model, "model")
    limits = [fields.number(body, name) for name in ("max_completion_tokens", "max_tokens")]
    return Ask(
        chat=chat,
        max_tokens=next((n for n in limits if n is not None), defaults.max_tokens),
        sampling=sampling(body, defaults),
        stops=fields.stops(body),
        stream=stream,
        with_usage=fields.flag(options or {}, "include_usage", "stream_options."),
        model=model,
        prompt=_chat(body, tokenizer) if chat else _completion(body, tokenizer, vocab),
    )


def sampling(body: dict[str, Any], defaults: Defaults) -> Sampling:
    """How the tokens of a request are chosen.

    Raises:
        Refusal: A value has a wrong type or range.
    """
    names = {
        "temperature": "temperature",
        "top_k": "top_k",
        "top_p": "top_p",
        "min_p": "min_p",
        "seed": "seed",
        "repetition_penalty": "repetition",
        "presence_penalty": "presence",
        "frequency_penalty": "frequency",
    }
    given = {
        own: value
        for name, own in names.items()
        if (value := fields.number(body, name)) is not None
    }
    given = {**defaults.sampling, **given}
    return Sampling(**{**given, "top_k": max(0, given.get("top_k", 0))})  # -1 keeps all, too


def _chat(body: dict[str, Any], tokenizer: Tokenizer) -> list[int]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise invalid("messages", "messages must be a list with at least one message")
    turns = [_turn(message, f"messages[{i}]") for i, message in enumerate(messages)]
    try:
        return tokenizer.encode(tokenizer.chat(turns))
    except RequestError as error:  # the template refuses: roles in an order that it does not know
        raise invalid("messages", str(error).partition("\n")[0]) from error


def _turn(message: Any, where: str) -> dict[str, str]:
    if not isinstance(message, dict):
        raise invalid(where, f"{where} must be an object", "invalid_type")
    spoken = {name: value for name, value in message.items() if value not in (None, [])}
    fields.check_part(spoken, where, {"role", "content", "name"})  # replies have empty tool_calls
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        raise invalid(f"{where}.role", f"{where}.role must be one of {', '.join(_ROLES)}")
    if isinstance(content, list):
        content = "".join(_part(part, f"{where}.content[{i}]") for i, part in enumerate(content))
    return {
        "role": "system" if role == "developer" else role,
        "content": fields.text(content, f"{where}.content"),
    }


def _part(part: Any, where: str) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        raise invalid(where, f"{where} must be a part of type text", "unsupported_value")
    return fields.text(part.get("text"), f"{where}.text")


def _completion(body: dict[str, Any], tokenizer: Tokenizer, vocab: int) -> list[int]:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        ids = tokenizer.encode(fields.text(prompt, "prompt"))
    elif isinstance(prompt, list) and all(type(i) is int for i in prompt):
        if not all(0 <= i < vocab for i in prompt):
            raise invalid("prompt", f"a token of prompt is not from 0 to {vocab - 1}")
        ids = prompt
    else:
        what = "prompt must be one string or one list of tokens"
        raise invalid("prompt", what, "invalid_type")
    if not ids:
        raise invalid("prompt", "prompt must not be empty")
    return ids
