"""What a plan was made under, so that ``stale`` can name what changed since."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trivet.binding.torch_modes import modes
from trivet.plugins.metadata import candidates
from trivet.selection.authority import current_context
from trivet.settings import Settings


@dataclass(frozen=True)
class Snapshot:
    """Settings, contexts, numerics modes and installed plugins at one moment."""

    settings: Mapping[str, object]
    context: Mapping[str, object]
    numerics: Mapping[str, object]
    plugins: Mapping[str, str]

    @classmethod
    def now(cls, settings: Settings, plugins: Mapping[str, str] | None = None) -> Snapshot:
        """The snapshot of this moment; ``plugins`` are read from metadata unless given."""
        if plugins is None:
            plugins = {c.name: c.home for c in candidates()}
        preferred, required = current_context()
        context: dict[str, Any] = {"require": sorted(required)}
        for lists in reversed(preferred):
            context |= {f"prefer.{op}": list(providers) for op, providers in lists.items()}
        return cls(settings.fingerprint(), context, modes(), plugins)

    def differences(self, now: Snapshot) -> list[str]:
        """One line for each thing that differs: name, then, now."""
        lines = []
        for group in ("settings", "context", "numerics", "plugins"):
            then, later = getattr(self, group), getattr(now, group)
            lines += [
                f"{group}.{key}: was {_shown(then, key)}, is {_shown(later, key)}"
                for key in sorted(then.keys() | later.keys())
                if then.get(key) != later.get(key)
            ]
        return lines


def _shown(group: Mapping[str, object], key: str) -> str:
    return repr(group[key]) if key in group else "absent"
