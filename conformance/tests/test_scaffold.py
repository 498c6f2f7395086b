from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from trivet_conformance.memory import MEMORY
from trivet_conformance.scaffold import names
from trivet_conformance.scaffold.command import new_plugin
from trivet_conformance.scaffold.writing import DEVICES, FILES, TEMPLATES, Package
from trivet_conformance.suite.claims import mustpass, satisfied

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = ROOT / "docs/tutorials/device-plugin.md"
DENSE = ("rms_norm", "rotary_embedding", "kv_cache_write", "paged_attention")
OWN = ("silu_and_mul", "fused_add_rms_norm")
KIT = "from trivet_conformance.cli.program import main; main()"


def make(folder, name="acme", *words):
    return CliRunner().invoke(new_plugin, [name, "--dir", str(folder), *words])


def blocks(kind):
    found = re.findall(rf"^```{kind}\n(.*?)^```", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL)
    assert found
    return found


def patched(text, diff):
    """A text with the lines ``-`` of a diff replaced by the lines ``+`` that follow them."""
    hunks = re.findall(r"((?:^-.*\n)+)((?:^\+.*\n)+)", diff, re.MULTILINE)
    assert hunks
    for hunk in hunks:
        old, new = ("".join(li[1:] for li in part.splitlines(keepends=True)) for part in hunk)
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def child(site, *words):
    """A new interpreter that finds what was installed into a folder, editable or not."""
    editable = [line for file in Path(site).glob("*.pth") for line in file.read_text().split("\n")]
    env = {n: v for n, v in os.environ.items() if not n.startswith(("TRIVET_", "TRITON_"))}
    env["PYTHONPATH"] = os.pathsep.join([str(site), *filter(None, editable)])
    done = subprocess.run(
        [sys.executable, "-c", *words],
        capture_output=True,
        text=True,
        check=False,
        env=env | {"OMP_NUM_THREADS": "1"},
        cwd=site,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def kit(site, *words):
    """The kit over what was installed; its results."""
    folder = Path(site) / "report"
    child(site, KIT, "run", "--plugin", "acme", "--dir", str(folder), *words)
    lines = (folder / "report.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["kind"] == "result"]


def install(folder, site, *words):
    words = ("--disable-pip-version-check", "--no-build-isolation", "--no-deps", *words)
    command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(site), *words]
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return site


@pytest.mark.parametrize(
    ("name", "own_device", "why"),
    [
        ("Acme", True, "small letters"),
        ("acme-gpu", True, "small letters"),
        ("_acme", False, "small letters"),
        ("acme_", False, "small letters"),
        ("../acme", False, "small letters"),
        ("", False, "small letters"),
        ("a" * 33, False, "longer"),
        ("class", True, "Python"),
        ("match", True, "Python"),
        ("reference", False, "trivet"),
        ("auto", True, "trivet"),
        ("cpu", False, "torch"),
        ("cuda", True, "torch"),
        ("nn", True, "torch"),
        ("acme2", True, "digits"),
    ],
)
def test_a_name_that_would_fail_later_is_refused(name, own_device, why, tmp_path):
    assert why in names.problem(name, own_device=own_device)
    word = "privateuse1" if own_device else "cpu"
    done = make(tmp_path / "p", name, "--device", word)
    assert done.exit_code == 2
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(("name", "own_device"), [("acme", True), ("my_npu", True), ("k2", False)])
def test_other_names_are_taken(name, own_device):
    assert names.problem(name, own_device=own_device) == ""


def test_the_name_of_an_installed_plugin_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(names, "installed", lambda name: f"trivet-{name}")
    done = make(tmp_path / "p")
    assert done.exit_code == 2
    assert "trivet-acme already brings" in done.output
    assert make(tmp_path / "p", "acme", "--force").exit_code == 0


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "README.md").write_text("mine")
    refused = make(tmp_path)
    assert refused.exit_code == 2
    assert [p.name for p in tmp_path.iterdir()] == ["README.md"]
    forced = make(tmp_path, "acme", "--force")
    assert forced.exit_code == 0
    assert "kept" in forced.output
    assert (tmp_path / "README.md").read_text() == "mine"
    assert (tmp_path / "pyproject.toml").is_file()


