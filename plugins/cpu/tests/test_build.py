from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import required
from trivet_cpu import isa
from trivet_cpu.kernel_library import KERNELS, library

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def project(tmp_path):
    """A copy of the project's sources, so that a build leaves nothing in the tree."""
    for name in ("src", "hatch_build.py", "pyproject.toml"):
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("*.so", "_build.json", "__pycache__")
            shutil.copytree(source, tmp_path / "project" / name, ignore=ignored)
        else:
            shutil.copy2(source, tmp_path / "project" / name)
    return tmp_path / "project"


@pytest.fixture
def hook():
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wheel(project, **environment):
    """Builds a wheel; returns its file name and its content by name."""
    target = project / "dist"
    shutil.rmtree(target, ignore_errors=True)
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)],
        cwd=project, env={**os.environ, **environment}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (file,) = target.glob("*.whl")
    with zipfile.ZipFile(file) as archive:
        return file.name, {n: archive.read(n) for n in archive.namelist()}, done


def record_of(content):
    return json.loads(content["trivet_cpu/_build.json"])


def test_without_a_compiler_the_wheel_is_pure_and_says_why(project):
    name, content, done = wheel(project, CXX="/nonexistent")
    assert name.endswith("-py3-none-any.whl")
    assert not [n for n in content if n.endswith(".so")]
    assert record_of(content) == {"built": False, "reason": "CXX=/nonexistent does not run"}
    assert "no kernels" in done.stdout + done.stderr
    assert {"trivet_cpu/plugin.py", "trivet_cpu/py.typed"} < set(content)


