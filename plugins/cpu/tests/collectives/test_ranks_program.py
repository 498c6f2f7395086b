"""The collectives without Python and torch: here, and emulated for the processor of aarch64."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import required
from trivet_cpu.kernel_library import KERNELS

HERE = Path(__file__).resolve().parent
CROSS, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
TARGETS = {  # how it is run: compiler, what runs the program, level
    "hardware": ("g++", (), "baseline"),
    "emulated": (CROSS, (EMULATOR,), "neon"),
}


def flags():
    path = HERE.parent.parent / "hatch_build.py"
    spec = importlib.util.spec_from_file_location("hatch_build", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FLAGS


@pytest.fixture(scope="module", params=TARGETS)
def program(request, tmp_path_factory):
    compiler, runner, level = TARGETS[request.param]
    missing = [tool for tool in (compiler, *runner) if shutil.which(tool) is None]
    if missing:
        needed = {"hardware": "compiler", "emulated": "aarch64"}[request.param]
        required.missing(needed, f"no {missing}")
    target = tmp_path_factory.mktemp(request.param) / "ranks_program"
    subprocess.run(
        [compiler, *flags(), "-static", f"-I{KERNELS}", f"-DTRIVET_CPU_LEVEL=trivet_cpu_{level}",
         f"-DTRIVET_CPU_HAS_{level.upper()}", str(HERE / "ranks_program.cpp"), "-o", str(target)],
        check=True,
    )  # fmt: skip
    return compiler, runner, target


@pytest.mark.parametrize("size", [1, 2, 4])
def test_operations(program, size):
    _, runner, target = program
    done = subprocess.run(
        [*runner, str(target), str(size), "25"], capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr.decode()


def test_posts_are_ordered_on_a_processor_that_reorders(program):
    """A post is a store that releases, a look at one a load that acquires."""
    compiler, runner, target = program
    if not runner:
        return
    disassembler = compiler.replace("g++", "objdump")
    text = subprocess.run(
        [disassembler, "-d", "--no-show-raw-insn", str(target)],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    body = re.search(r"<trivet_barrier>:\n(.*?)\n\n", text, re.DOTALL)[1]
    assert re.search(r"\bstlr\b", body), body
    assert re.search(r"\bldar\b|\bldapr\b", body), body
