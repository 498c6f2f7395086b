"""The effective settings of a moment, each with the layer that it comes from."""

from __future__ import annotations

import errno
import os
import stat
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
    home = Path(environ.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111 - never raises
    if sys.platform == "win32":
        return Path(environ.get("APPDATA") or home / "AppData" / "Roaming") / "trivet"
    if sys.platform == "darwin":
        return home / "Library" / "Application Support" / "trivet"
    return Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "trivet"


def find_file(environ: Mapping[str, str], folder: Path) -> Path | None:
    """The one configuration file that counts, or None.

    Raises:
        ConfigError: ``TRIVET_CONFIG`` names a file that does not exist, or something that is no
            file has the name of one.
    """
    named = environ.get(f"{PREFIX}CONFIG")
    if named:
        path = Path(named)
        if not _is_there(path, named=f"{PREFIX}CONFIG={named!r}"):
            raise ConfigError(
                f"{PREFIX}CONFIG={named!r} is no file", fix="correct the path, or unset it"
            )
        return path
    for path in (folder / FILE_NAME, user_folder(environ) / FILE_NAME):
        if _is_there(path, named=str(path)):
            return path
    return None


def _is_there(path: Path, *, named: str) -> bool:
    """Whether a regular file is there; what stands in its place must not pass for its absence.

    Raises:
        ConfigError: something else is there, or nobody can say whether a file is.
    """
    try:
        mode = path.stat().st_mode
    except ValueError:  # a NUL in it: no file can have that name
        return False
    except OSError as error:
        absent = error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG}
        if absent and not os.path.islink(path):  # noqa: PTH114 - it raises for no path
            return False
        why = f"{named} is no file: {error.strerror}"
        raise ConfigError(why, fix="remove it, or name another file") from error
    if stat.S_ISREG(mode):
        return True
    raise ConfigError(f"{named} is no file", fix="remove it, or name another file")


def read(environ: Mapping[str, str] | None = None, *, folder: Path | None = None) -> Settings:
    """The settings of this moment; ``environ`` and ``folder`` default to the process's own.

    Raises:
        ConfigError: a variable or the file is not understood; names it and what is allowed.
    """
    environ = os.environ if environ is None else environ
    path = find_file(environ, _here() if folder is None else folder)
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


def _here() -> Path:
    """The working directory; a relative path when it was removed, in which nothing is found."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path()
