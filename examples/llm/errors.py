"""The errors that a user can mend; each is shown as one message, without a traceback."""

from __future__ import annotations

from collections.abc import Iterable


class EngineError(Exception):
    """Root of the errors of this engine: what is wrong, and what to do about it."""

    def __init__(self, what: str, *, fix: str = "") -> None:
        super().__init__(f"{what}\n  fix: {fix}" if fix else what)


class ModelFileError(EngineError):
    """The model file is missing, damaged, or holds something that this engine cannot run."""


class FetchError(EngineError):
    """The model could not be downloaded, or what came is not what was expected."""


class OutputError(EngineError):
    """The answers cannot be written where the output goes."""


class RequestError(EngineError):
    """A prompt or an option asks for something that the engine cannot do."""


class PromptTooLong(RequestError):
    """A prompt does not fit the model's context, or the whole KV cache."""


class RanksFailed(EngineError):
    """Another rank of the run failed, ended or did not come in time."""

    def __init__(self, what: str, *, fix: str = "", ranks: Iterable[int] = ()) -> None:
        super().__init__(what, fix=fix)
        self.ranks = tuple(ranks)
