"""The settings of a process: environment variables, and one configuration file.

Authority is environment over file over default, setting by setting; order lists keep their
layers apart, so that an explanation can say which layer spoke.
"""

from __future__ import annotations

from trivet.settings.effective import FILE_NAME, find_file, read, user_folder
from trivet.settings.variables import (
    DEFAULT,
    MODES,
    PREFIX,
    VARIABLES,
    Order,
    Orders,
    Settings,
    Variable,
    markdown_table,
    near_misses,
    unknown_variables,
)

__all__ = [
    "DEFAULT",
    "FILE_NAME",
    "MODES",
    "PREFIX",
    "VARIABLES",
    "Order",
    "Orders",
    "Settings",
    "Variable",
    "find_file",
    "markdown_table",
    "near_misses",
    "read",
    "unknown_variables",
    "user_folder",
]
