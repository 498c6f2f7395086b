"""The emulator's tests need a compiler; without one they say that they did not run."""

from __future__ import annotations

import os

import pytest

import trivet_metal_emulator as emulator


@pytest.fixture(scope="session", autouse=True)
def compiler():
    found = emulator.compiler()
    if isinstance(found, str):
        reason = f"not_run: the Metal emulator has no compiler: {found}"
        if "metal" in os.environ.get("TRIVET_REQUIRE", "").split(","):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    return found
