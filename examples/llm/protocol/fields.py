"""The fields of a request body: types, ranges, and what is ignored or refused by name."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from llm.protocol.failures import Refusal, invalid

MOST_STOPS = 4  # as many as OpenAI takes
_SEEDS = 2**63


class Number(NamedTuple):
    """A number of a range, both ends included; ``whole`` for integers."""

    low: float
    high: float
    whole: bool = False


NUMBERS = {
    "temperature": Number(0, 2),
    "top_p": Number(0, 1),
    "top_k": Number(-1, 2**31 - 1, whole=True),  # -1 and 0: all
    "min_p": Number(0, 1),
    "seed": Number(-_SEEDS, _SEEDS - 1, whole=True),
    "repetition_penalty": Number(0.01, 100),
    "presence_penalty": Number(-2, 2),
    "frequency_penalty": Number(-2, 2),
    "max_tokens": Number(1, 2**31 - 1, whole=True),
    "max_completion_tokens": Number(1, 2**31 - 1, whole=True),
}

# What clients send by habit and what changes no text here.
IGNORED = frozenset(
    {
        *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
        *("prompt_cache_retention", "parallel_tool_calls", "verbosity"),
    }
)

# What this engine does not do, with the values that ask for nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False, 0),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "web_search_options": (),
}

OWN = frozenset({"model", "stream", "stream_options", "stop", *NUMBERS})


def check_names(body: dict[str, Any], own: frozenset[str]) -> None:
    """Refuses by name what would be left undone.

    Raises:
        Refusal: A field is unknown, or asks for something that this engine does not do.
    """
    for name, value in body.items():
        if name in NEUTRAL:
            asked = value is not None and not any(
                type(value) is type(n) and value == n for n in NEUTRAL[name]
            )
            if asked:
                what = f"{name} is not supported by this server; leave it out"
                raise invalid(name, what, "unsupported_parameter")
        elif name not in own and name not in OWN and name not in IGNORED:
            raise _unknown(name)


def check_part(part: dict[str, Any], where: str, own: set[str]) -> None:
    """Refuses by name what an object inside the body has besides its own fields.

    Raises:
        Refusal: A field is unknown.
    """
    for name in part:
        if name not in own:
            raise _unknown(name, where + ".")


def _unknown(name: str, where: str = "") -> Refusal:
    param = where + name.encode(errors="replace").decode()  # a name may hold half a surrogate pair
    return invalid(param, f"unknown field {where}{shown(name)}", "unknown_parameter")


def number(body: dict[str, Any], name: str) -> Any:
    """The number of that name, None when it is not given.

    Raises:
        Refusal: It is none, or out of its range.
    """
    value, (low, high, whole) = body.get(name), NUMBERS[name]
    if value is None:
        return None
    kinds = (int,) if whole else (int, float)
    if type(value) not in kinds or (isinstance(value, float) and not math.isfinite(value)):
        kind = "an integer" if whole else "a number"
        raise invalid(name, f"{name} must be {kind}, not {shown(value)}", "invalid_type")
    if not low <= value <= high:
        raise invalid(name, f"{name} must be from {low} to {high}, not {shown(value)}")
    return value


def flag(body: dict[str, Any], name: str, where: str = "") -> bool:
    """The truth value of that name, false when it is not given.

    Raises:
        Refusal: It is none.
    """
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        param = where + name
        raise invalid(param, f"{param} must be true or false, not {shown(value)}", "invalid_type")
    return bool(value)


def text(value: Any, param: str) -> str:
    """A text that can be encoded.

    Raises:
        Refusal: It is no text, or holds half of a surrogate pair.
    """
    if not isinstance(value, str):
        raise invalid(param, f"{param} must be a string, not {shown(value)}", "invalid_type")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        what = f"{param} is not valid text at character {error.start}"
        raise invalid(param, what) from None
    return value


def stops(body: dict[str, Any]) -> tuple[str, ...]:
    """The texts that end the answer.

    Raises:
        Refusal: Too many, or one that is empty or no text.
    """
    given = body.get("stop")
    if given is None:
        return ()
    listed = given if isinstance(given, list) else [given]
    if len(listed) > MOST_STOPS:
        raise invalid("stop", f"stop takes at most {MOST_STOPS} strings, not {len(listed)}")
    found = tuple(text(value, "stop") for value in listed)
    if "" in found:
        raise invalid("stop", "a string of stop must not be empty")
    return found


def shown(value: Any) -> str:
    """A value in a message, never longer than a line."""
    shown = ascii(value)
    return shown if len(shown) <= 40 else shown[:40] + "..."
