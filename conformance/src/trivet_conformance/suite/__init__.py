"""The suite: its version, levels, profiles, frozen must-pass lists, and what a report may claim."""

from __future__ import annotations

from trivet_conformance.calls.profiles import PROFILES, Profile, profile
from trivet_conformance.suite.claims import Claim, claim
from trivet_conformance.suite.levels import LEVELS, families_for
from trivet_conformance.suite.version import RELEASED, SUITE

__all__ = [
    "LEVELS",
    "PROFILES",
    "RELEASED",
    "SUITE",
    "Claim",
    "Profile",
    "claim",
    "families_for",
    "profile",
]
