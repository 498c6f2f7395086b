"""What checks of collectives share: a break of the contract, and how a case is judged."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from trivet_conformance.families.case import Case
from trivet_conformance.result import Finding, Status

Check = Callable[[], "Finding | str | None"]
"""Raises ``Wrong``, or returns a finding, a remark on a pass, or nothing for a plain pass."""


class Wrong(Exception):
    """The collectives under test break the contract; the text says how."""


def case(name: str, check: Check, dtype: str = "") -> Case:
    """A check as a case of its family."""
    return Case(name, dtype, partial(_judge, check))


def _judge(check: Check) -> Finding:
    try:
        found = check()
    except Wrong as problem:
        return Finding(Status.FAIL, str(problem), 1.0)
    if isinstance(found, Finding):
        return found
    return Finding(Status.PASS, notes=(found,) if found else ())


def lacks(reason: str) -> Finding:
    """A finding about something that is not there."""
    return Finding(Status.NOT_SUPPORTED, reason)
