"""A run in child processes: a death is one result, what is patched is named, the rest goes on."""

from __future__ import annotations

from trivet_conformance.calls.last_words import in_short, last_words
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


DELAYED = """
import torch
from torch import Tensor
from trivet.contracts import implements
from trivet.contracts.device_info import DeviceInfo

kept = []

def trivet_devices():
    return [DeviceInfo("frail", name="frail")]

def refuse(*given, **named):
    raise RuntimeError("misaligned address")

def prepare(facts, weight, bias):
    if weight.dtype == torch.float16:
        kept.append(torch.library.Library("aten", "IMPL"))
        kept[0].impl("add.Tensor", refuse, "CPU")
        torch.ones(1) + 1
    return [weight]

@implements("linear_packed@1", name="packs", prepare=prepare)
def packs(x: Tensor, packed: list[Tensor], out_features: int, bias: Tensor | None = None) -> Tensor:
    return torch.nn.functional.linear(x, packed[0][:out_features], bias)

@implements("embedding@1", name="good")
def good(ids: Tensor, weight: Tensor) -> Tensor:
    return weight[ids]

def trivet_implementations(device):
    return [packs, good]
"""


def test_a_device_that_fails_while_cases_are_made_ends_that_group_and_no_other(tmp_path):
    (tmp_path / "frail.py").write_text(DELAYED)
    found = locate(str(tmp_path / "frail.py"), tmp_path / "metadata")
    job = Job(found.name, paths=found.paths, families=("value",), quick=True)
    driver = Driver(job, deaths=9)
    results = list(driver.run())
    assert driver.finished
    crashed = [r for r in results if r.status is Status.CRASH]
    assert [(r.family, r.op) for r in crashed] == [("value", "linear_packed")]
    reason = crashed[0].finding.reason
    assert "the device failed in it: RuntimeError: misaligned address" in reason
    good = [r for r in results if r.provider == "frail/good"]
    assert {r.family for r in good} == {"value", "harness"}
    assert {r.status for r in good} <= {Status.PASS, Status.NOT_SUPPORTED}


FATAL = """
noise
terminate called after throwing an instance of 'c10::AcceleratorError'
  what():  an error: misaligned address
Search for it

Fatal Python error: Aborted

Current thread 0x1 (most recent call first):
  File "a.py", line 1 in one
  File "b.py", line 2 in two

Extension modules: numpy, torch (total: 2)
"""


def test_the_last_words_of_a_process_are_those_that_say_why():
    words = last_words(FATAL)
    assert words[1] == "what():  an error: misaligned address"
    assert words[2] == "Fatal Python error: Aborted"
    assert words[-1] == 'File "b.py", line 2 in two'
    assert in_short(words) == " (an error: misaligned address)"
    assert last_words("\n".join(map(str, range(9)))) == list("45678")
    assert in_short(last_words("")) == ""
