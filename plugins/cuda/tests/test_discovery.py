"""Recorded and hand-written machines: what each is found to be, and which GPUs torch would see."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch

from trivet_cuda.discovery import Obstacle, judge
from trivet_cuda.discovery import architecture as arch

DATA = Path(__file__).parent / "data"
RECORDS = {path.stem: json.loads(path.read_text()) for path in sorted(DATA.glob("*.json"))}
MIB = 1 << 20

FOUND = {  # machine -> (devices, arch, SMs, memory in MiB, a feature that it has)
    "a100_mig": (1, ("sm80",), 42, 20096, "mig"),
    "h200_container": (1, ("sm90", "sm80"), 132, 143771, "wgmma"),
    "h200_recorded": (1, ("sm90", "sm80"), 132, 143771, "wgmma"),
    "h200_x8": (8, ("sm90", "sm80"), 132, 143771, "nvlink"),
    "jetson_orin": (1, ("sm87", "sm80"), None, 65536, "cp_async"),
    "l4": (1, ("sm89", "sm80"), 58, 23034, "fp8"),
    "rtx4090_wsl": (1, ("sm89", "sm80"), 128, 24564, "fp8"),
    "rtx5090": (1, ("sm120", "sm90", "sm80"), 170, 32607, "tma"),
}
ABSENT = {  # machine -> (kind of reason, a part of the sentence that says what to do)
    "cpu_build": ("cpu_build", "install a build for CUDA"),
    "driver_too_old": ("driver_too_old", "update the driver, or install torch for CUDA 12"),
    "hip_build": ("hip_build", "HIP 6.4.43482"),
    "lost": ("device_lost", "GPU 1 does not answer"),
    "mismatch": ("mismatch", "restart the machine"),
    "mixed": ("order_unknown", "CUDA_DEVICE_ORDER=PCI_BUS_ID"),
    "no_driver": ("no_driver", "install the driver"),
    "no_gpu": ("no_device", "it has no GPU"),
    "no_gpu_permitted": ("no_permission", "none of the 2 GPUs"),
    "no_libcuda": ("no_libcuda", "NVIDIA_DRIVER_CAPABILITIES"),
    "no_libraries": ("no_driver", "start the container with the libraries"),
    "no_permission": ("no_permission", "/dev/nvidia0"),
    "not_loaded": ("not_loaded", "modprobe nvidia"),
    "v100": ("too_old", "compute capability 7.0, trivet-cuda needs 8.0"),
    "wsl_no_driver": ("no_driver", "the driver of Windows"),
}


def changed(name, **environment):
    record = copy.deepcopy(RECORDS[name])
    record["environment"] |= environment
    return record


def uuids(name):
    return [gpu["uuid"] for gpu in RECORDS[name]["nvml"]["devices"]]


def test_every_machine_is_expected_somewhere():
    assert RECORDS.keys() == FOUND.keys() | ABSENT.keys()


@pytest.mark.parametrize("name", RECORDS)
def test_every_machine_says_where_it_comes_from(name):
    assert RECORDS[name]["origin"].startswith(("written by hand", "recorded 20"))
    assert RECORDS[name]["machine"]


@pytest.mark.parametrize("name", FOUND)
def test_machines_with_devices(name):
    number, names, cores, mib, feature = FOUND[name]
    finding = judge(RECORDS[name])
    assert finding.reason == ""
    assert finding.obstacle is None
    assert [info.index for info in finding.devices] == list(range(number))
    for info in finding.devices:
        assert (info.kind, info.torch_type, info.subgroup_width) == ("cuda", "cuda", 32)
        assert (info.arch, info.cores, info.memory_bytes) == (names, cores, mib * MIB)
        assert {feature, "tensor_cores"} <= info.features
        assert "bfloat16" in info.dtypes
        assert ("float8_e4m3fn" in info.dtypes) is ("fp8" in info.features)
        assert info.name


@pytest.mark.parametrize("name", ABSENT)
def test_machines_without_a_device_have_one_sentence(name):
    kind, part = ABSENT[name]
    finding = judge(RECORDS[name])
    assert finding.devices == ()
    assert finding.obstacle is Obstacle(kind)
    assert part in finding.reason
    assert "\n" not in finding.reason
    assert finding.reason[-1] not in ".:;"


def notes(name, index=0):
    return judge(RECORDS[name]).devices[index].notes


def test_notes_tell_links_memory_errors_clocks_and_the_driver():
    assert "18 of 18 NVLinks up, 26.6 GB/s each way" in notes("h200_x8", 7)
    assert not any("NVLink" in note for note in notes("h200_container"))
    assert "PCIe 4 x8 of x16" in notes("l4")
    assert "clocks are held down by the power limit" in notes("l4")
    assert "ECC on" in notes("l4")
    assert "driver 580.159.03, CUDA up to 13.0" in notes("h200_x8")
    assert any("MIG slice" in note for note in notes("a100_mig"))
    assert any("Windows" in note for note in notes("rtx4090_wsl"))
    assert any("no NVML" in note for note in notes("jetson_orin"))


def test_unknown_facts_are_none_and_no_feature_is_claimed_for_them():
    record = copy.deepcopy(RECORDS["h200_x8"])
    refused = {"error": "NotSupported"}
    for gpu in record["nvml"]["devices"]:
        gpu |= {"memory_bytes": refused, "cuda_cores": refused, "name": refused, "nvlinks": [],
                "pcie_generation": refused, "ecc": refused}  # fmt: skip
    info = judge(record).devices[0]
    assert (info.memory_bytes, info.cores, info.cache_bytes, info.name) == (None, None, {}, "")
    assert "nvlink" not in info.features
    record["nvml"]["devices"][0]["memory_bytes"] = 0
    assert judge(record).devices[0].memory_bytes is None


def test_links_that_are_down_are_no_feature_and_a_fabric_that_waits_is_told():
    record = copy.deepcopy(RECORDS["h200_x8"])
    record["nvml"]["devices"][0] |= {"nvlinks": [0] * 18, "fabric": 2}
    info, other = judge(record).devices[:2]
    assert "nvlink" not in info.features
    assert "0 of 18 NVLinks up" in info.notes
    assert any("fabricmanager" in note for note in info.notes)
    assert "nvlink" in other.features


def torchs_count(monkeypatch, record, wanted):
    """What torch's own reading of the variable comes to; it, too, asks NVML alone."""
    names = [gpu["uuid"] for gpu in record["nvml"]["devices"]]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if wanted is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", wanted)
    monkeypatch.setattr("torch.cuda._raw_device_count_nvml", lambda: len(names))
    monkeypatch.setattr("torch.cuda._raw_device_uuid_nvml", lambda: names)
    return max(torch.cuda._device_count_nvml(), 0)


