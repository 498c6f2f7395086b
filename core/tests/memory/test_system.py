from __future__ import annotations

import os

import pytest

from trivet.memory.system import host_info

KIB = 1024


@pytest.fixture
def machine(tmp_path):
    """Writes files of an imaginary machine with 1000 KiB, 600 of them free."""

    def write(files, meminfo="MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable:   600 kB\n"):
        for name, text in {"proc/meminfo": meminfo, **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return tmp_path

    return write


def numbers(info):
    return info.total_bytes, info.free_bytes, info.limit_bytes


def test_without_control_groups_the_machine_is_the_limit(machine):
    assert numbers(host_info(machine({}))) == (1000 * KIB, 600 * KIB, None)


def test_old_systems_say_free_instead_of_available(machine):
    root = machine({}, meminfo="MemTotal: 1000 kB\nMemFree: 300 kB\n")
    assert numbers(host_info(root)) == (1000 * KIB, 300 * KIB, None)


def test_the_lowest_group_on_the_way_up_counts_and_cache_is_given_back(machine):
    root = machine({
        "proc/self/cgroup": "0::/pod/box\n",
        "sys/fs/cgroup/pod/box/memory.max": "max\n",
        "sys/fs/cgroup/pod/box/memory.current": "1\n",
        "sys/fs/cgroup/pod/memory.max": f"{400 * KIB}\n",
        "sys/fs/cgroup/pod/memory.current": f"{300 * KIB}\n",
        "sys/fs/cgroup/pod/memory.stat": f"active_file 7\ninactive_file {50 * KIB}\n",
    })  # fmt: skip
    info = host_info(root)
    assert numbers(info) == (1000 * KIB, 150 * KIB, 400 * KIB)
    assert "control group" in info.source


def test_a_group_with_room_does_not_hide_a_full_machine(machine):
    root = machine({
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": f"{900 * KIB}\n",
        "sys/fs/cgroup/memory.current": "0\n",
    })  # fmt: skip
    assert numbers(host_info(root)) == (1000 * KIB, 600 * KIB, 900 * KIB)


def test_version_one_is_found_although_the_path_is_the_outer_one(machine):
    root = machine({
        "proc/self/cgroup": "5:cpu:/x\n4:hugetlb,memory:/docker/abc\n0::/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{500 * KIB}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{600 * KIB}\n",
    })  # fmt: skip
    assert numbers(host_info(root)) == (1000 * KIB, 0, 500 * KIB)


@pytest.mark.parametrize("limit", [9223372036854771712, 1001 * KIB])
def test_a_limit_above_the_machine_is_none(machine, limit):
    root = machine({
        "proc/self/cgroup": "4:memory:/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{limit}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "0\n",
    })  # fmt: skip
    assert numbers(host_info(root)) == (1000 * KIB, 600 * KIB, None)


def test_elsewhere_sysconf_answers(tmp_path, monkeypatch):
    values = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 100, "SC_AVPHYS_PAGES": 40}
    monkeypatch.setattr(os, "sysconf_names", values, raising=False)
    monkeypatch.setattr(os, "sysconf", values.__getitem__, raising=False)
    assert numbers(host_info(tmp_path)) == (409600, 163840, None)
    del values["SC_AVPHYS_PAGES"]
    assert numbers(host_info(tmp_path)) == (409600, None, None)


def test_a_system_that_says_nothing_is_unknown_not_zero(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sysconf_names", {}, raising=False)
    info = host_info(tmp_path)
    assert numbers(info) == (None, None, None)
    assert "unknown" in info.source


def test_this_machine_has_memory():
    info = host_info()
    assert info.total_bytes > 1 << 20
    assert 0 <= info.free_bytes <= info.total_bytes
