"""The effective settings of a moment, each with the layer that it comes from."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from trivet.errors import ConfigError
from trivet.settings.variables import PREFIX, VARIABLES, Settings

FILE_NAME: Final = "trivet.toml"


def user_folder(environ: Mapping[str, str]) -> Path:
    """The user's configuration folder of this project, by the platform's own convention."""
    home = Path(environ.get("HOME") or Path.home())
    if sys.platform == "win32":
        return Path(environ.get("APPDATA") or home / "AppData" / "Roaming") / "trivet"
    if sys.platform == "darwin":
        return home / "Library" / "Application Support" / "trivet"
    return Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "trivet"


def find_file(environ: Mapping[str, str], folder: Path) -> Path | None:
    """The one configuration file that counts, or None.

    Raises:
        ConfigError: ``TRIVET_CONFIG`` names a file that does not exist.
    """
    named = environ.get(f"{PREFIX}CONFIG")
    if named:
        path = Path(named)
        if not path.is_file():
            raise ConfigError(
                f"{PREFIX}CONFIG={named!r} is no file", fix="correct the path, or unset it"
            )
        return path
    for path in (folder / FILE_NAME, user_folder(environ) / FILE_NAME):
        if path.is_file():
            return path
    return None


def read(environ: Mapping[str, str] | None = None, *, folder: Path | None = None) -> Settings:
    """The settings of this moment; ``environ`` and ``folder`` default to the process's own.

    Raises:
        ConfigError: a variable or the file is not understood; names it and what is allowed.
    """
    environ = os.environ if environ is None else environ
    path = find_file(environ, Path.cwd() if folder is None else folder)
    values: dict[str, Any] = {}
    keys: dict[str, str] = {}
    if path:
        from trivet.settings.file import load  # most processes have no file

        values, keys = load(path)
    sources = {name: f"{path} {key}" for name, key in keys.items()}
    for variable in VARIABLES:
        text = environ.get(variable.name, "")
        if text:
            values[variable.field] = variable.read(text)
            sources[variable.field] = variable.name
    values["config"] = path
    if path:
        sources.setdefault("config", "found")
    return Settings(**values, sources=MappingProxyType(sources))
