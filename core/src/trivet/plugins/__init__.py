"""Discovery and loading of plugins: metadata first, code later, a reason for everything."""

from __future__ import annotations

from trivet.plugins.discovery import Discovery, discover, reset
from trivet.plugins.report import Line, Report, Status

__all__ = ["Discovery", "Line", "Report", "Status", "discover", "reset"]
