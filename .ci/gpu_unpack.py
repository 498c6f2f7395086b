"""Unpacks the folder beside it for ``PYTHONPATH``, on a machine where nothing can be downloaded.

``eval "$(python3 build/gpu/first/unpack.py SITE core plugins/triton plugins/cuda conformance)"``:
wheels and packed libraries go into ``SITE``; each project of a checkout that is named gets its
metadata there, so that its entry points are found without an installation.
"""

from __future__ import annotations

import lzma
import sys
import tomllib
import zipfile
from pathlib import Path


def unpack(source: Path, site: Path) -> None:
    """Puts what a bundle brought into one folder."""
    for packed in sorted(source.rglob("*.xz")):
        target = site / packed.relative_to(source).with_suffix("")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(lzma.decompress(packed.read_bytes()))
    for wheel in sorted(source.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)


def describe(project: Path, site: Path) -> Path:
    """Writes the metadata of a project; returns where its sources lie."""
    about = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = site / f"{about['name'].replace('-', '_')}-{about['version']}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    text = f"Metadata-Version: 2.4\nName: {about['name']}\nVersion: {about['version']}\n"
    info.joinpath("METADATA").write_text(text, encoding="utf-8")
    groups = {"console_scripts": about.get("scripts", {}), **about.get("entry-points", {})}
    points = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in rows.items())
        for group, rows in groups.items()
    ]
    info.joinpath("entry_points.txt").write_text("\n".join(points), encoding="utf-8")
    return (project / "src").resolve()


def main(site: Path, projects: list[Path]) -> str:
    """Fills the folder; the line for a shell that makes Python look there."""
    site.mkdir(parents=True, exist_ok=True)
    unpack(Path(__file__).resolve().parent, site)
    sources = [describe(project, site) for project in projects]
    found = [*sources, site, site / "nvidia_cutlass_dsl" / "dsl_packages"]
    return f"export PYTHONPATH={':'.join(map(str, found))}"


if __name__ == "__main__":
    print(main(Path(sys.argv[1]), [Path(word) for word in sys.argv[2:]]))