@pytest.mark.parametrize(
    ("wanted", "seen"),
    [
        (None, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("3,1", [3, 1]),
        (" 2 , 0x", [2, 0]),
        ("5gpu,+6", [5, 6]),
        ("0,9,1", [0]),
        ("4,-1,5", [4]),
        ("6,,5", [6]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("1,1", []),
        ("GPU-00000004,GPU-00000002", [3, 1]),
        ("GPU-00000004,2", [3]),
        ("GPU-00000004, GPU-00000002", [3]),
        ("GPU-00000004,GPU-00000004-0000", []),
        ("GPU-0000000", []),
        ("1,GPU-00000004", [1]),
        ("GPU-ffffffff", []),
        ("MIG-00000001", []),
        ("gpu-00000004", []),
    ],
)
def test_the_variable_of_visible_devices_decides_which_and_in_order(wanted, seen, monkeypatch):
    record = changed("h200_x8", CUDA_VISIBLE_DEVICES=wanted)
    for number, gpu in enumerate(record["nvml"]["devices"]):
        gpu["memory_bytes"] = (number + 1) * MIB
    finding = judge(record)
    assert [info.memory_bytes // MIB - 1 for info in finding.devices] == seen
    assert [info.index for info in finding.devices] == list(range(len(seen)))
    assert finding.obstacle is (None if seen else Obstacle.HIDDEN)
    assert len(seen) == torchs_count(monkeypatch, record, wanted)
    assert bool(seen) or repr(wanted) in finding.reason


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        (None, "NVIDIA A100-SXM4-40GB MIG 3g.20gb"),
        ("1,0", "NVIDIA A100-SXM4-40GB MIG 3g.20gb"),
        ("1", "NVIDIA A100-SXM4-40GB"),
        ("MIG-0000000c", "second"),
        ("MIG-0000000c,MIG-0000000b", "second"),
        ("MIG-GPU-{gpu}/2/0", "second"),
    ],
)
def test_a_slice_is_alone_and_chosen_by_its_uuid(wanted, name):
    gpu = uuids("a100_mig")[0].removeprefix("GPU-")
    record = changed("a100_mig", CUDA_VISIBLE_DEVICES=wanted and wanted.format(gpu=gpu))
    record["nvml"]["devices"][0]["mig_devices"][1]["name"] = "second"
    assert [info.name for info in judge(record).devices] == [name]


def test_a_divided_gpu_without_slices_is_not_counted():
    record = changed("a100_mig")
    record["nvml"]["devices"][0]["mig_devices"] = []
    assert [info.cores for info in judge(record).devices] == [108]
    record["environment"]["CUDA_VISIBLE_DEVICES"] = "0"
    assert judge(record).obstacle is Obstacle.MIG_EMPTY


def test_gpus_that_differ_need_an_order_unless_they_are_named():
    by_bus = judge(changed("mixed", CUDA_DEVICE_ORDER="PCI_BUS_ID"))
    assert [info.index for info in by_bus.devices] == [1]
    assert any("left out: cuda:0 (NVIDIA T400 4GB)" in note for note in by_bus.devices[0].notes)
    named = judge(changed("mixed", CUDA_VISIBLE_DEVICES=uuids("mixed")[1]))
    assert [info.index for info in named.devices] == [0]


def test_a_gpu_that_is_prohibited_or_closed_to_this_process_is_left_out():
    record = copy.deepcopy(RECORDS["h200_x8"])
    record["nvml"]["devices"][0]["compute_mode"] = 2
    record["nvml"]["devices"][1] = {"error": "NoPermission"}
    assert [info.index for info in judge(record).devices] == [1, 2, 3, 4, 5, 6]
    record["nvml"]["devices"] = record["nvml"]["devices"][:1]
    assert judge(record).obstacle is Obstacle.PROHIBITED


@pytest.mark.parametrize(
    ("built", "driver", "kind"),
    [
        ("13.0", 13000, None),
        ("12.8", 13000, None),
        ("12.8", 12020, None),
        ("13.0", 12090, Obstacle.DRIVER_TOO_OLD),
        ("13.0", {"error": "NotSupported"}, None),
        ("13", 13000, None),
    ],
)
def test_a_driver_serves_its_own_major_version_of_cuda_and_earlier_ones(built, driver, kind):
    record = copy.deepcopy(RECORDS["h200_container"])
    record["torch"]["cuda"], record["nvml"]["cuda_driver"] = built, driver
    finding = judge(record)
    assert finding.obstacle is kind
    older = any("newer than the driver" in n for info in finding.devices for n in info.notes)
    assert older is ((built, driver) == ("12.8", 12020))


def test_a_torch_without_code_for_the_gpu_is_named_with_what_it_has():
    record = copy.deepcopy(RECORDS["rtx5090"])
    record["torch"]["arch_flags"] = ["sm_80", "sm_90"]
    finding = judge(record)
    assert finding.obstacle is Obstacle.NOT_IN_TORCH
    assert "it has sm_80, sm_90): install a torch whose CUDA knows sm_120" in finding.reason
    record["torch"]["arch_flags"] = ["sm_80", "compute_90"]
    (info,) = judge(record).devices
    assert any("the driver compiles" in note for note in info.notes)


@pytest.mark.parametrize(
    ("capability", "flags", "how"),
    [
        ((9, 0), ["sm_90"], "binary"),
        ((8, 9), ["sm_80", "sm_90"], "binary"),
        ((8, 9), ["sm_90"], ""),
        ((9, 0), ["sm_90a"], "binary"),
        ((10, 3), ["sm_100a"], ""),
        ((10, 3), ["sm_100f"], "binary"),
        ((12, 0), ["sm_90", "compute_90"], "compiled"),
        ((12, 0), ["compute_90a"], ""),
        ((8, 7), ["sm_80"], ""),
        ((8, 9), ["sm_87"], ""),
        ((8, 7), ["sm_87"], "binary"),
        ((9, 0), ["nonsense", "sm_", ""], ""),
    ],
)
def test_which_code_runs_where(capability, flags, how):
    assert arch.runs(capability, flags) == how


def test_tensor_core_instructions_belong_to_their_generation():
    assert {"wgmma", "tma", "clusters", "fp8"} <= arch.features((9, 0))
    assert "wgmma" not in arch.features((10, 0)) | arch.features((12, 0)) | arch.features((8, 9))
    assert "tcgen05" in arch.features((10, 0)) - arch.features((12, 0))
    assert "fp8" not in arch.features((8, 6))


def test_products_are_not_mistaken_for_others_of_similar_name():
    assert arch.cache_bytes("NVIDIA H200") == {"l2": 60 * MIB}
    assert arch.cache_bytes("NVIDIA L4") != arch.cache_bytes("NVIDIA L40S")
    for name in ("NVIDIA GH200 480GB", "NVIDIA A10G", "NVIDIA GeForce RTX 4090 Laptop GPU", ""):
        assert arch.cache_bytes(name) == {}


def test_an_architecture_that_the_tables_do_not_know_keeps_its_unknown_facts_open():
    record = copy.deepcopy(RECORDS["h200_container"])
    record["nvml"]["devices"][0] |= {"capability": [14, 2], "name": "NVIDIA Later"}
    record["torch"]["arch_flags"] = ["compute_120"]
    (info,) = judge(record).devices
    assert info.arch == ("sm142", "sm90", "sm80")
    assert (info.cores, info.shared_bytes, info.cache_bytes) == (None, None, {})
