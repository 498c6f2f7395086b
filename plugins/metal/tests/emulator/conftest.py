"""The emulator's tests need a compiler; without one they say that they did not run."""

from __future__ import annotations

import pytest

import required
import trivet_metal_emulator as emulator


@pytest.fixture(scope="session", autouse=True)
def compiler():
    found = emulator.compiler()
    if isinstance(found, str):
        required.missing("metal", f"the Metal emulator has no compiler: {found}")
    return found
