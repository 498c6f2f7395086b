"""Two reports side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from trivet_conformance.report.stored import Stored
from trivet_conformance.result import BAD, Status

NOTICEABLE: Final = 0.2
"""Change of a margin that is worth a look."""

ASKED: Final[Mapping[str, Any]] = {
    "mode": "full", "level": "none", "families": "all", "operators": "all", "case": "all",
    "shard": [1, 1],
}  # fmt: skip
"""What decides which checks a run makes, each with its word where a head says nothing."""

_GOOD: Final = frozenset({Status.PASS, Status.REFUSED_OK})


@dataclass(frozen=True)
class Difference:
    """What a second report says otherwise.

    Args:
        failing: ids that are bad now and were not (a check that is new and bad among them).
        fixed: ids that were bad and are good now.
        lost: ids that were good and are neither good nor bad now: nothing judges them any more.
        margins: (id, before, after) of checks that pass in both, more than 0.2 apart.
        only_before: ids that the second report lacks.
        only_after: ids that the first report lacks.
        reasons: why each failing one fails.
        unlike: what the runs were asked differently; then only checks of both are compared.
        common: how many checks both made.
    """

    failing: tuple[str, ...]
    fixed: tuple[str, ...]
    lost: tuple[str, ...]
    margins: tuple[tuple[str, float, float], ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    reasons: Mapping[str, str]
    unlike: tuple[str, ...] = ()
    common: int = 0

    @property
    def worse(self) -> bool:
        """Whether something was better before: a failure, a lost check, or a larger margin."""
        grown = any(after > before for _, before, after in self.margins)
        gone = self.only_before and not self.unlike
        return bool(self.failing or self.lost or gone or grown)

    @property
    def remark(self) -> str:
        """That the runs were asked for different checks, in words; empty where they were not."""
        if not self.unlike:
            return ""
        many = f"{self.common} check{'' if self.common == 1 else 's'}"
        return f"the runs differ in {', '.join(self.unlike)}: compared in the {many} of both"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "worse": self.worse,
            "unlike": list(self.unlike),
            "common": self.common,
            "new_failures": [{"id": i, "reason": self.reasons[i]} for i in self.failing],
            "fixed": list(self.fixed),
            "no_longer_judged": list(self.lost),
            "margins": [{"id": i, "before": b, "after": a} for i, b, a in self.margins],
            "only_before": list(self.only_before),
            "only_after": list(self.only_after),
        }


def compare(before: Stored, after: Stored) -> Difference:
    """What changed from one report to another."""
    old = {str(r["id"]): r for r in before.results}
    new = {str(r["id"]): r for r in after.results}
    both = [i for i in old if i in new]
    was = {i: Status(r["status"]) for i, r in old.items()}
    now = {i: Status(r["status"]) for i, r in new.items()}
    unlike = tuple(_unlike(before.head, after.head))
    judged = both if unlike else list(new)
    failing = tuple(i for i in judged if now[i] in BAD and was.get(i) not in BAD)
    margins = []
    for i in both:
        if was[i] is now[i] is Status.PASS:
            a, b = float(old[i]["margin"]), float(new[i]["margin"])
            if abs(a - b) > NOTICEABLE:
                margins.append((i, a, b))
    return Difference(
        failing=failing,
        fixed=tuple(i for i in both if was[i] in BAD and now[i] in _GOOD),
        lost=tuple(i for i in both if was[i] in _GOOD and now[i] not in _GOOD | BAD),
        margins=tuple(margins),
        only_before=tuple(i for i in old if i not in new),
        only_after=tuple(i for i in new if i not in old),
        reasons={i: str(new[i]["reason"]) for i in failing},
        unlike=unlike,
        common=len(both),
    )


def _unlike(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Each thing that two runs were asked differently, with both answers."""
    for key, plain in ASKED.items():
        one, other = (head.get(key) or plain for head in (before, after))
        if one != other:
            yield f"{key} ({_text(one)}, then {_text(other)})"


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
