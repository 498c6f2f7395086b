"""Text to token ids and back, and the chat template, all from the metadata of the model file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Codec

from llm.errors import ModelFileError, RequestError

_CONTROL = 3  # the token type of GGUF for words such as <|im_end|>


class Tokenizer:
    """A byte-level BPE tokenizer with the pre-tokenizer that the SmolLM family uses."""

    def __init__(self, metadata: dict[str, Any]) -> None:
        family = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
        if family != ("gpt2", "smollm"):
            raise ModelFileError(f"tokenizer {family} is not supported, only ('gpt2', 'smollm')")
        words = metadata["tokenizer.ggml.tokens"]
        kinds = metadata["tokenizer.ggml.token_type"]
        merges = [tuple(m.split(" ", 1)) for m in metadata["tokenizer.ggml.merges"]]
        codec = Codec(models.BPE({word: i for i, word in enumerate(words)}, merges))
        codec.pre_tokenizer = pre_tokenizers.Sequence(  # each digit is a token of its own
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
        )
        codec.decoder = decoders.ByteLevel()
        control = [w for w, kind in zip(words, kinds, strict=True) if kind == _CONTROL]
        codec.add_special_tokens([AddedToken(w, special=True, normalized=False) for w in control])
        self._codec = codec
        self._template = metadata.get("tokenizer.chat_template")
        bos: Any = metadata.get("tokenizer.ggml.bos_token_id")
        self._prefix: list[int] = [bos] if metadata.get("tokenizer.ggml.add_bos_token") else []
        ends = ("eos", "eot", "eom")
        found = (metadata.get(f"tokenizer.ggml.{end}_token_id") for end in ends)
        self.eos = frozenset(i for i in found if i is not None)

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
