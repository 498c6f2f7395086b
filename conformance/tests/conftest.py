"""Makes the fixture module beside the tests importable; importlib mode adds no folder itself."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trivet.plugins import reset

sys.path.insert(0, str(Path(__file__).parent))


@contextmanager
def no_plugin_is_left_behind() -> Iterator[None]:
    """A plugin given by its path lies on ``sys.path`` after the call; others must not see it."""
    before = list(sys.path)
    yield
    if sys.path != before:
        sys.path[:] = before
        importlib.invalidate_caches()
        reset()


@pytest.fixture(autouse=True, scope="module")
def none_behind_a_module() -> Iterator[None]:
    with no_plugin_is_left_behind():
        yield


@pytest.fixture(autouse=True)
def none_behind_a_test() -> Iterator[None]:
    with no_plugin_is_left_behind():
        yield