def test_the_default_folder_has_the_name_of_the_distribution(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(new_plugin, ["my_npu"]).exit_code == 0
    assert (tmp_path / "trivet-my-npu/src/trivet_my_npu/plugin.py").is_file()


def test_every_template_is_used():
    used = {*FILES.values(), *(name for files in DEVICES.values() for name in files.values())}
    assert used == {p.name for p in TEMPLATES.iterdir()}


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_written_is_whole(device):
    files = Package("my_npu", device).render()
    for path, text in files.items():
        assert not re.search(r"\[\[ |\[%|\bNAME\b(?! =)(?=\.py)", text), path
        assert text.endswith("\n"), path
        assert max(map(len, text.splitlines())) <= 110, path
        if path.endswith(".py"):
            ast.parse(text)
    project = tomllib.loads(files["pyproject.toml"])["project"]
    points = project["entry-points"]
    assert points["trivet.plugins"] == {"my_npu": "trivet_my_npu.plugin"}
    assert points["trivet.contract"] == {"my_npu": "v1:v1"}
    assert points.get("trivet.extends") == ({"my_npu": "cpu"} if device == "cpu" else None)
    assert ("csrc/device.cpp" in files) == (device == "privateuse1")
    if device == "host":
        assert not [path for path in files if "csrc" in path or "build" in path]
        assert not [path for path, text in files.items() if "csrc" in text or "triton" in text]
        return
    key = "PrivateUse1" if device == "privateuse1" else "CPU"
    assert f"TORCH_LIBRARY_IMPL(trivet_my_npu, {key}, m)" in files["csrc/kernels.cpp"]


def test_the_help_says_which_device_to_take():
    text = CliRunner().invoke(new_plugin, ["--help"]).output
    for device in DEVICES:
        assert re.search(rf"^  {device} +\w", text, re.MULTILINE), text
        assert device in TUTORIAL.read_text()


def test_trivet_finds_the_command():
    project = tomllib.loads((ROOT / "conformance/pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["trivet.commands"]["new-plugin"].partition(":")
    assert isinstance(getattr(import_module(module), name), click.Command)


def test_the_reader_of_the_tutorial_writes_at_most_150_lines():
    assert sum(len(text.splitlines()) for text in blocks("python")) <= 150


# --- installed -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The package as written, with what the tutorial adds, in a folder of its own."""
    home = tmp_path_factory.mktemp("plugin")
    assert make(home / "p").exit_code == 0
    package = home / "p/src/trivet_acme"
    (package / "dense.py").write_text("\n\n".join(blocks("python")))
    plugin = package / "plugin.py"
    plugin.write_text(patched(plugin.read_text(), blocks("diff")[0]))
    return install(home / "p", home / "site")


DEVICE = """
import torch, trivet
dev = trivet.device("acme")
assert dev.torch == torch.device("acme:0") and dev.info.execution == "emulated"
x = torch.arange(24.0).reshape(4, 6).to("acme")
assert x.device.type == "acme" and torch.equal(x.cpu(), torch.arange(24.0).reshape(4, 6))
view = torch.empty(40, device="acme").fill_(-1)
strided = torch.as_strided(view, (4, 6), (8, 1), 3)
strided.copy_(x)
assert torch.equal(strided, x) and view.cpu().eq(-1).sum() == 16
assert torch.equal(x.T.contiguous().cpu(), x.cpu().T) and x.T.contiguous().stride() == (4, 1)
assert x.view(torch.int32).device.type == "acme" and x[1, 2].item() == 8.0
assert x.to(torch.bfloat16).to("cpu", torch.float64).sum() == 276
whole = torch.empty(0, device="acme").set_(view.untyped_storage())
assert whole.shape == (40,) and whole.data_ptr() == view.data_ptr()
grown = x.clone().resize_(5, 6)
assert torch.equal(grown[:4], x) and grown.untyped_storage().nbytes() >= 120
assert torch.cat([x, x]).sum().item() == 552 and (x @ x.T).device.type == "acme"
before = torch.acme.memory_allocated()
kept = torch.empty(1 << 20, device="acme")
assert torch.acme.memory_allocated() == before + (4 << 20)
del kept
assert torch.acme.memory_allocated() == before and dev.memory.info().total_bytes > 0
torch.manual_seed(0); torch.acme.synchronize(); torch.acme.set_device(0)
try:
    torch.acme.set_device(1)
except RuntimeError as error:
    assert "no device 1" in str(error)
else:
    raise AssertionError
y = dev.ops.silu_and_mul(x)
assert y.device == x.device and y.shape == (4, 3)
"""


def test_the_device_is_a_torch_device(site):
    child(site, DEVICE)


TAKEN = """
import torch, trivet
torch.utils.rename_privateuse1_backend("other")
try:
    trivet.device("acme")
except trivet.errors.TrivetError as error:
    assert "PrivateUse1 is already 'other'" in str(error)
else:
    raise AssertionError
assert trivet.device("auto").torch.type == "cpu"
"""


def test_a_process_whose_device_slot_is_taken_is_told_so(site):
    child(site, TAKEN)


def test_the_kit_accepts_the_package_as_it_is_written(site):
    rows = kit(site, "--quick", *(w for op in OWN for w in ("--op", op)))
    called = [row for row in rows if row["family"] != "load"]  # those come before the device
    assert {row["execution"] for row in called} == {"emulated"}
    for op in OWN:
        passed = {r["family"] for r in rows if r["operator"] == op and r["status"] == "pass"}
        assert {"alias", "meta", "value", "layout", "special"} <= passed


def test_its_memory_is_accepted_as_it_is_written(site):
    rows = kit(site, "--quick", *(w for name in MEMORY for w in ("--family", name)))
    own = {r["family"] for r in rows if (r["provider"], r["status"]) == ("acme", "pass")}
    assert {"memory.allocate", "memory.info"} <= own


def test_the_tutorial_reaches_the_cells_of_its_profile(site):
    words = [w for op in DENSE for w in ("--op", op)]
    words += ["--family", "meta", "--family", "value"]
    rows = kit(site, "--quick", *words)
    lines = [line.split("/") for line in mustpass("inference-dense", "L1")]
    wanted = {"/".join(x) for x in lines if x[1] in DENSE and x[0] in ("meta", "value")}
    assert len(wanted) == 2 * 2 * len(DENSE)
    assert wanted <= satisfied(rows)


@pytest.mark.soak
@pytest.mark.parametrize("profile", ["compute-only", "inference-dense"])
def test_the_tutorial_reaches_level_1(site, profile):
    kit(site, "--mode", "certify", "--profile", profile, "--level", "L1")


HOST = """
import torch, trivet
assert trivet.device("auto").info.kind != "acme"  # a stand-in is asked for
dev = trivet.device("acme")
assert (dev.info.kind, dev.torch.type, dev.info.execution) == ("acme", "cpu", "emulated")
assert dev.defaults["dtype"] == ("float32", "exact on every machine", "acme")
assert dev.explain("rms_norm")[0].provider == "acme/plain"
x = torch.randn(3, 16)
wanted = torch.nn.functional.silu(x[:, :8]) * x[:, 8:]
assert torch.allclose(dev.ops.silu_and_mul(x), wanted)
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """The package whose device's tensors lie on torch's CPU, as it is written."""
    home = tmp_path_factory.mktemp("host")
    assert make(home / "p", "acme", "--device", "host").exit_code == 0
    return install(home / "p", home / "site")


def test_a_device_on_the_host_is_a_kind_of_its_own(host):
    child(host, HOST)


def test_a_device_on_the_host_reaches_the_cells_of_its_profile(host):
    rows = kit(host, "--quick", "--family", "meta", "--family", "value", "--family", "dispatch")
    assert {row["execution"] for row in rows if row["family"] != "load"} == {"emulated"}
    lines = [line.split("/") for line in mustpass("compute-only", "L1")]
    wanted = {"/".join(x) for x in lines if x[0] in ("meta", "value", "dispatch")}
    assert wanted <= satisfied(rows)


@pytest.mark.soak
def test_a_device_on_the_host_reaches_level_1(host):
    kit(host, "--mode", "certify", "--profile", "compute-only", "--level", "L1")


@pytest.mark.soak
@pytest.mark.parametrize("device", DEVICES)
def test_an_editable_install_passes(device, tmp_path):
    assert make(tmp_path / "p", "acme", "--device", device).exit_code == 0
    site = tmp_path / "site"
    install(tmp_path / "p", site, "-e")
    rows = kit(site, "--quick")
    own = ("silu_and_mul", "rms_norm") if device == "host" else OWN
    passed = [r for r in rows if r["status"] == "pass" and r["family"] != "load"]
    assert {r["operator"] for r in passed} == {*own, "memory"}
