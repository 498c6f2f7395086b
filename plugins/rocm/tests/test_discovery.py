"""Machines as records: what each is found to be, and which GPUs torch would see.

No record is from hardware yet; each says so under ``origin``.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trivet_rocm import STATUS
from trivet_rocm.discovery import Obstacle, judge
from trivet_rocm.discovery import architecture as arch
from trivet_rocm.discovery.__main__ import main

DATA = Path(__file__).parent / "data"
RECORDS = {path.stem: json.loads(path.read_text()) for path in sorted(DATA.glob("*.json"))}
GIB = 1 << 30

FOUND = {  # machine -> (devices, arch, units, memory in GiB, a feature that it has)
    "mi210": (1, "gfx90a", 104, 64, "mfma"),
    "mi300x_cpx": (8, "gfx942", 38, 48, "partition"),
    "mi300x_x8": (8, "gfx942", 304, 192, "xgmi"),
    "mi355x_container": (1, "gfx950", 256, 288, "fp8_ocp"),
    "mixed": (2, "gfx90a", 104, 64, "mfma"),
    "one_closed": (1, "gfx90a", 104, 64, "mfma"),
    "rx7800_as_7900": (1, "gfx1100", 60, 16, "wmma"),
    "rx7900xtx": (1, "gfx1100", 96, 24, "wave32"),
    "rx9070xt": (1, "gfx1201", 64, 16, "fp8_ocp"),
    "wsl_rx7900": (1, "gfx1100", 96, None, "wmma"),
}
ABSENT = {  # machine -> (kind of reason, a part of the sentence that says what to do)
    "all_hidden_by_rules": ("no_permission", "--device=/dev/kfd"),
    "container_no_permission": ("no_permission", "start the container with --device=/dev/kfd"),
    "container_without": ("no_driver", "start the container with --device=/dev/kfd"),
    "cpu_build": ("cpu_build", "install a build for ROCm"),
    "cuda_build": ("cuda_build", "built for CUDA 13.0, not for ROCm"),
    "gfx_unknown": ("unreadable", "update the driver"),
    "hidden": ("hidden", "HIP_VISIBLE_DEVICES=''"),
    "igpu_only": ("unsupported", "is gfx1036, for which trivet-rocm has no kernels"),
    "no_driver": ("no_driver", "modprobe amdgpu"),
    "no_gpu": ("no_device", "no GPU for computing"),
    "no_kfd": ("no_driver", "amdgpu-dkms"),
    "no_permission": ("no_permission", "join the groups render and video"),
    "no_sysfs": ("unreadable", "/sys as it is"),
    "old_torch": ("not_in_torch", "it has gfx90a, gfx942, gfx1100"),
    "windows": ("system", "use WSL"),
    "wsl_silent": ("wsl", "rocminfo"),
}


def changed(name, **environment):
    record = copy.deepcopy(RECORDS[name])
    record["environment"] |= environment
    return record


def test_every_machine_is_expected_and_says_where_it_comes_from():
    assert RECORDS.keys() == FOUND.keys() | ABSENT.keys()
    for record in RECORDS.values():
        assert record["origin"].startswith(("written by hand", "recorded 20"))
        assert record["machine"]


@pytest.mark.parametrize("name", FOUND)
def test_machines_with_devices(name):
    number, own, units, gib, feature = FOUND[name]
    finding = judge(RECORDS[name])
    assert (finding.reason, finding.obstacle) == ("", None)
    assert [info.index for info in finding.devices] == list(range(number))
    info = finding.devices[0]
    assert (info.kind, info.torch_type) == ("rocm", "cuda")
    assert (info.arch[0], info.cores) == (own, units)
    assert gib is None or info.memory_bytes == gib * GIB
    assert feature in info.features
    for each in finding.devices:
        assert STATUS in each.notes
        assert each.subgroup_width == (64 if "cdna" in each.arch[-1] else 32)
        assert each.shared_bytes == (160 if own == "gfx950" else 64) << 10
        assert "bfloat16" in each.dtypes


@pytest.mark.parametrize("name", ABSENT)
def test_machines_without_a_device_have_one_sentence(name):
    kind, part = ABSENT[name]
    finding = judge(RECORDS[name])
    assert finding.devices == ()
    assert finding.obstacle is Obstacle(kind)
    assert part in finding.reason
    assert "\n" not in finding.reason
    assert finding.reason[-1] not in ".:;"


@pytest.mark.parametrize(
    ("name", "own", "largest", "other"),
    [
        ("mi300x_x8", "float8_e4m3fnuz", 240, "float8_e4m3fn"),
        ("mi355x_container", "float8_e4m3fn", 448, "float8_e4m3fnuz"),
        ("rx9070xt", "float8_e4m3fn", 448, "float8_e4m3fnuz"),
    ],
)
def test_8_bit_floats_are_facts_of_the_architecture(name, own, largest, other):
    info = judge(RECORDS[name]).devices[0]
    assert own in info.dtypes
    assert other not in info.dtypes
    assert torch.finfo(getattr(torch, own)).max == arch.largest(own) == largest
    assert f"8-bit floats are {own}, at most {largest}; {other} is emulated" in info.notes
    assert ("fp8_fnuz" in info.features) is (own == arch.FNUZ)
    assert ("fp8_ocp" in info.features) is (own == arch.OCP)


@pytest.mark.parametrize("name", ["mi210", "rx7900xtx"])
def test_architectures_without_8_bit_conversion_claim_none(name):
    info = judge(RECORDS[name]).devices[0]
    assert not any("float8" in dtype for dtype in info.dtypes)
    assert not any("fp8" in feature for feature in info.features)
    assert any("every format is emulated" in note for note in info.notes)


def test_partitions_links_errors_and_other_systems_are_told():
    def notes(name, index=0):
        return judge(RECORDS[name]).devices[index].notes

    assert "partition 3 in mode CPX: one die of the device, memory NPS4" in notes("mi300x_cpx", 3)
    assert "xGMI to 7 other GPUs" in notes("mi300x_x8", 7)
    assert "2 uncorrectable errors of memory: see amd-smi" in notes("mi355x_container")
    assert any("Windows" in note for note in notes("wsl_rx7900"))
    assert any("taken for gfx1100; it is gfx1101" in note for note in notes("rx7800_as_7900"))
    assert any("left out: cuda:2" in note and "gfx1036" in note for note in notes("mixed"))
    assert any("amdsmi does not answer" in note for note in notes("rx7900xtx"))
    dpx = copy.deepcopy(RECORDS["mi300x_cpx"])
    for one in dpx["amdsmi"]["devices"]:
        one["compute_partition"] = "DPX"
    assert any("one of 2 parts" in note for note in judge(dpx).devices[0].notes)


def test_devices_behind_a_closed_one_are_left_out_since_their_number_is_unknown():
    record = copy.deepcopy(RECORDS["one_closed"])
    record["kfd"]["nodes"].reverse()
    finding = judge(record)
    assert (finding.devices, finding.obstacle) == ((), Obstacle.NO_PERMISSION)
    record["kfd"]["nodes"].insert(0, record["kfd"]["nodes"][1])
    notes = judge(record).devices[0].notes
    assert any("cuda:2 has another number" in note for note in notes)


@pytest.mark.parametrize(
    ("environment", "places"),
    [
        ({}, [0, 1, 2, 3, 4, 5, 6, 7]),
        ({"HIP_VISIBLE_DEVICES": "2,0"}, [2, 0]),
        ({"CUDA_VISIBLE_DEVICES": "5"}, [5]),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "5"}, [1]),
        ({"ROCR_VISIBLE_DEVICES": "4,5,6", "HIP_VISIBLE_DEVICES": "2,0"}, [6, 4]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-1000000000000004"}, [2]),
        ({"HIP_VISIBLE_DEVICES": "0,9,1"}, [0]),
        ({"HIP_VISIBLE_DEVICES": "1,1"}, None),
        ({"ROCR_VISIBLE_DEVICES": "-1"}, None),
    ],
)
def test_which_gpus_torch_sees(environment, places):
    record = changed("mi300x_x8", **environment)
    for at, node in enumerate(record["kfd"]["nodes"]):
        node["memory_bytes"] = (at + 1) * GIB
    finding = judge(record)
    if places is None:
        assert finding.obstacle is Obstacle.HIDDEN
    else:
        assert [d.memory_bytes // GIB - 1 for d in finding.devices] == places


def test_unknown_facts_are_none():
    record = copy.deepcopy(RECORDS["mi300x_x8"])
    for node in record["kfd"]["nodes"]:
        node |= {"memory_bytes": 0, "simd_per_cu": 0, "caches": {}}
    record["amdsmi"]["devices"] = []
    info = judge(record).devices[0]
    assert (info.memory_bytes, info.cores, info.cache_bytes, info.name) == (None, None, {}, "")


def test_names_of_architectures():
    versions = {90010: "gfx90a", 90402: "gfx942", 90500: "gfx950", 110000: "gfx1100",
                120001: "gfx1201", 0: "", -5: "", 10**9: ""}  # fmt: skip
    assert {n: arch.of_version(n) for n in versions} == versions
    assert arch.base("gfx942:sramecc+:xnack-") == "gfx942"
    assert arch.base("sm_90") == ""
    assert arch.names("gfx1101") == ("gfx1101", "gfx1100", "rdna3")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


def paths(tree, before=()):
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in items:
        yield (*before, key)
        if isinstance(value, dict | list):
            yield from paths(value, (*before, key))


@settings(
    max_examples=120, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
@given(st.data())
def test_damaged_records_are_a_reason_or_a_device_with_less_known(data):
    record = copy.deepcopy(RECORDS[data.draw(st.sampled_from(sorted(RECORDS)))])
    *way, last = data.draw(st.sampled_from(list(paths(record))))
    inner = record
    for key in way:
        inner = inner[key]
    inner[last] = data.draw(JSON)
    finding = judge(record)
    assert bool(finding.devices) is not bool(finding.reason)
    assert bool(finding.reason) is (finding.obstacle is not None)
    assert finding.reason.isprintable()
    for info in finding.devices:
        assert 0 not in (info.cores, info.memory_bytes, info.shared_bytes)
        json.dumps(info.to_json())
    assert judge([]).obstacle is Obstacle.CPU_BUILD


def test_the_command_replays_and_keeps_without_serial_numbers(tmp_path, capsys):
    kept = tmp_path / "kept.json"
    source = str(DATA / "mi300x_x8.json")
    assert main(["--replay", source, "--record", str(kept), "--machine", "eight"]) == 0
    assert "cuda:7: AMD Instinct MI300X, gfx942, 196608 MiB" in capsys.readouterr().out
    record = json.loads(kept.read_text())
    assert [n["unique_id"] for n in record["kfd"]["nodes"]] == list(range(1, 9))
    assert len(judge(record).devices) == 8
    assert main(["--replay", str(DATA / "no_gpu.json")]) == 1
