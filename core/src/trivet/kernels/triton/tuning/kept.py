"""Measurements of earlier runs, one file each, by everything that can change them.

Files are written beside their place and renamed, so that processes share a folder without locks
and a run that was killed leaves nothing half written.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from trivet import settings
from trivet.kernels.triton.kernel import Kernel

SCHEMA: Final = 1


class Kept:
    """A folder of answers by request; both are plain values."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, request: Mapping[str, Any]) -> dict[str, Any] | None:
        """The answer to an equal request; None where there is none that can be read."""
        try:
            document = json.loads(self._file(request).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        if document.get("request") != json.loads(json.dumps(dict(request))):
            return None
        answer: dict[str, Any] = document["answer"]
        return answer

    def put(self, request: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """Keeps an answer."""
        self._folder.mkdir(parents=True, exist_ok=True)
        write(self._file(request), {"request": dict(request), "answer": dict(answer)})

    def _file(self, request: Mapping[str, Any]) -> Path:
        text = json.dumps([SCHEMA, dict(request)], sort_keys=True)
        return self._folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Writes a document of JSON whole or not at all."""
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(json.dumps(document, indent=1, sort_keys=True) + "\n")
        Path(part).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(part).unlink()
        raise


def cache_folder() -> Path:
    """Where this user's measurements and tables lie: ``TRIVET_CACHE_DIR``, or the platform's."""
    own = settings.read().cache_dir
    if own:
        return own
    home = Path.home()
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "trivet"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "trivet"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "trivet"


def source_digest(*modules: ModuleType) -> str:
    """Sixteen hex digits over files of modules and over all that their kernels call."""
    total = hashlib.sha256()
    for module in modules:
        total.update(Path(str(module.__file__)).read_bytes())
        kernels = {k.name: k for k in vars(module).values() if isinstance(k, Kernel)}
        for name in sorted(kernels):  # Triton's key follows calls into other files
            total.update(str(getattr(kernels[name].function, "cache_key", "")).encode())
    return total.hexdigest()[:16]
