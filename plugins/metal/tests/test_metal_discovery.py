from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest

from trivet_metal.discovery import Obstacle, judge, record
from trivet_metal.families import architectures, family_of

DATA = Path(__file__).parent / "data"
GiB = 1 << 30

FOUND = {  # file -> (name, most specific architecture, memory, words of a note)
    "m1_macos13": ("Apple M1", "apple7", 8, "no bfloat16: macOS 13.6.9, it needs 14"),
    "m1_macos14": ("Apple M1", "apple7", 16, "one memory"),
    "m3_macos15": ("Apple M3", "apple9", 24, "PYTORCH_ENABLE_MPS_FALLBACK=1"),
    "m4_max_macos26": ("Apple M4 Max", "apple9", 128, "iogpu.wired_limit_mb is 122880"),
    "m9_macos30": ("Apple M9 Ultra", "apple10", 512, "one memory"),
    "virtual_chip": ("Apple processor", "apple7", 7, "not in the table of chips"),
}
ABSENT = {
    "macos12": (Obstacle.MACOS_TOO_OLD, "macOS 12.6 is too old"),
    "intel_mac": (Obstacle.NOT_APPLE_SILICON, "Intel processor"),
    "translated": (Obstacle.TRANSLATED, "install one for arm64"),
    "no_mps_build": (Obstacle.NO_MPS_BUILD, "torch 2.11.0 was built without MPS"),
    "old_torch": (Obstacle.NO_COMPILE_SHADER, "torch 2.4.0 has no torch.mps.compile_shader"),
    "no_gpu": (Obstacle.NO_GPU, "virtual machines"),
    "linux": (Obstacle.NOT_MACOS, "this is Linux"),
    "windows": (Obstacle.NOT_MACOS, "this is Windows"),
}


def answers(name):
    return json.loads((DATA / f"{name}.json").read_text())


def test_every_record_is_judged_here():
    assert {f.stem for f in DATA.glob("*.json")} == {*FOUND, *ABSENT}


@pytest.mark.parametrize("name", FOUND)
def test_a_mac_is_described(name):
    found = judge(answers(name))
    chip, arch, memory, words = FOUND[name]
    info = found.device
    assert (found.obstacle, found.reason) == (None, "")
    assert (info.kind, info.torch_type, info.name) == ("metal", "mps", chip)
    assert info.arch[0] == arch
    assert info.arch[-1] == "apple7"
    assert info.memory_bytes == memory * GiB
    assert any(words in note for note in info.notes), info.notes
    assert ("bfloat16" in info.dtypes) is (name != "m1_macos13")
    assert (info.subgroup_width, info.shared_bytes) == (32, 32768)


@pytest.mark.parametrize("name", ABSENT)
def test_a_machine_without_a_usable_gpu_says_why(name):
    obstacle, words = ABSENT[name]
    found = judge(answers(name))
    assert found.device is None
    assert found.obstacle is obstacle
    assert words in found.reason


@pytest.mark.parametrize("damaged", [None, [], {}, {"system": 3}, {"system": "Darwin"}])
def test_a_damaged_record_is_a_reason(damaged):
    assert judge(damaged).device is None
    assert judge(damaged).reason


@pytest.mark.parametrize("lost", ["macos", "sysctl", "environment"])
def test_unknown_facts_are_none_or_careful(lost):
    record = answers("m3_macos15")
    del record[lost]
    info = judge(record).device
    assert info.memory_bytes == (None if lost == "sysctl" else 24 * GiB)
    assert ("bfloat16" in info.dtypes) is (lost != "macos")


def test_what_is_gathered_here_is_plain_and_judged():
    found = record.gather({})
    assert json.loads(json.dumps(found)) == found
    assert (judge(found).device is None) or platform.system() == "Darwin"


def test_chips_belong_to_families():
    chips = ("Apple M1 Pro", "m2", "Apple M3", "Apple M4 Max", "M5", "Apple M77", "Apple A17")
    assert [family_of(c) for c in chips] == [7, 8, 9, 9, 10, 10, None]
    assert architectures(9) == ("apple9", "apple8", "apple7")
