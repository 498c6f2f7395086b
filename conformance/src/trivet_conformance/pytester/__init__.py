"""The pytest plugin: ``pytest --pyargs trivet_conformance --trivet-plugin=NAME``.

pytest loads this module in every project of an environment that has the kit. It does nothing
there: options and items are in ``items``, which is imported only when a command line asks for the
kit. (A ``conftest.py`` cannot do this: pytest does not read that of a ``--pyargs`` argument before
it parses options.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pytest

OPTION: Final = "--trivet-plugin"
PACKAGE: Final = "trivet_conformance"


def asked(args: Sequence[str]) -> bool:
    """Whether a command line is for the kit."""
    return any(a in (OPTION, PACKAGE) or a.startswith((f"{OPTION}=", f"{PACKAGE}::")) for a in args)


def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Loads the rest of the plugin where a command line asks for it."""
    if asked(args):
        early_config.pluginmanager.import_plugin(f"{__name__}.items")
