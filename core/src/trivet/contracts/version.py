"""The generation of the contract between core and vendor packages."""

from __future__ import annotations

from typing import Final

CONTRACT: Final = 1
"""An integer of its own, raised only when a plugin written for the last one would not work."""
