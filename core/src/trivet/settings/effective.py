"""The effective settings of a moment, each with the layer that it comes from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trivet.settings.file import find_file, load
from trivet.settings.variables import VARIABLES, Settings


def read(environ: Mapping[str, str] | None = None, *, folder: Path | None = None) -> Settings:
    """The settings of this moment; ``environ`` and ``folder`` default to the process's own.

    Raises:
        ConfigError: a variable or the file is not understood; names it and what is allowed.
    """
    environ = os.environ if environ is None else environ
    path = find_file(environ, Path.cwd() if folder is None else folder)
    file = load(path) if path else None
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    if file:
        values |= file.values
        sources |= {name: f"{file.path} {key}" for name, key in file.keys.items()}
    for variable in VARIABLES:
        text = environ.get(variable.name, "")
        if text:
            values[variable.field] = variable.read(text)
            sources[variable.field] = variable.name
    values["config"] = path
    if path:
        sources.setdefault("config", "found")
    settings = Settings(**values, sources=MappingProxyType(sources))
    if file is None:
        return settings
    return replace(
        settings,
        file_providers=file.providers,
        file_providers_by_mode=file.by_mode,
        file_forbid=file.forbid,
    )
