"""A machine without a compiler: the wheel is pure, installs, and everything runs on references."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parents[1]
COMPILER = "/nonexistent/c++"
PROBE = """
import json, sys, torch, trivet, trivet_cpu
device = trivet.device("cpu")
x = torch.arange(8, dtype=torch.float32).reshape(2, 4)
got = device.ops.silu_and_mul(x)
print(json.dumps({
    "home": trivet_cpu.__file__,
    "plugin": device.plugin,
    "providers": device.providers(),
    "right": torch.allclose(got, torch.nn.functional.silu(x[:, :2]) * x[:, 2:]),
    "rows": [str(row) for row in device.explain("silu_and_mul")],
    "info": device.info.to_json()["notes"],
    "report": str(device.report["cpu"]),
}))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with the pure wheel installed; it hides the package of this environment."""
    wheels, site = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("site")
    environ = {**os.environ, "CXX": COMPILER}
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    common = ["--no-deps", "--no-index"]
    build = ["wheel", "--no-build-isolation", *common, "-w", str(wheels), str(HERE)]
    subprocess.run([*pip, *build], check=True, env=environ, capture_output=True)
    (wheel,) = wheels.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    install = ["install", *common, "--target", str(site), str(wheel)]
    subprocess.run([*pip, *install], check=True, env=environ, capture_output=True)
    assert not list(site.rglob("*.so"))
    return site


def run(site: Path, *command: str) -> str:
    """Output of a child that sees the pure package first, and no compiler."""
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "CXX": COMPILER, "PYTHONPATH": str(site)},
        cwd=site,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_pure_wheel_runs_on_the_references_and_says_why(site):
    got = json.loads(run(site, "-c", PROBE))
    assert Path(got["home"]).is_relative_to(site)
    assert got["plugin"] == "cpu"
    assert got["right"] is True
    assert any("reference" in row for row in got["rows"])
    assert COMPILER in " ".join([*got["info"], got["report"]])


def test_doctor_says_that_there_are_no_kernels_and_why(site):
    text = run(site, "-c", "from trivet.cli import main; main()", "doctor")
    assert COMPILER in text.replace("\n", "")
