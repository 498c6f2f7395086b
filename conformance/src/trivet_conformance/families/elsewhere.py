"""What a device offers, here and in a fresh process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from trivet.devices import Device
from trivet.errors import TrivetError
from trivet_conformance.calls.last_words import in_short, last_words
from trivet_conformance.calls.proving import proving_facts, target_of

SECONDS: Final = 120.0
MARK: Final = "offered: "

Row = list[str]
"""Provider, operator, form, digest, and the digest of a plan."""


def offered(device: Device, provider: str = "") -> Iterator[Row]:
    """What a device offers, in its order; by default of every provider."""
    for i in device.offer.implementations:
        if provider in ("", i.provider):
            yield [i.provider, i.operator.name, i.form, i.digest, _plan_digest(device, i)]


def _plan_digest(device: Device, i: Any) -> str:
    try:
        sites = {"site": (target_of(i), proving_facts(i))}
        plan = device.plan(sites, prefer={i.operator.name: i.provider}, lock=False)
    except TrivetError as error:
        return type(error).__name__
    return plan.digest


def offered_elsewhere(kind: str, provider: str, size: int) -> tuple[list[Row], str]:
    """What a fresh process is offered of a provider, and what became of it where it died.

    One process answers for all providers. Where it dies before this one's rows are told, another
    one is asked for them alone: then it is this provider that it dies of.
    """
    rows, problem = _told(kind, "")
    own = [row for row in rows if row[0] == provider]
    if not problem or len(own) >= size:
        return own, ""
    return _told(kind, provider)


@cache
def _told(kind: str, provider: str) -> tuple[list[Row], str]:
    """The rows that a process tells, and how it ended where that is not well."""
    code = (
        "import json, os, sys\n"
        "sys.path[:] = json.loads(sys.argv[3])\n"  # a plugin given by its path is found there
        "import trivet\n"
        "from trivet_conformance.families.elsewhere import MARK, offered\n"
        "for row in offered(trivet.device(sys.argv[1]), sys.argv[2]):\n"
        "    print('\\n' + MARK + json.dumps(row), flush=True)\n"
        "os._exit(0)\n"  # what a plugin left to be done at the exit is not this check's business
    )
    command = [sys.executable, "-c", code, kind, provider, json.dumps(sys.path)]
    try:
        done = subprocess.run(  # noqa: S603 - this very interpreter
            command, capture_output=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired as late:
        return _rows(late.stdout or b""), f"it does not end within {SECONDS:g} s"
    if not done.returncode:
        return _rows(done.stdout), ""
    words = last_words(done.stderr.decode("utf-8", "replace"))
    short = in_short(words) or f" ({words[-1]})" * bool(words)
    return _rows(done.stdout), f"it ended with status {done.returncode}{short}"


def _rows(said: bytes) -> list[Row]:
    text = said.decode("utf-8", "replace")
    whole = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [json.loads(line[len(MARK) :]) for line in whole if line.startswith(MARK)]
