"""What a check says: a status, and one record a check that can be repeated from its text."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final


class Status(StrEnum):
    """The answers that a check can give.

    ``refused_ok``: a call outside a declared domain was refused as the contract wants.
    ``not_supported``: the provider claims nothing there. ``not_run``: nothing was tried, and the
    reason says why. ``error``: the kit, the declaration or the reference is at fault, or the
    check has no power. ``crash``: the process died in the check. ``timeout``: it was killed when
    its time was over. ``waived``: it failed, and a waiver in force says why that is known.
    ``xpass``: it passed although a waiver says that it fails. ``flaky``: a repetition of the
    very same check had another status.
    """

    PASS = "pass"  # noqa: S105 - a status, no secret
    FAIL = "fail"
    ERROR = "error"
    NOT_SUPPORTED = "not_supported"
    REFUSED_OK = "refused_ok"
    NOT_RUN = "not_run"
    CRASH = "crash"
    TIMEOUT = "timeout"
    WAIVED = "waived"
    XPASS = "xpass"
    FLAKY = "flaky"


BAD: Final = frozenset(
    {Status.FAIL, Status.ERROR, Status.CRASH, Status.TIMEOUT, Status.XPASS, Status.FLAKY}
)
"""Statuses that make a run fail."""


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Args:
        status: the answer.
        reason: one sentence; empty for a plain pass.
        margin: share of the error budget that was used, 0.0 to 1.0 (1.0 for a failure).
        inputs: the inputs of the worst call: dims, scalars, layout, distribution.
        notes: remarks that change no status.
        power: how many wrong results the check was shown and refused.
        worst: where a result is wrong: index, got, wanted, rows outside; empty where unknown.
    """

    status: Status
    reason: str = ""
    margin: float = 0.0
    inputs: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    power: int = 0
    worst: Mapping[str, Any] = field(default_factory=dict)


_STAND_INS: Final = ("emulated", "interpreted")
"""Words of devices that a plugin may offer only when asked for."""


@dataclass(frozen=True)
class Result:
    """One line of a report."""

    family: str
    op: str
    provider: str
    case: str
    dtype: str
    finding: Finding
    seed: int
    plugin: str
    execution: str

    @property
    def id(self) -> str:
        """``family/op/provider/case``."""
        return f"{self.family}/{self.op}/{self.provider}/{self.case}"

    @property
    def status(self) -> Status:
        """The answer."""
        return self.finding.status

    @property
    def repro(self) -> str:
        """The command that repeats this check alone."""
        words = ["trivet-conformance", "run", "--plugin", self.plugin, "--seed", str(self.seed)]
        if self.execution in _STAND_INS:
            words += ["--execution", self.execution]
        return shlex.join([*words, "--case", self.id])

    def to_json(self) -> dict[str, Any]:
        """Plain values, one line of ``report.jsonl``."""
        return {
            "kind": "result",
            "id": self.id,
            "family": self.family,
            "operator": self.op,
            "provider": self.provider,
            "status": self.status.value,
            "reason": self.finding.reason,
            "margin": round(min(max(self.finding.margin, 0.0), 1.0), 4),
            "inputs": dict(self.finding.inputs),
            "notes": list(self.finding.notes),
            "power": self.finding.power,
            **({"worst": dict(self.finding.worst)} if self.finding.worst else {}),
            "seed": self.seed,
            "dtype": self.dtype,
            "repro": self.repro,
            "execution": self.execution,
        }
