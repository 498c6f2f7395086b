"""What memory checks share: calls of foreign code, and findings of what they meet."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch

from trivet_conformance.families.case import Case
from trivet_conformance.judging.truth import Bench
from trivet_conformance.result import Finding, Status
from trivet_conformance.subject.leg import Leg

T = TypeVar("T")
Check = Callable[[Leg, Bench], "Finding | str | None"]
"""Raises ``Wrong``, or returns a finding, a remark on a pass, or nothing for a plain pass."""


class Wrong(Exception):
    """The memory under test breaks the contract; the text says how."""


def asked(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """What a vendor's function returns; exhaustion passes, any other error breaks the contract.

    Raises:
        OutOfMemoryError: there is no room.
        Wrong: it raised anything else.
    """
    try:
        return function(*args, **kwargs)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        name = getattr(function, "__name__", str(function))
        msg = f"{name} raises {type(error).__name__}: {error}"
        raise Wrong(msg) from error


def refused(
    kind: type[Exception], what: str, function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Exception:
    """The error with which a call is refused.

    Raises:
        Wrong: it is not refused, or with another error.
    """
    try:
        made = function(*args, **kwargs)
    except kind as error:
        return error
    except Exception as error:
        msg = f"{what} raises {type(error).__name__}, not {kind.__name__}: {error}"
        raise Wrong(msg) from error
    msg = f"{what} is not refused: it returns {made!r:.80}"
    raise Wrong(msg)


def case(name: str, check: Check, leg: Leg, bench: Bench) -> Case:
    """A check as a case of its family."""
    return Case(name, "", partial(_judge, check, leg, bench))


def _judge(check: Check, leg: Leg, bench: Bench) -> Finding:
    try:
        found = check(leg, bench)
    except Wrong as problem:
        return Finding(Status.FAIL, str(problem), 1.0)
    except torch.OutOfMemoryError as error:
        return Finding(Status.FAIL, f"no room where there was room before: {error}", 1.0)
    if isinstance(found, Finding):
        return found
    return Finding(Status.PASS, notes=(found,) if found else ())


def lacks(reason: str) -> Check:
    """A check of something that is not there."""
    return lambda *_: Finding(Status.NOT_SUPPORTED, reason)


def not_run(reason: str) -> Finding:
    """A finding that nothing was tried."""
    return Finding(Status.NOT_RUN, reason)
