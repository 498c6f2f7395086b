"""A run in child processes: a death is one result, what is patched is named, the rest goes on."""

from __future__ import annotations

from trivet_conformance.result import Status
from trivet_conformance.running.drive import Driver
from trivet_conformance.running.wire import Job
from trivet_conformance.subject.locating import locate

PLUGIN = """
import ctypes
import torch
from torch import Tensor
from trivet.contracts import implements
from trivet.contracts.device_info import DeviceInfo

def trivet_devices():
    return [DeviceInfo("rough", name="rough")]

@implements("silu_and_mul@1", name="dies")
def dies(x: Tensor) -> Tensor:
    ctypes.string_at(0)

@implements("embedding@1", name="patches")
def patches(ids: Tensor, weight: Tensor) -> Tensor:
    torch.equal = lambda a, b: True
    return weight[ids]

@implements("embedding@1", name="good")
def good(ids: Tensor, weight: Tensor) -> Tensor:
    return weight[ids]

def trivet_implementations(device):
    return [dies, patches, good]
"""


def test_a_crash_and_a_patch_are_told_and_harm_nobody_else(tmp_path):
    (tmp_path / "rough.py").write_text(PLUGIN)
    found = locate(str(tmp_path / "rough.py"), tmp_path / "metadata")
    job = Job(found.name, paths=found.paths, families=("value",), quick=True, harness=False)
    driver = Driver(job, deaths=2)
    results = list(driver.run())
    of = {n: [r for r in results if r.provider == f"rough/{n}"] for n in ("dies", "patches")}
    assert [r.status for r in of["dies"]][:2] == [Status.CRASH, Status.CRASH]
    assert "SIGSEGV" in of["dies"][0].finding.reason
    assert of["dies"][0].id != of["dies"][1].id  # what killed a process is not tried again
    assert not driver.finished

    rest = Driver(Job(**{**job.to_json(), "ops": ("embedding",)}))
    results = list(rest.run())
    patched = [r for r in results if r.provider == "rough/patches"]
    assert rest.finished
    assert any("torch.equal was replaced by rough." in r.finding.reason for r in patched)
    good = [r for r in results if r.provider == "rough/good"]
    assert good
    assert all(r.status in (Status.PASS, Status.NOT_SUPPORTED) for r in good)
