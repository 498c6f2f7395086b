"""Makes installed distributions out of text, for tests of discovery."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
import textwrap
from pathlib import Path

import pytest

from trivet.plugins import metadata

GOOD = """
    import torch
    from trivet.contracts import DeviceInfo, implements

    def trivet_probe():
        return True

    def trivet_devices():
        return [DeviceInfo("{name}")]

    def trivet_implementations(device):
        return [silu]

    @implements("silu_and_mul@1", name="plain")
    def silu(x):
        half = x.shape[-1] // 2
        return torch.nn.functional.silu(x[..., :half]) * x[..., half:]
"""


class FakeDists:
    """A folder with distributions in it; ``add`` writes one more."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(
        self,
        dist: str,
        plugin: str,
        source: str | None,
        *,
        contract: str | None = "v1:v1",
        extends: str = "",
        version: str = "1.0",
        value: str = "",
        author: str = "",
    ) -> None:
        """Writes the metadata of one distribution, and the module of its plugin.

        Args:
            dist: name of the distribution.
            plugin: name of the entry point.
            source: text of the module; None writes no module.
            contract: the contract range; None states none.
            extends: device kind that the plugin adds to.
            version: version of the distribution.
            value: the entry point's value, when it is not the module.
            author: author in the metadata.
        """
        module = f"fake_{dist.replace('-', '_')}"
        groups = {"trivet.plugins": value or module, "trivet.contract": contract or ""}
        groups["trivet.extends"] = extends
        text = "".join(f"[{g}]\n{plugin} = {v}\n" for g, v in groups.items() if v)
        self.write(dist, text, version=version, author=author)
        if source is not None:
            (self.folder / f"{module}.py").write_text(textwrap.dedent(source))
        importlib.invalidate_caches()

    def add_good(self, plugin: str, *, dist: str = "", author: str = "") -> None:
        """Writes a plugin that works: one device, one implementation."""
        self.add(dist or f"{plugin}-dist", plugin, GOOD.format(name=plugin), author=author)

    def write(
        self, dist: str, entry_points: str, *, version: str = "1.0", author: str = ""
    ) -> None:
        """Writes the metadata of a distribution."""
        info = self.info(dist, version)
        info.mkdir()
        text = f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n"
        text += f"Author: {author}\n" if author else ""
        (info / "METADATA").write_text(text)
        (info / "entry_points.txt").write_text(entry_points)

    def info(self, dist: str, version: str = "1.0") -> Path:
        """The folder with the metadata of a distribution."""
        return self.folder / f"{dist.replace('-', '_')}-{version}.dist-info"


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDists:
    """The folder as the only place with distributions; modules are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(
        metadata, "distributions", lambda: importlib.metadata.distributions(path=[str(folder)])
    )
    for name in [n for n in sys.modules if n.startswith("fake_") and n != __name__]:
        monkeypatch.delitem(sys.modules, name)
    return FakeDists(folder)
