"""The CPU package on other versions of torch: its kernels' tests and the kit's quick run, counted.

Each PYTHON is an interpreter that has one version of torch and what the tests need (pytest, pluggy,
click, rich, jinja2, packaging, numpy; hatchling for a build). The distributions of this tree are
installed into folders of their own. ``carried``: the library as built here, against this
interpreter's torch, for its stable interface. ``built``: compiled against the headers of the
version itself. No times are taken.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[1]
CPU = ROOT / "plugins/cpu"
BUILDERS = ("carried", "built")
ABOUT = (
    "import json, platform, torch; from trivet_cpu.kernel_library import library; "
    "print(json.dumps({'torch': torch.__version__, 'python': platform.python_version(), "
    "'note': library().note, 'built_against': library().record.get('torch')}))"
)
KIT = "from trivet_conformance.cli.program import main; main()"
# of the kernels and of what loads them; the others build, or start many processes
TESTS = ("library", "norm", "activation", "rotary", "kv_cache", "attention", "linear", "embedding")


def _run(command: Sequence[str], site: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command outside of the tree; ``site`` is the folder whose packages it sees first."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    environ.pop("PYTHONPATH", None)
    if site is not None:
        environ["PYTHONPATH"] = str(site)
    return subprocess.run(  # interpreters that the caller names
        command, env=environ, cwd=site, capture_output=True, text=True, check=False
    )


def install(builder: str, site: Path) -> None:
    """Installs the tree into a folder; ``builder`` is the interpreter whose torch gives headers."""
    options = ["--no-index", "--no-deps", "--no-build-isolation", "--target", str(site)]
    pip = [builder, "-m", "pip", "--disable-pip-version-check", "install", *options]
    done = _run([*pip, *(str(d) for d in (ROOT / "core", CPU, ROOT / "conformance"))])
    if done.returncode:
        raise click.ClickException(f"pip of {builder}: {done.stderr.strip()[-400:]}")


def tests(python: str, site: Path) -> dict[str, int]:
    """Outcomes of the package's tests, by pytest's words."""
    options = ["-q", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
    files = [str(CPU / "tests" / f"test_{name}.py") for name in TESTS]
    done = _run([python, "-m", "pytest", *options, *files], site)
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr[-200:]
    return {word: int(n) for n, word in re.findall(r"(\d+) (\w+)", last.partition(" in ")[0])}


def kit(python: str, site: Path, more: Sequence[str]) -> dict[str, Any]:
    """Counts of a run of the conformance kit over the CPU plugin, by status."""
    folder = site / "kit"
    done = _run(
        [python, "-c", KIT, "run", "--plugin", "cpu", "--dir", str(folder), *more], site
    )  # fmt: skip
    summary = folder / "summary.json"
    counts: Mapping[str, Any] = {}
    if summary.is_file():
        counts = json.loads(summary.read_text(encoding="utf-8"))["counts"]
    return {"options": " ".join(more), "exit": done.returncode, "counts": counts}


@click.command()
@click.argument("pythons", nargs=-1, required=True, metavar="PYTHON...")
@click.option("--library", "libraries", multiple=True, default=BUILDERS, help="Only this one.")
@click.option("--kit-options", default="--quick", help="Of the kit's run; empty: none is made.")
@click.option("--json", "target", type=click.Path(path_type=Path), help="Where the counts go.")
def main(
    pythons: tuple[str, ...], libraries: tuple[str, ...], kit_options: str, target: Path | None
) -> None:
    """Runs the CPU package's tests and the kit under each interpreter."""
    rows = []
    for python in pythons:
        for how in libraries:
            with tempfile.TemporaryDirectory() as name:
                site = Path(name)
                install(sys.executable if how == "carried" else python, site)
                about = _run([python, "-c", ABOUT], site)
                if about.returncode:
                    raise click.ClickException(f"{python}: {about.stderr.strip()[-400:]}")
                row = {"library": how, **json.loads(about.stdout)}
                row["tests"] = tests(python, site)
                if kit_options:
                    row["kit"] = kit(python, site, kit_options.split())
            rows.append(row)
            click.echo(json.dumps(row))
            if target is not None:
                machine = {"platform": platform.platform(terse=True), "machine": platform.machine()}
                text = json.dumps({**machine, "rows": rows}, indent=1)
                target.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
