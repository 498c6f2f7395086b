"""NVML is asked as it is: a stand-in answers from a record, and the same record comes back."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from ctypes import Structure, c_int
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import required
from trivet.errors import ConfigError
from trivet_cuda.discovery import __main__ as command
from trivet_cuda.discovery import judge, recording, this_machine
from trivet_cuda.discovery.record import arch_flags, gather, nvml_facts

pynvml = required.module("pynvml")
DATA = Path(__file__).parent / "data"
RECORDS = {path.stem: json.loads(path.read_text()) for path in sorted(DATA.glob("*.json"))}
STARTED = [name for name, record in RECORDS.items() if record["nvml"]["start"] is None]

SYSTEM = {
    "nvmlSystemGetDriverVersion": "driver",
    "nvmlSystemGetCudaDriverVersion_v2": "cuda_driver",
    "nvmlDeviceGetCount": "count",
}
DEVICE = {
    "nvmlDeviceGetName": "name",
    "nvmlDeviceGetUUID": "uuid",
    "nvmlDeviceGetCudaComputeCapability": "capability",
    "nvmlDeviceGetMemoryInfo": "memory_bytes",
    "nvmlDeviceGetNumGpuCores": "cuda_cores",
    "nvmlDeviceGetComputeMode": "compute_mode",
    "nvmlDeviceGetMigMode": "mig_mode",
    "nvmlDeviceGetEccMode": "ecc",
    "nvmlDeviceGetMaxPcieLinkGeneration": "pcie_generation",
    "nvmlDeviceGetCurrPcieLinkWidth": "pcie_width",
    "nvmlDeviceGetMaxPcieLinkWidth": "pcie_width_most",
    "nvmlDeviceGetCurrentClocksEventReasons": "clock_reasons",
    "nvmlDeviceGetAttributes_v2": "multiprocessors",
    "nvmlDeviceGetGpuInstanceId": "gpu_instance",
    "nvmlDeviceGetComputeInstanceId": "compute_instance",
}
INSIDE = {"memory_bytes": "total", "multiprocessors": "multiprocessorCount"}


class Fabric(Structure):
    _fields_ = (("state", c_int),)


class StandIn:
    """What ``pynvml`` would be on the machine of a record; it must be started, and shut down."""

    NVMLError = pynvml.NVMLError
    c_nvmlGpuFabricInfoV_t = Fabric  # noqa: N815 - its name

    def __init__(self, nvml):
        self.nvml = nvml
        self.open = 0

    def __getattr__(self, name):
        if name in SYSTEM:
            return lambda: self._say(self.nvml[SYSTEM[name]])
        if name in DEVICE:
            fact = DEVICE[name]
            return lambda handle: self._say(handle[fact], INSIDE.get(fact))
        raise AttributeError(name)

    def _say(self, answer, field=None):
        assert self.open == 1
        if isinstance(answer, dict):
            raise getattr(pynvml, f"NVMLError_{answer['error']}")
        return SimpleNamespace(**{field: answer}) if field else answer

    def nvmlInit(self):  # noqa: N802 - its name
        self.open += 1
        if self.nvml["start"]:
            self.open -= 1
            raise getattr(pynvml, f"NVMLError_{self.nvml['start']['error']}")

    def nvmlShutdown(self):  # noqa: N802 - its name
        self.open -= 1

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802 - its name
        gpu = self.nvml["devices"][index]
        return self._say(gpu) if "error" in gpu else gpu

    def nvmlDeviceGetNvLinkState(self, gpu, link):  # noqa: N802 - its name
        if link >= len(gpu["nvlinks"]):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return gpu["nvlinks"][link]

    def nvmlDeviceGetFieldValues(self, gpu, fields):  # noqa: N802 - its name
        assert fields == [pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON]
        speed = gpu["nvlink_mbps"]
        none = isinstance(speed, dict)
        value = SimpleNamespace(uiVal=0 if none else speed)
        return [SimpleNamespace(nvmlReturn=3 if none else 0, value=value)]

    def nvmlDeviceGetGpuFabricInfoV(self, gpu, info):  # noqa: N802 - its name
        info._obj.state = self._say(gpu["fabric"])

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu):  # noqa: N802 - its name
        return 7 if gpu["mig_devices"] else 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu, index):  # noqa: N802 - its name
        if index >= len(gpu["mig_devices"]):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return gpu["mig_devices"][index]


@pytest.mark.parametrize("name", RECORDS)
def test_asking_the_machine_of_a_record_gives_the_record(name):
    nvml = RECORDS[name]["nvml"]
    stand_in = StandIn(copy.deepcopy(nvml))
    told = nvml_facts(lambda: stand_in)
    assert json.loads(json.dumps(told, default=list)) == nvml
    assert stand_in.open == 0


def test_the_stand_in_has_no_function_that_the_binding_lacks():
    functions = {n for n in vars(StandIn) if n.startswith("nvml")} | SYSTEM.keys() | DEVICE.keys()
    functions |= {"c_nvmlGpuFabricInfoV_t", "nvmlDeviceGetAttributes"}
    functions |= {"nvmlSystemGetCudaDriverVersion", "nvmlDeviceGetCurrentClocksThrottleReasons"}
    assert [name for name in sorted(functions) if not hasattr(pynvml, name)] == []
    fields = {name for name, _ in pynvml.c_nvmlGpuFabricInfoV_t._fields_}
    assert "state" in fields


def test_an_older_binding_is_asked_by_the_names_that_it_has():
    class Older(StandIn):
        c_nvmlGpuFabricInfoV_t = property()  # noqa: N815 - reading it raises AttributeError

        def __getattr__(self, name):
            if name in {"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetNumGpuCores",
                        "nvmlSystemGetCudaDriverVersion_v2"}:  # fmt: skip
                raise AttributeError(name)
            name = name.replace("ThrottleReasons", "EventReasons")
            name = {"nvmlSystemGetCudaDriverVersion": f"{name}_v2"}.get(name, name)
            return super().__getattr__(name)

    record = copy.deepcopy(RECORDS["l4"])
    wanted = judge(record).devices[0]
    record["nvml"] = nvml_facts(lambda: Older(RECORDS["l4"]["nvml"]))
    got = judge(record).devices[0]
    assert got.cores is None
    assert got.notes == wanted.notes


def test_a_missing_binding_is_a_reason():
    def missing():
        raise ModuleNotFoundError("No module named 'pynvml'")

    record = RECORDS["h200_x8"] | {"nvml": nvml_facts(missing)}
    assert judge(record).obstacle == "no_binding"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


def paths(tree, before=()):
    """Every place in a record, the record itself included."""
    yield before
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in items if isinstance(tree, dict | list) else ():
        yield from (
            paths(value, (*before, key)) if isinstance(value, dict | list) else ((*before, key),)
        )


def damaged(record, path, value):
    if not path:
        return value
    copied = copy.deepcopy(record)
    inner = copied
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return copied


def assert_usable(finding):
    from trivet.plugins.answers import _odd_field  # what core holds against an answer

    assert bool(finding.devices) is not bool(finding.reason)
    assert bool(finding.reason) is (finding.obstacle is not None)
    assert finding.reason.isprintable()
    for info in finding.devices:
        assert _odd_field(info) == ""
        assert 0 not in (info.cores, info.memory_bytes, info.shared_bytes)
        json.dumps(info.to_json())


@settings(
    max_examples=150, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
@given(st.data())
def test_damaged_records_are_a_reason_or_a_device_with_less_known(data):
    record = RECORDS[data.draw(st.sampled_from(sorted(RECORDS)))]
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(list(paths(record))))
        record = damaged(record, path, data.draw(JSON))
        if not isinstance(record, dict):
            break
    assert_usable(judge(record))


def test_a_file_name_that_cannot_be_printed_is_escaped():
    record = copy.deepcopy(RECORDS["no_permission"])
    record["host"]["device_files"] = {"/dev/nvidia\x1f0": False}
    assert "/dev/nvidia\\x1f0" in judge(record).reason


ODD = [b"\xff", object(), SimpleNamespace(), [], "", -1, None, 2**80, [1], (1, 2, 3), {"error": 5}]


@settings(max_examples=80, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_a_binding_that_answers_nonsense_or_raises_anything_never_raises_here(data):
    name = data.draw(st.sampled_from(STARTED))
    functions = [n for n in vars(StandIn) if n.startswith("nvml")] + [*SYSTEM, *DEVICE]
    broken = data.draw(st.sets(st.sampled_from(functions), min_size=1, max_size=4))
    what = data.draw(st.sampled_from([*ODD, KeyError("x"), OSError("y"), UnicodeError("z")]))

    def nonsense(*arguments):
        if isinstance(what, Exception):
            raise what
        return what

    stand_in = StandIn(RECORDS[name]["nvml"])
    for function in broken - {"nvmlInit", "nvmlShutdown"}:
        setattr(stand_in, function, nonsense)
    assert_usable(judge(RECORDS[name] | {"nvml": nvml_facts(lambda: stand_in)}))
    assert stand_in.open == 0


def test_this_machine_is_asked_without_starting_cuda():
    record = gather()
    json.dumps(record)
    assert_usable(judge(record))
    assert_usable(this_machine())
    assert not torch.cuda.is_initialized()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_of_a_fork_can_ask_again_and_may_start_cuda():
    code = (
        "import os, torch\n"
        "from trivet_cuda.discovery import judge, this_machine\n"
        "from trivet_cuda.discovery.record import gather\n"
        "import threading\n"
        "before = this_machine(); judge(gather())\n"
        "assert threading.active_count() == 1\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    same = judge(gather()) == before\n"
        "    good = same and not torch.cuda._is_in_bad_fork()\n"
        "    if before.devices: torch.zeros(1, device='cuda')\n"
        "    os._exit(0 if good else 3)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "assert not torch.cuda.is_initialized()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_command_shows_keeps_and_replays(tmp_path, capsys):
    kept = tmp_path / "kept.json"
    status = command.main(["--record", str(kept), "--machine", "one of the tests"])
    said = capsys.readouterr().out
    record = json.loads(kept.read_text())
    assert record["origin"].startswith("recorded 20")
    assert record["machine"] == "one of the tests"
    assert status == (0 if this_machine().devices else 1)
    assert this_machine().reason in said
    assert command.main(["--replay", str(kept)]) == status
    assert capsys.readouterr().out in said
    assert command.main(["--replay", str(DATA / "l4.json")]) == 0
    assert "cuda:0: NVIDIA L4, sm89, 23034 MiB, 58 SMs, l2 48 MiB" in capsys.readouterr().out


def test_uuids_are_replaced_alike_and_still_name_the_same_gpu(tmp_path):
    record = copy.deepcopy(RECORDS["h200_x8"])
    uuid = record["nvml"]["devices"][5]["uuid"]
    record["environment"]["CUDA_VISIBLE_DEVICES"] = uuid
    recording.save(str(tmp_path / "kept.json"), record)
    kept = recording.load(str(tmp_path / "kept.json"))
    assert uuid not in (tmp_path / "kept.json").read_text()
    assert kept["nvml"]["devices"][5]["uuid"] == kept["environment"]["CUDA_VISIBLE_DEVICES"]
    assert judge(kept) == judge(record)


def test_files_that_cannot_be_used_end_in_a_typed_error(tmp_path, capsys):
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "torn.json").write_text('{"torch": ')
    for name in ("list.json", "torn.json", "missing.json"):
        with pytest.raises(ConfigError):
            recording.load(str(tmp_path / name))
        assert command.main(["--replay", str(tmp_path / name)]) == 2
        assert "fix: make one with --record FILE" in capsys.readouterr().err
    with pytest.raises(ConfigError):
        recording.save(str(tmp_path), {})


def test_what_cuda_says_otherwise_is_a_difference_and_what_is_open_is_none():
    finding = judge(RECORDS["h200_container"])
    told = {"name": "NVIDIA H200", "major": 9, "minor": 0, "multi_processor_count": 132,
            "L2_cache_size": 60 << 20, "shared_memory_per_block_optin": 227 << 10,
            "warp_size": 32}  # fmt: skip
    assert recording.differences(finding, {"cuda": [told]}) == []
    assert recording.differences(finding, {"cuda": [told | {"L2_cache_size": None}]}) == []
    (wrong,) = recording.differences(finding, {"cuda": [told | {"multi_processor_count": 114}]})
    assert wrong == "cuda:0 cores: 132, CUDA says 114"
    for nothing in ([], None):
        wrong = recording.differences(finding, {"cuda": nothing})
        assert wrong == ["1 devices, CUDA counts 0"]


def test_recorded_machines_that_hold_cudas_own_answers_agree_with_them():
    asked = [record for record in RECORDS.values() if "cuda" in record]
    assert all(recording.differences(judge(record), record) == [] for record in asked)


def test_the_command_compares_kept_answers_with_those_of_cuda(tmp_path, capsys):
    record = copy.deepcopy(RECORDS["h200_container"])
    kept = tmp_path / "kept.json"
    recording.save(str(kept), record)
    assert command.main(["--replay", str(kept), "--verify"]) == 2
    assert "holds no answers of CUDA" in capsys.readouterr().err
    for sms, status in ((132, 0), (114, 1)):
        record["cuda"] = [{"name": "NVIDIA H200", "major": 9, "minor": 0,
                           "multi_processor_count": sms}]  # fmt: skip
        recording.save(str(kept), record)
        assert command.main(["--replay", str(kept), "--verify"]) == status
    assert "cuda:0 cores: 132, CUDA says 114" in capsys.readouterr().out


def test_the_record_is_kept_when_cuda_gives_no_answer(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(recording, "_ASK", "import sys; sys.exit('no room on the device')")
    kept = tmp_path / "kept.json"
    assert command.main(["--record", str(kept), "--verify"]) == 2
    assert "CUDA gives no answer: no room on the device" in capsys.readouterr().err
    assert recording.load(str(kept))["torch"]["version"] == torch.__version__


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"x\0sm_75 sm_80 sm_90a compute_120\0y", ["sm_75", "sm_80", "sm_90a", "compute_120"]),
        (b"\0sm_count\0 sm_90 \0sm_90\0", ["sm_90"]),
        (b"\0sm_\0compute_at\0", []),
        (b"\0sm_80", ["sm_80"]),
        (b"", []),
    ],
)
def test_architectures_of_torch_are_read_from_its_library(tmp_path, content, found):
    library = tmp_path / "libtorch_python.so"
    library.write_bytes(content)
    assert arch_flags(library) == found


def test_a_library_that_is_not_there_names_no_architecture(tmp_path):
    assert arch_flags(tmp_path / "torch_python.dll") == []
