"""The kit that a vendor installs and runs: what is right, wrong, refused or unverified."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from trivet_conformance.result import Finding, Result, Status
    from trivet_conformance.running.run import run
    from trivet_conformance.subject.subject import Subject, from_functions, installed, references

__version__ = "0.1.0"

_LAZY: Final = {
    "Finding": "trivet_conformance.result",
    "Result": "trivet_conformance.result",
    "Status": "trivet_conformance.result",
    "Subject": "trivet_conformance.subject.subject",
    "from_functions": "trivet_conformance.subject.subject",
    "installed": "trivet_conformance.subject.subject",
    "references": "trivet_conformance.subject.subject",
    "run": "trivet_conformance.running.run",
}
"""Public names whose modules are imported at first use: pytest loads this package everywhere."""

__all__ = [
    "Finding",
    "Result",
    "Status",
    "Subject",
    "__version__",
    "from_functions",
    "installed",
    "references",
    "run",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        found = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = found
        return found
    msg = f"module 'trivet_conformance' has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return __all__
