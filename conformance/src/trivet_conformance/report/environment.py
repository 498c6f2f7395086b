"""Where a run happened: distribution and commit of the plugin, platform, processor, date."""

from __future__ import annotations

import json
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import Distribution, entry_points
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse


def environment(plugin: str) -> dict[str, Any]:
    """What the head of a report says of the machine and the plugin's distribution."""
    return {
        "plugin_distribution": distribution(plugin),
        "platform": platform.platform(),
        "cpu": _processor(),
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def distribution(plugin: str) -> dict[str, Any]:
    """Name and version of the wheel that brings a plugin, and its commit if it is editable."""
    for point in entry_points(group="trivet.plugins", name=plugin):
        if point.dist is not None:
            return {"name": point.dist.name, "version": point.dist.version, **_commit(point.dist)}
    return {}


def _commit(dist: Distribution) -> dict[str, Any]:
    direct = json.loads(dist.read_text("direct_url.json") or "{}")
    if not direct.get("dir_info", {}).get("editable"):
        return {}
    folder = Path(unquote(urlparse(direct["url"]).path))
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return {"editable": True}
    dirty = bool(_git(folder, "status", "--porcelain", "--", "."))
    return {"editable": True, "commit": commit, "dirty": dirty}


def _git(folder: Path, *words: str) -> str:
    """What git says; empty where there is no git or no repository."""
    command = ["git", "-C", str(folder), *words]
    try:
        done = subprocess.run(  # noqa: S603 - fixed words, no shell
            command, capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
