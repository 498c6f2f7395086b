"""Hostile plugins: each is told in its family, and harms nobody else's results."""

from __future__ import annotations

import pytest

from trivet_conformance.selftest.hostile import HOSTILE, judge_hostile

EVERY_RUN = {
    "crashes", "ends", "hangs", "prints", "patches", "detects_modules", "raises_at_import",
    "writes_junk",
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(row.name, marks=[] if row.name in EVERY_RUN else pytest.mark.soak)
        for row in HOSTILE
    ],
)
def test_a_hostile_plugin_is_told_and_harms_nobody_else(name):
    (outcome,) = judge_hostile([name])
    assert outcome.ok, outcome.reasons
