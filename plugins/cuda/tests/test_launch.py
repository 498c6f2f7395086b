"""What would be launched, through Triton's real launcher over a stub of the driver: emulated."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

STUB = Path(__file__).parent / "driver_stub"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("driver")
    home = Path(find_spec("triton").origin).parent / "backends" / "nvidia" / "include"
    library = folder / "libcuda.so.1"
    compiler = shutil.which("cc")
    assert compiler, "Triton compiles its launcher with a C compiler: install gcc"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-w", f"-I{home}", "-Wl,-soname,libcuda.so.1",
         "-o", library, STUB / "libcuda.c"],
        check=True, timeout=120,
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, STUB / "program.py", library, folder],
        check=False, timeout=300, text=True, capture_output=True,
        env=os.environ | {"TRITON_CACHE_DIR": str(folder / "cache")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_launch_passes_every_argument_where_the_kernel_has_it(found):
    assert found["route"] == "direct"
    assert found["first"] == {
        "grid": [7, 2, 3], "threads": 256, "stream": 0x500, "function": found["first"]["function"],
        "pointers": [1 << 40, (1 << 41) + 16, 1 << 42], "n": -5, "rows": 1 << 33, "factor": 0.5,
    }  # fmt: skip


def test_another_device_has_its_own_stream_and_function_and_is_left_again(found):
    first, other = found["first"], found["other device"]
    assert (other["stream"], other["pointers"][0]) == (0x501, (1 << 40) + 8)
    assert other["function"] != first["function"]
    assert found["current after"] == 0


def test_an_empty_grid_launches_nothing_and_a_cpu_tensor_is_refused(found):
    assert found["launches before an empty grid"] == found["launches after"] == 2
    assert "its tensors are on the CPU" in found["on the CPU"]


def test_no_address_is_looked_up(found):
    assert found["queries of addresses"] == 0
    assert set(found["host"]) == {"direct", "compiled", "dispatched"}
