"""Text to token ids and back, and the chat template, all from what comes with the model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as Codec

from llm.errors import ModelFileError, RequestError


def known_ids(given: Mapping[str, Any], vocab: int) -> list[int]:
    """The ids that some keys of a model give to special words; null ones are left out.

    Raises:
        ModelFileError: A value is no id of a vocabulary of that size.
    """
    ids = []
    for key, value in given.items():
        if value is None:
            continue
        if type(value) is not int or not 0 <= value < vocab:
            raise ModelFileError(f"{key} is {value!r}, not a token's id")
        ids.append(value)
    return ids


@contextmanager
def contained() -> Iterator[None]:
    """Turns what the tokenizer library does with a hostile description into one clear error.

    It raises plain Exceptions, and panics, whose class is no Exception and has no public name.

    Raises:
        ModelFileError: The library failed.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, TypeError):
        raise  # the last one is about the argument, not about the model
    except BaseException as error:
        what = f"the tokenizer of the model fails: {error}"
        raise ModelFileError(what, fix="use the tokenizer that belongs to the model") from error


def _refuse(what: str) -> None:
    raise RequestError(what, fix="use --raw")


class Tokenizer:
    """The codec of a model, and what the model says around it.

    Args:
        codec: Turns text into ids and back.
        template: The chat template, if the model has one.
        prefix: Ids that every text starts with.
        eos: Ids that end an answer.
        words: What the template may call special words: bos_token, eos_token.
    """

    def __init__(
        self,
        codec: Codec,
        *,
        template: Any = None,
        prefix: Sequence[int] = (),
        eos: Iterable[int] = (),
        words: Mapping[str, str] | None = None,
    ) -> None:
        self._codec, self._template, self._prefix = codec, template, list(prefix)
        self._words = dict(words or {})
        self.eos = frozenset(eos)

    def encode(self, text: str) -> list[int]:
        """The ids of a text; words such as ``<|im_end|>`` in it become their own tokens.

        A text that starts with the words of the prefix, as many templates write them, gets no
        second one.
        """
        with contained():
            ids = list(self._codec.encode(text, add_special_tokens=False).ids)
        return ids if ids[: len(self._prefix)] == self._prefix else self._prefix + ids

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of some ids; ``special`` keeps words such as ``<|im_end|>``."""
        with contained():
            text: str = self._codec.decode(list(ids), skip_special_tokens=not special)
        return text

    def chat(self, prompt: str | list[dict[str, str]]) -> str:
        """A prompt as the user's turn, or all turns, in the words of the model's template.

        The template comes with the file, so it is run in a sandbox.
        """
        if not self._template:
            raise RequestError("this model has no chat template", fix="use --raw")
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        sandbox = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        sandbox.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        given = {**self._words, "tools": None, "documents": None, "raise_exception": _refuse}
        try:
            template = sandbox.from_string(self._template)
            return template.render(**given, messages=messages, add_generation_prompt=True)
        except Exception as error:  # the template is foreign code
            what = f"the chat template of the model fails: {error!r}"
            raise RequestError(what, fix="use --raw") from error


class TextStream:
    """Turns ids into text piece by piece and never prints half a character.

    Only the ids since the last but one piece are decoded again: what a decoder does at the start
    of a text (dropping a space) happens to a piece that was given out before.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._given: list[int] = []  # the ids of the last piece
        self._new: list[int] = []

    def push(self, token: int) -> str:
        """The text that this token completes; empty while a character is not whole."""
        self._new.append(token)
        return self._piece(whole=False)

    def close(self) -> str:
        """What is left when no token follows."""
        return self._piece(whole=True)

    def _piece(self, *, whole: bool) -> str:
        before = self._tokenizer.decode(self._given)
        text = self._tokenizer.decode(self._given + self._new)
        if text.endswith("\ufffd") and not whole:
            return ""
        self._given, self._new = self._new or self._given, []
        return text[len(before) :]
