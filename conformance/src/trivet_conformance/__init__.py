"""The kit that a vendor installs and runs: what is right, wrong, refused or unverified."""

from __future__ import annotations

from trivet_conformance.result import Finding, Result, Status
from trivet_conformance.running.run import run
from trivet_conformance.subject.subject import Subject, from_functions, installed, references

__version__ = "0.1.0"

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
