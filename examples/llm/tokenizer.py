"""Text to token ids and back, and the chat template, all from the metadata of the model file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Codec

from llm.errors import ModelFileError, RequestError

_CONTROL = 3  # the token type of GGUF for words such as <|im_end|>


def _listed(metadata: dict[str, Any], name: str, kind: type) -> list[Any]:
    values = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(values, list) or any(type(value) is not kind for value in values):
        raise ModelFileError(f"the metadata has no valid tokenizer.ggml.{name}")
    return values


def _pairs(merges: list[str], ids: dict[str, int]) -> list[tuple[str, str]]:
    """The two halves of each merge; the library trusts that they and the whole are words."""
    pairs = []
    for merge in merges:
        left, _, right = merge.partition(" ")
        if not (left in ids and right in ids and left + right in ids):
            raise ModelFileError(f"tokenizer.ggml.merges: {merge!r} does not join two tokens")
        pairs.append((left, right))
    return pairs


def _known_ids(metadata: dict[str, Any], names: tuple[str, ...], vocab: int) -> list[int]:
    """The ids that the metadata gives to some special words; those not given are left out."""
    ids = []
    for name in names:
        value = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if value is None:
            continue
        if type(value) is not int or not 0 <= value < vocab:
            raise ModelFileError(f"tokenizer.ggml.{name}_token_id is {value!r}, not a token's id")
        ids.append(value)
    return ids


class Tokenizer:
    """A byte-level BPE tokenizer with the pre-tokenizer that the SmolLM family uses."""

    def __init__(self, metadata: dict[str, Any]) -> None:
        family = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
        if family != ("gpt2", "smollm"):
            raise ModelFileError(f"tokenizer {family} is not supported, only ('gpt2', 'smollm')")
        words = _listed(metadata, "tokens", str)
        kinds = _listed(metadata, "token_type", int)
        ids = {word: i for i, word in enumerate(words)}
        if not len(ids) == len(words) == len(kinds):
            sizes = f"{len(words)} tokens, {len(ids)} different ones, {len(kinds)} types"
            raise ModelFileError(f"the tokenizer of the model is damaged: {sizes}")
        codec = Codec(models.BPE(ids, _pairs(_listed(metadata, "merges", str), ids)))
        codec.pre_tokenizer = pre_tokenizers.Sequence(  # each digit is a token of its own
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
        )
        codec.decoder = decoders.ByteLevel()
        control = [w for w, kind in zip(words, kinds, strict=True) if kind == _CONTROL]
        codec.add_special_tokens([AddedToken(w, special=True, normalized=False) for w in control])
        self._codec = codec
        self._template = metadata.get("tokenizer.chat_template")
        starts = metadata.get("tokenizer.ggml.add_bos_token")
        self._prefix = _known_ids(metadata, ("bos",), len(words)) if starts else []
        self.eos = frozenset(_known_ids(metadata, ("eos", "eot", "eom"), len(words)))

    def encode(self, text: str) -> list[int]:
        """The ids of a text; words such as ``<|im_end|>`` in it become their own tokens."""
        return self._prefix + list(self._codec.encode(text).ids)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of some ids; ``special`` keeps words such as ``<|im_end|>``."""
        return self._codec.decode(list(ids), skip_special_tokens=not special)

    def chat(self, prompt: str) -> str:
        """The prompt as the user's turn of a conversation, in the words of the model's template.

        The template comes with the file, so it is run in a sandbox.
        """
        if not self._template:
            raise RequestError("this model has no chat template", fix="use --raw")
        messages = [{"role": "user", "content": prompt}]
        sandbox = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        try:
            template = sandbox.from_string(self._template)
            return template.render(messages=messages, add_generation_prompt=True)
        except Exception as error:  # the template is foreign code
            what = f"the chat template of the model fails: {error!r}"
            raise RequestError(what, fix="use --raw") from error


class TextStream:
    """Turns ids into text piece by piece and never prints half a character."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._shown = ""

    def push(self, token: int) -> str:
        """The text that this token completes; empty while a character is not whole."""
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids)
        if text.endswith("\ufffd"):
            return ""
        return self._emit(text)

    def close(self) -> str:
        """What is left when no token follows."""
        return self._emit(self._tokenizer.decode(self._ids))

    def _emit(self, text: str) -> str:
        piece, self._shown = text[len(self._shown) :], text
        return piece
