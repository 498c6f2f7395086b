"""Machines of records through trivet's own commands: selection, plans, locks, doctor, errors.

No kernel is launched; one process with a child for each machine says what a user would see.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from trivet_rocm import STATUS, __version__

HERE = Path(__file__).parent
ROOT = HERE.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
USABLE = {  # machine -> (devices, first architecture)
    "mi210": (1, "gfx90a"),
    "mi300x_cpx": (8, "gfx942"),
    "mi355x_container": (1, "gfx950"),
    "mixed": (2, "gfx90a"),
    "rx7900xtx": (1, "gfx1100"),
}
UNUSABLE = ("no_driver", "no_permission", "igpu_only")


def site(folder):
    """A folder whose metadata is that of the installed package, made of its pyproject.toml."""
    info = folder / f"trivet_rocm-{__version__}.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text(
        f"Metadata-Version: 2.4\nName: {PROJECT['name']}\nVersion: {PROJECT['version']}\n"
    )
    points = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in rows.items())
        for group, rows in PROJECT["entry-points"].items()
    ]
    info.joinpath("entry_points.txt").write_text("\n".join(points))
    return folder


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    import trivet
    import trivet_triton

    homes = [Path(m.__file__).parents[1] for m in (trivet, trivet_triton)]
    folders = [site(tmp_path_factory.mktemp("site")), ROOT / "src", *homes,
               os.environ.get("PYTHONPATH")]  # fmt: skip
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(str(f) for f in folders if f)}
    environ |= {"TRIVET_DENY": "cuda", "COLUMNS": "200"}
    files = [str(HERE / "data" / f"{name}.json") for name in (*USABLE, *UNUSABLE)]
    done = subprocess.run(
        [sys.executable, HERE / "simulated_host.py", *files],
        env=environ, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {row["machine"]: row for row in rows}


@pytest.mark.parametrize("name", USABLE)
def test_a_machine_with_gpus_is_the_automatic_choice(seen, name):
    number, arch = USABLE[name]
    row = seen[name]
    assert row["devices"] == number
    assert row["auto"][0] == "rocm"
    assert row["info"]["arch"][0] == arch
    assert STATUS in row["info"]["notes"]
    assert row["torch"] == "cuda:0"
    assert row["last"] == (f"cuda:{number - 1}" if number > 1 else "")
    assert row["doctor"]["status"] == "found"


@pytest.mark.parametrize("name", USABLE)
def test_sites_are_decided_and_the_lock_holds_them(seen, name):
    row = seen[name]
    assert row["first"]["norm"].startswith("rocm/triton")
    assert row["first"]["head"].startswith("rocm/torch")
    assert row["lock"]["device"]["kind"] == "rocm"
    assert row["lock"]["plugins"].keys() == {"rocm"}
    assert row["agrees"] is True
    assert "device" in row["mismatch"]
    assert "gfx000" in row["mismatch"]
    assert "batch_invariant for: linear" in row["required"]


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_machine_without_a_usable_gpu_says_why_everywhere(seen, name):
    row = seen[name]
    assert row["devices"] == 0
    assert row["auto"][0] == "cpu"
    assert row["doctor"]["status"] == "no_hardware"
    assert row["doctor"]["reason"] in row["auto"][1]
    assert row["doctor"]["reason"] in row["refused"]
    assert row["error"] == "PluginBroken"
