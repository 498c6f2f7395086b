"""Profiles: which operators and dtypes a kind of engine needs, and the calls of real models.

They are data, the files of ``suite/profiles/``. What is mandatory is that without which the profile
makes no sense; a device may leave the optional rest to the references.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final


@dataclass(frozen=True)
class ModelCall:
    """One call of a model.

    Args:
        id: model and place in it.
        operator: what is called.
        dims: its sizes.
        scalars: scalar arguments that differ from the defaults.
    """

    id: str
    operator: str
    dims: tuple[tuple[str, int], ...]
    scalars: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Profile:
    """One profile.

    Args:
        name: as it is written in a claim.
        title: what it is for.
        mandatory: operators that a claim needs.
        optional: operators that may be left out.
        dtypes: activation dtypes that a claim needs.
        optional_dtypes: dtypes that may be left out.
        calls: the calls of its models.
    """

    name: str
    title: str
    mandatory: tuple[str, ...]
    optional: tuple[str, ...]
    dtypes: tuple[str, ...]
    optional_dtypes: tuple[str, ...]
    calls: tuple[ModelCall, ...]


def _read(text: str) -> Profile:
    raw = tomllib.loads(text)
    calls = tuple(
        ModelCall(
            c["id"], c["operator"], tuple(c["dims"].items()), tuple(c.get("scalars", {}).items())
        )
        for c in raw["call"]
    )
    return Profile(
        name=raw["name"],
        title=raw["title"],
        mandatory=tuple(raw["mandatory"]),
        optional=tuple(raw["optional"]),
        dtypes=tuple(raw["dtypes"]),
        optional_dtypes=tuple(raw["optional_dtypes"]),
        calls=calls,
    )


def _profiles() -> Mapping[str, Profile]:
    folder = files("trivet_conformance").joinpath("suite", "profiles")
    found = [_read(f.read_text("utf-8")) for f in folder.iterdir() if f.name.endswith(".toml")]
    return MappingProxyType({p.name: p for p in sorted(found, key=lambda p: p.name)})


PROFILES: Final = _profiles()
"""Every profile by name."""


def profile(name: str) -> Profile:
    """The profile of a name.

    Raises:
        ValueError: there is none; the text names those that exist.
    """
    if name not in PROFILES:
        msg = f"no profile {name!r}; there are {', '.join(PROFILES)}"
        raise ValueError(msg)
    return PROFILES[name]


def model_calls(operator: str) -> tuple[ModelCall, ...]:
    """The calls of an operator in all profiles, each once."""
    found = {c.id: c for p in PROFILES.values() for c in p.calls if c.operator == operator}
    return tuple(found.values())
