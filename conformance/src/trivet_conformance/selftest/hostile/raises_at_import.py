"""Cannot be imported."""

from __future__ import annotations

msg = "no libhostile.so on this machine"
raise OSError(msg)
