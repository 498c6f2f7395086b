"""The hooks, and what core says of this package on a machine without a usable GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from trivet.contracts import DeviceInfo
from trivet.contracts.hooks import ENGINE_DEFAULTS
from trivet_cuda import __version__, peers, plugin
from trivet_cuda.discovery import Finding, Obstacle, judge, this_machine
from trivet_triton import kernels as triton_kernels
from trivet_triton import on_torch

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder whose metadata is that of the installed package, made of its pyproject.toml."""
    folder = tmp_path_factory.mktemp("site")
    info = folder / f"trivet_cuda-{__version__}.dist-info"
    info.mkdir()
    author = PROJECT["authors"][0]["name"]
    info.joinpath("METADATA").write_text(
        f"Metadata-Version: 2.4\nName: {PROJECT['name']}\nVersion: {PROJECT['version']}\n"
        f"Author: {author}\n"
    )
    points = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in rows.items())
        for group, rows in PROJECT["entry-points"].items()
    ]
    info.joinpath("entry_points.txt").write_text("\n".join(points))
    return folder


def run(site, *command, **environ):
    """Output of a child in which the package is installed."""
    import trivet

    folders = [site, ROOT / "src", Path(trivet.__file__).parents[1], os.environ.get("PYTHONPATH")]
    path = os.pathsep.join(str(folder) for folder in folders if folder)
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": path, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


needs_no_gpu = pytest.mark.skipif(
    bool(this_machine().devices), reason="a GPU is usable here: there is no reason to tell"
)


def test_versions_agree():
    assert PROJECT["version"] == __version__


@needs_no_gpu
def test_doctor_gives_the_reason_in_one_sentence(site):
    done = run(site, "-c", "from trivet.cli import main; main()", "doctor", "--json")
    rows = {row["plugin"]: row for row in json.loads(done.stdout)["plugins"]}
    assert rows["cuda"]["status"] == "no_hardware"
    assert rows["cuda"]["reason"] == this_machine().reason
    assert "\n" not in this_machine().reason


@needs_no_gpu
def test_the_device_asked_for_by_name_is_that_reason(site):
    code = (
        "import trivet, trivet.errors\n"
        "try: trivet.device('cuda')\n"
        "except trivet.errors.PluginBroken as error: print(error)\n"
    )
    done = run(site, "-c", code)
    assert done.returncode == 0, done.stderr
    assert this_machine().reason in done.stdout
    assert "tell who makes" not in done.stdout


@needs_no_gpu
def test_auto_passes_over_it_and_says_why(site):
    done = run(site, "-c", "import trivet; print(d := trivet.device('auto'), d.reason)")
    assert done.returncode == 0, done.stderr
    assert f"cuda is no_hardware ({this_machine().reason})" in done.stdout


@pytest.mark.skipif(not this_machine().devices, reason="not_run: no GPU is usable here")
def test_a_child_may_start_cuda_after_its_parent_has_started_a_device(site):
    code = (
        "import os, torch, trivet\n"
        "dev = trivet.device('cuda')\n"
        "assert not torch.cuda.is_initialized()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(int(torch.ones(2, device=dev.torch).sum().item()))\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2\n"
    )
    done = run(site, "-c", code)
    assert done.returncode == 0, done.stderr


def test_importing_the_hooks_loads_no_kernel_language_no_nvml_and_starts_nothing(site):
    code = (
        "import sys, torch\n"
        "for name in ('triton', 'pynvml'): sys.modules.pop(name, None)\n"  # torch imports it
        "import trivet_cuda.plugin as p\n"
        "assert not {'triton', 'pynvml', 'trivet.kernels'} & set(sys.modules)\n"
        "p.trivet_probe()\n"
        "assert 'triton' not in sys.modules\n"
        "assert ('pynvml' in sys.modules) is (torch.version.cuda is not None)\n"
        "assert not torch.cuda.is_initialized()\n"
    )
    done = run(site, "-c", code)
    assert done.returncode == 0, done.stderr


def test_probe_and_devices_tell_what_was_found(monkeypatch):
    found = judge(json.loads((DATA / "h200_x8.json").read_text()))
    monkeypatch.setattr(plugin, "this_machine", lambda: found)
    assert plugin.trivet_probe() is True
    assert [info.index for info in plugin.trivet_devices()] == list(range(8))
    monkeypatch.setattr(plugin, "this_machine", lambda: Finding((), Obstacle.NO_DRIVER, "none"))
    assert plugin.trivet_probe() == "none"
    assert plugin.trivet_devices() == []


def test_core_takes_the_devices_where_torch_counts_them(monkeypatch):
    from trivet.plugins.answers import devices_problem

    class Counted:
        @staticmethod
        def device_count():
            return 8

    found = judge(json.loads((DATA / "h200_x8.json").read_text()))
    monkeypatch.setattr("torch.get_device_module", lambda device: Counted)
    assert devices_problem("cuda", "", list(found.devices)) == ""


def test_defaults_are_what_core_takes_and_have_reasons():
    defaults = plugin.trivet_defaults(DeviceInfo("cuda", torch_type="cuda"))
    assert {name: value for name, (value, _) in defaults.items()} == {
        "block_size": 16, "layout": "NHD", "dtype": "bfloat16",
    }  # fmt: skip
    for name, (value, reason) in defaults.items():
        assert ENGINE_DEFAULTS[name].takes(value)
        assert len(reason) > 10


@pytest.mark.parametrize("folder", [triton_kernels, on_torch])
def test_a_new_module_is_found_by_itself(folder, tmp_path, monkeypatch):
    (tmp_path / "zzz_new.py").write_text(
        "from trivet.contracts import implements\n"
        '@implements("silu@1", name="new")\n'
        "def silu(x): return x\n"
    )
    monkeypatch.setattr(folder, "__path__", [*folder.__path__, str(tmp_path)])
    monkeypatch.setattr(plugin, "find_spec", lambda name: object())
    found = plugin.trivet_implementations(DeviceInfo("cuda", torch_type="cuda"))
    monkeypatch.delitem(sys.modules, f"{folder.__name__}.zzz_new")
    assert "new" in [c.name for f in found for c in f.__trivet__ if c.target == "silu@1"]


def test_without_triton_only_torchs_own_are_offered(monkeypatch):
    monkeypatch.setattr(plugin, "find_spec", lambda name: None)
    found = plugin.trivet_implementations(DeviceInfo("cuda", torch_type="cuda"))
    homes = {f.__module__.rpartition(".")[0] for f in found}
    assert homes <= {on_torch.__name__, peers.__name__}
