"""The emulator for tests that launch kernels: without a compiler they are ``not_run``."""

from __future__ import annotations

import pytest
import torch

import required
from trivet_metal.backend import emulated


@pytest.fixture(scope="session")
def emulator():
    """What launches kernels; a skip where nothing compiles, unless metal is required."""
    reason = emulated.available()
    if reason is not True:
        required.missing("metal", reason)
    return emulated


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Small products: threads that wait for each other would cost more than the work."""
    torch.set_num_threads(1)
