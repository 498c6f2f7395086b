"""What a plan was made under, so that ``stale`` can name what changed since."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trivet.binding.numerics_modes import modes
from trivet.plugins.metadata import candidates
from trivet.selection.authority import current_context
from trivet.selection.differences import ABSENT, differences
from trivet.settings import Settings

Snapshot = Mapping[str, Mapping[str, object]]
"""Settings, contexts, numerics modes and installed plugins at one moment."""


def snapshot(settings: Settings, plugins: Mapping[str, str] | None = None) -> Snapshot:
    """The snapshot of this moment; ``plugins`` are read from metadata unless given."""
    if plugins is None:
        plugins = {c.name: c.home for c in candidates()}
    preferred, required = current_context()
    context: dict[str, Any] = {"require": sorted(required)}
    for lists in reversed(preferred):
        context |= {f"prefer.{op}": list(providers) for op, providers in lists.items()}
    groups = {"settings": settings.fingerprint(), "context": context}
    return {**groups, "numerics": modes(), "plugins": plugins}


def changes(then: Snapshot, now: Snapshot) -> list[str]:
    """One line for each thing that differs: name, then, now."""
    return list(differences(then, now, lambda _, a, b: f"was {_shown(a)}, is {_shown(b)}"))


def _shown(value: object) -> str:
    return "absent" if value is ABSENT else repr(value)
