"""Variables of the environment that nobody reads: neither core nor a plugin."""

from __future__ import annotations

import os
from collections.abc import Mapping

from trivet.settings import PREFIX, unknown_variables


def unread_variables() -> Mapping[str, list[str]]:
    """Variables with our prefix that mean nothing -> the names that were perhaps meant.

    ``TRIVET_NAME_...`` is a variable of the installed plugin NAME, of which that plugin knows.
    """
    found = unknown_variables(os.environ)
    if not found:  # as in most environments
        return found
    from trivet.plugins.metadata import candidates

    theirs = tuple(f"{PREFIX}{candidate.name.upper()}_" for candidate in candidates())
    return {name: near for name, near in found.items() if not name.startswith(theirs)}
