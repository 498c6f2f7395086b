"""A choice with some of its terms decided, as a step decides them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from trivet.contracts.terms import Term
from trivet.selection.choose import Arm, Choice, Row, shadow


def narrow(choice: Choice, decided: Mapping[Term, bool]) -> Choice:
    """Drops arms with a term that is false, and terms that are true.

    The arms keep their order; what an earlier arm now accepts completely is dropped too.
    """
    arms: list[Arm] = []
    verdicts: dict[str, Row] = {}
    for arm in choice.arms:
        false = [t for t in arm.terms if decided.get(t) is False]
        if false:
            verdicts[arm.provider] = Row(arm.provider, "no", f"this step is outside {false[0]}")
            continue
        kept = replace(arm, terms=tuple(t for t in arm.terms if t not in decided))
        if taken := shadow(kept, arms):
            verdicts[arm.provider] = Row(arm.provider, "shadowed", taken)
            continue
        arms.append(kept)
        verdict = "guarded" if kept.terms else "yes"
        verdicts[arm.provider] = Row(arm.provider, verdict, " and ".join(map(str, kept.terms)))
    rows = tuple(
        replace(verdicts[r.provider], note=r.note) if r.provider in verdicts else r
        for r in choice.rows
    )
    return replace(choice, arms=tuple(arms), rows=rows)
