"""The operators, one file a family.

A module of this package is read when the catalogue is first needed; every ``Operator`` at its
top level belongs to the catalogue. Adding an operator is adding a declaration: nothing lists it.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import threading
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from trivet.contracts.declaration import Operator
from trivet.errors import DeclarationError

_reading = threading.RLock()


@cache
def operators() -> Mapping[str, Operator]:
    """Core's operators by name, in order of family and declaration.

    Raises:
        DeclarationError: two declarations have one name.
    """
    with _reading:
        return _read()


def _read() -> Mapping[str, Operator]:
    found: dict[str, Operator] = {}
    for info in pkgutil.iter_modules(__path__):
        if info.name.startswith("_"):
            continue
        module = importlib.import_module(f"{__name__}.{info.name}")
        for value in vars(module).values():
            if isinstance(value, Operator) and value.source.startswith(f"{module.__name__}:"):
                if value.name in found:
                    msg = (
                        f"{value.name} is declared in {found[value.name].source} and {value.source}"
                    )
                    raise DeclarationError(msg)
                found[value.name] = value
    return MappingProxyType(found)


# A module that is half imported at a fork stays so in the child, where asking for it waits for
# ever. So a fork waits until another thread has read the catalogue: milliseconds of core's own.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_reading.acquire, after_in_parent=_reading.release, after_in_child=_reading.release
    )
