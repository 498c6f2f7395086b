"""The settings of a process: environment variables, and one configuration file.

Authority is environment over file over default, setting by setting; order lists keep their
layers apart, so that an explanation can say which layer spoke.
"""

from __future__ import annotations

from trivet.settings.effective import read, user_folder
from trivet.settings.variables import (
    MODES,
    PREFIX,
    VARIABLES,
    Order,
    Settings,
    likely,
    markdown_table,
    meant,
    near_misses,
    unknown_variables,
)

__all__ = [
    "MODES",
    "PREFIX",
    "VARIABLES",
    "Order",
    "Settings",
    "likely",
    "markdown_table",
    "meant",
    "near_misses",
    "read",
    "unknown_variables",
    "user_folder",
]
