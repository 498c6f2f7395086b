"""Ranks that die, stop, are late or slow, raise, leave or differ: 200 groups each, 5 in every run.

The deadline is 2 s: no call waits longer, no result is wrong, no memory and no process stays.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

MODES = (
    "killed", "killed_large", "stopped", "late", "slow", "raising", "left", "mismatched",
)  # fmt: skip


@pytest.fixture
def soak(ranks):
    """Runs rounds; afterwards no process holds memory of their groups, which have names of ours."""

    def run(modes, seed, count):
        name = f"soak{os.getpid()}"
        ranks("soak.py", "rounds", 3, seconds=2.0, argument=(name, modes, seed, count))
        for maps in Path("/proc").glob("[0-9]*/maps"):
            with contextlib.suppress(OSError):  # it has ended, or is somebody else's
                assert f"memfd:trivet group {name}/" not in maps.read_text(encoding="utf-8")

    return run


def test_five_of_each(soak):
    soak(MODES, 1, 5)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(10))
@pytest.mark.parametrize("mode", MODES)
def test_twenty_more(soak, mode, part):
    """Ten parts: a world has a deadline, too."""
    soak((mode,), f"{mode}/{part}", 20)
