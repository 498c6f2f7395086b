"""Refusals of one request, with the body that clients of OpenAI's interface understand."""

from __future__ import annotations

from typing import Any

from llm.errors import RequestError


class Refusal(RequestError):
    """A request is refused or failed; the others go on.

    Attributes:
        status: The status of HTTP.
        body: ``{"error": {"message", "type", "param", "code"}}``.
        headers: Of the reply, such as ``Retry-After``.
    """

    def __init__(
        self,
        status: int,
        what: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(what)
        self.status, self.headers = status, headers or {}
        kind = "invalid_request_error" if status < 500 else "server_error"
        kind = "rate_limit_error" if status == 429 else kind
        self.body: dict[str, Any] = {
            "error": {"message": what, "type": kind, "param": param, "code": code}
        }


def invalid(param: str | None, what: str, code: str = "invalid_value") -> Refusal:
    """A field that has a wrong type or value."""
    return Refusal(400, what, param=param, code=code)
