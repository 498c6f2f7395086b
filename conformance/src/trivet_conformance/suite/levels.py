"""Levels: what a claim of each wants.

``L0`` the plugin loads and nothing that it claims is refused. ``L1`` what it claims is correct.
``L2`` it is robust: other layouts, special values, states, errors, streams. ``L3`` whatever
families of that level there are, on top.
"""

from __future__ import annotations

from typing import Final

from trivet_conformance.families import LEVEL_OF

LEVELS: Final = ("L0", "L1", "L2", "L3")

ASYNCHRONOUS: Final = frozenset({"stream"})
"""Families that ask something only of devices whose calls return before the work is done."""

OF_A_CLAIM: Final = frozenset({"graph"})
"""Families that judge a claim which nobody has to make; no must-pass list asks for them."""


def families_for(level: str) -> tuple[str, ...]:
    """The families that a level wants, those of lower levels among them; none for ``L0``.

    Raises:
        ValueError: there is no such level.
    """
    if level not in LEVELS:
        msg = f"no level {level!r}; there are {', '.join(LEVELS)}"
        raise ValueError(msg)
    return tuple(name for name, own in LEVEL_OF.items() if own <= level)
