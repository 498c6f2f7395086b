"""What a test needs: without it it is not_run, and fails where ``TRIVET_REQUIRE`` names it."""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import NoReturn

import pytest

from trivet.kernels import triton as layer


def missing(tool: str, reason: str) -> NoReturn:
    """Ends a test, or a module of tests, that lacks a tool."""
    if tool in os.environ.get("TRIVET_REQUIRE", "").split(","):
        pytest.fail(f"TRIVET_REQUIRE names {tool}, but {reason}", pytrace=False)
    pytest.skip(f"not_run: {reason}", allow_module_level=True)


def triton() -> None:
    """Goes on where Triton is one that core knows."""
    if (found := layer.available()) is not True:
        missing("triton", found)


def module(name: str) -> ModuleType:
    """A module that the development set-up brings."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing(name, str(error))
