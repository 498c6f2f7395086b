"""Renders the templates of a package and writes them; a file that exists is never touched."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import jinja2

TEMPLATES: Final = Path(__file__).with_name("templates")

FILES: Final = MappingProxyType(
    {
        "pyproject.toml": "pyproject.toml.j2",
        "README.md": "README.md.j2",
        "LICENSE": "LICENSE.j2",
        ".gitignore": "gitignore.j2",
        ".github/workflows/ci.yml": "ci.yml.j2",
        "src/PACKAGE/__init__.py": "init.py.j2",
        "src/PACKAGE/activation.py": "activation.py.j2",
        "tests/test_conformance.py": "test_conformance.py.j2",
    }
)
"""File of every package -> template; PACKAGE is the name of the Python package."""

NATIVE_FILES: Final = MappingProxyType(
    {
        "hatch_build.py": "hatch_build.py.j2",
        "csrc/kernels.cpp": "kernels.cpp.j2",
        "src/PACKAGE/plugin.py": "plugin.py.j2",
        "src/PACKAGE/native.py": "native.py.j2",
        "src/PACKAGE/triton_norm.py": "triton_norm.py.j2",
    }
)
"""What a package with compiled kernels has besides."""

DEVICE_FILES: Final = MappingProxyType(
    {
        "csrc/device.cpp": "device.cpp.j2",
        "src/PACKAGE/device.py": "device.py.j2",
        "src/PACKAGE/memory.py": "memory.py.j2",
        "src/PACKAGE/collectives.py": "collectives.py.j2",
    }
)
"""What a package with a torch device of its own has besides."""

HOST_FILES: Final = MappingProxyType(
    {
        "src/PACKAGE/plugin.py": "plugin_host.py.j2",
        "src/PACKAGE/norm.py": "norm.py.j2",
    }
)
"""What a package whose device's tensors lie on torch's CPU has besides."""

DEVICES: Final = MappingProxyType(
    {
        "privateuse1": MappingProxyType({**NATIVE_FILES, **DEVICE_FILES}),
        "host": HOST_FILES,
        "cpu": NATIVE_FILES,
    }
)
"""Kind of package -> what it has besides ``FILES``."""


@dataclass(frozen=True)
class Package:
    """A package to write.

    Args:
        name: the name of the plugin.
        device: ``privateuse1`` with a torch device of its own, ``host`` with a device kind whose
            tensors lie on torch's CPU, ``cpu`` without a device: it adds to the CPU's.
    """

    name: str
    device: str = "privateuse1"

    @property
    def own_device(self) -> bool:
        """Whether torch gets a device of that name."""
        return self.device == "privateuse1"

    @property
    def host(self) -> bool:
        """Whether it is a device kind without a torch device."""
        return self.device == "host"

    @property
    def dist(self) -> str:
        """The name of the distribution."""
        return f"trivet-{self.name.replace('_', '-')}"

    @property
    def package(self) -> str:
        """The name of the Python package."""
        return f"trivet_{self.name}"

    def render(self) -> dict[str, str]:
        """Every file's text by its path in the package's folder."""
        # Brackets: braces are C++'s and Python's.
        room = jinja2.Environment(
            loader=jinja2.FileSystemLoader(TEMPLATES),
            variable_start_string="[[",
            variable_end_string="]]",
            block_start_string="[%",
            block_end_string="%]",
            comment_start_string="[#",
            comment_end_string="#]",
            trim_blocks=True,
            keep_trailing_newline=True,
            undefined=jinja2.StrictUndefined,
            autoescape=False,  # noqa: S701 - source code, no page
        )
        words = {
            "name": self.name,
            "dist": self.dist,
            "package": self.package,
            "title": self.name.replace("_", " ").title(),
            "own_device": self.own_device,
            "host": self.host,
            "key": "PrivateUse1" if self.own_device else "CPU",
        }
        files = {**FILES, **DEVICES[self.device]}
        return {
            path.replace("PACKAGE", self.package): room.get_template(template).render(words)
            for path, template in files.items()
        }


def write(files: dict[str, str], folder: Path) -> list[str]:
    """Writes files that do not exist yet.

    Args:
        files: text by path.
        folder: where the paths start.

    Returns:
        Paths that existed, whose files are as they were.
    """
    kept = []
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with target.open("x", encoding="utf-8", newline="\n") as file:
                file.write(text)
        except FileExistsError:
            kept.append(path)
    return kept
