"""What this package may be called, in one place for every page and command."""

from __future__ import annotations

from typing import Final

STATUS: Final = "emulated; not run on Apple hardware"
"""The whole truth about its kernels until somebody sends what ``verify-on-hardware`` wrote."""