def test_where_no_compiler_is_found_the_reason_names_a_way_to_one(hook, monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(hook.sys, "executable", str(tmp_path / "python"))
    with pytest.raises(hook.NoKernels, match=r"pip install .*ziglang.*--no-build-isolation"):
        hook.find_toolchain()


def test_the_pure_package_runs_on_references(project, tmp_path):
    _, content, _ = wheel(project, CXX="/nonexistent")
    for name, data in content.items():
        path = tmp_path / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    code = (
        "import torch, trivet_cpu, trivet\n"
        f"assert trivet_cpu.__file__.startswith({str(tmp_path)!r})\n"
        "dev = trivet.device('cpu')\n"
        "assert 'does not run' in dev.info.notes[0], dev.info.notes\n"
        "y = dev.ops.rms_norm(torch.ones(2, 8), torch.ones(8), 0.0)\n"
        "assert torch.equal(y, torch.ones(2, 8))\n"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
    )  # fmt: skip


def test_a_compiler_that_fails_makes_the_wheel_pure(project):
    (project / "src/trivet_cpu/kernels/norm.h").write_text("this is not C++\n")
    name, content, _ = wheel(project)
    assert name.endswith("-py3-none-any.whl")
    assert "failed" in record_of(content)["reason"]


def test_the_same_inputs_are_compiled_once(project, hook, monkeypatch):
    compiled = []

    def compile_kernels(tools, record, kernels, target):
        compiled.append(record["namespace"])
        target.write_bytes(b"library")

    monkeypatch.setattr(hook, "compile_kernels", compile_kernels)
    first, file = hook.build(project)
    assert hook.build(project) == (first, file)
    assert compiled == [first["namespace"]]
    assert file.name == first["library"] == f"{first['namespace']}.so"
    (project / "src/trivet_cpu/kernels/norm.h").write_text("// changed\n")
    second, other = hook.build(project)
    assert compiled == [first["namespace"], second["namespace"]]
    assert other != file


def test_torch_is_found_without_being_imported(hook, monkeypatch, tmp_path):
    folder, version = hook._torch()
    assert (folder / "include/torch/csrc/stable/library.h").is_file()
    assert version[0].isdigit()
    monkeypatch.setattr(hook.sys, "path", [str(tmp_path)])
    assert hook._torch() == (folder, version)  # beside the interpreter
    monkeypatch.setattr(hook.sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(hook.NoKernels, match="no-build-isolation"):
        hook._torch()
    header = tmp_path / "torch/include/torch/csrc/stable/library.h"
    header.parent.mkdir(parents=True)
    header.touch()
    (tmp_path / "torch/version.py").write_text("__version__ = '2.9.1'\n")
    with pytest.raises(hook.NoKernels, match="too old"):
        hook._torch()


def test_other_machines_get_their_own_level(hook, monkeypatch):
    tools = hook.find_toolchain()
    for machine, levels in (("riscv64", {"baseline": ()}), ("aarch64", {"neon": ()})):
        monkeypatch.setattr(hook.platform, "machine", lambda machine=machine: machine)
        assert hook.levels_of(tools) == levels
        assert hook.plan(tools, KERNELS)["machine"] == machine
    monkeypatch.setattr(hook.platform, "machine", lambda: "arm64")
    assert hook.architecture() == "aarch64"
    monkeypatch.setattr(hook.sys, "platform", "darwin")
    assert hook.build(ROOT)[0]["reason"] == "kernels are built on Linux only, this is darwin"


def test_a_level_that_the_compiler_does_not_know_is_left_out(hook):
    tools = hook.find_toolchain()
    assert tools.accepts("-O2")
    assert not tools.accepts("-march=x86-64-v99")


def test_the_compiler_of_the_package_index_comes_last(hook, monkeypatch, tmp_path):
    """Its command lines name a target, and C++ is linked by `cc`: no second C++ library."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(hook.shutil, "which", lambda name: name if name == sys.executable else None)
    monkeypatch.setattr(hook, "_run", lambda command, arguments: "clang version 22\n")
    command, linker, version = hook._compiler()
    assert command[:5] == (sys.executable, "-m", "ziglang", "c++", "-target")
    assert linker == (*command[:3], "cc", *command[4:])
    assert version.startswith("ziglang ")
    tools = hook.Toolchain(command, linker, version, tmp_path, "2.13")
    assert tools.spelled(("-march=x86-64-v3",)) == ("-march=x86_64_v3",)
    plain = hook.Toolchain(("g++",), ("g++",), "12", tmp_path, "2.13")
    assert plain.spelled(("-march=x86-64-v3",)) == ("-march=x86-64-v3",)


RAISE = """
import torch
from trivet.errors import DomainError
from trivet_cpu import isa
from trivet_cpu.kernel_library import library
from trivet_cpu.compiled.attention import paged_attention
from trivet_cpu.compiled.norm import rms_norm
assert "ziglang" in library().note, library().note
for level in isa.levels():
    with isa.using(level):
        x = torch.randn(64, 1000)
        expected = torch.nn.functional.rms_norm(x, (1000,), eps=1e-6)
        torch.testing.assert_close(rms_norm(x, torch.ones(1000)), expected)
        for _ in range(3):
            try:
                rms_norm(x.double(), torch.ones(1000))
            except DomainError as error:
                assert "float32, bfloat16 or float16" in str(error)
            else:
                raise SystemExit("no error")
pages, one = torch.zeros(2, 16, 1, 64), torch.tensor([1]).int()
try:
    paged_attention(torch.zeros(1, 1, 64), pages, pages, torch.tensor([[7]]).int(),
                    torch.tensor([0, 1]).int(), one, 1, 1, 1.0, [])
except DomainError as error:
    assert "outside of the cache" in str(error)
else:
    raise SystemExit("no error")
print("raised", len(isa.levels()))
"""


def test_errors_pass_from_a_library_of_ziglang_through_torch(project, hook, monkeypatch):
    """A second C++ library in the process would end it where torch catches the exception."""
    if importlib.util.find_spec("ziglang") is None:
        required.missing("ziglang", "no ziglang")
    monkeypatch.setenv("CXX", f"{sys.executable} -m ziglang c++")
    record, library = hook.build(project)
    assert library is not None, record
    package = project / "src/trivet_cpu"
    shutil.copy2(library, package)
    (package / "_build.json").write_text(json.dumps(record))
    done = subprocess.run(
        [sys.executable, "-c", RAISE], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(project / "src")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"raised {len(isa.levels())}\n"


def test_the_library_in_use_is_of_these_sources(hook):
    """Fails when kernels were changed and not compiled again: run the install command."""
    assert library().record["sources"] == hook.sources_digest(KERNELS)
