"""What is written down of a machine: sysfs, device files, amdsmi, rocminfo, torch's library."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import pytest
import torch

from trivet_rocm.discovery import judge, this_machine
from trivet_rocm.discovery.host import host_facts, kfd_facts
from trivet_rocm.discovery.record import (
    agents,
    amdsmi_facts,
    arch_flags,
    gather,
    rocminfo_facts,
)

GPU = {
    "cpu_cores_count": 0, "simd_count": 1216, "simd_per_cu": 4, "lds_size_in_kb": 64,
    "wave_front_size": 64, "gfx_target_version": 90402, "vendor_id": 4098, "device_id": 29857,
    "location_id": 1280, "domain": 0, "drm_render_minor": 128, "num_xcc": 8, "unique_id": 99,
    "local_mem_size": 0, "hive_id": 7, "capability": 1,
}  # fmt: skip
ROCMINFO = """ROCk module is loaded
==========
HSA Agents
==========
*******
Agent 1
*******
  Name:                    Some CPU
  Marketing Name:          Some CPU
  Device Type:             CPU
  Compute Unit:            16
*******
Agent 2
*******
  Name:                    gfx1100
  Marketing Name:          AMD Radeon RX 7900 XTX
  Device Type:             GPU
  Compute Unit:            96
  Pool Info:
    Pool 1
      Segment:                 GLOBAL; FLAGS: COARSE GRAINED
      Size:                    25149440(0x17fc000) KB
*** Done ***
"""


def properties(folder, values):
    folder.mkdir(parents=True)
    text = "".join(f"{name} {value}\n" for name, value in values.items())
    (folder / "properties").write_text(text)


@pytest.fixture
def nodes(tmp_path):
    """A processor, a GPU, and a GPU that a container's rules hide."""
    properties(tmp_path / "0", {"cpu_cores_count": 64, "simd_count": 0})
    properties(tmp_path / "10", GPU)
    properties(tmp_path / "10/mem_banks/0", {"heap_type": 1, "size_in_bytes": 200 << 30})
    properties(tmp_path / "10/mem_banks/1", {"heap_type": 0, "size_in_bytes": 5})
    properties(
        tmp_path / "10/io_links/0", {"type": 11, "node_to": 2, "weight": 15, "max_bandwidth": 64000}
    )
    properties(tmp_path / "10/caches/0", {"level": 1, "size": 32})
    properties(tmp_path / "10/caches/1", {"level": 2, "size": 4096})
    (tmp_path / "2").mkdir()
    (tmp_path / "2/properties").write_text("")
    (tmp_path / "generation_id").write_text("1\n")
    return tmp_path


def test_the_drivers_list_is_read_in_its_order_without_processors(nodes):
    found = kfd_facts(nodes)
    assert found["start"] is None
    hidden, gpu = found["nodes"]
    assert hidden == {"node": 2, "error": "Empty"}
    assert (gpu["node"], gpu["memory_bytes"], gpu["gfx_target_version"]) == (10, 200 << 30, 90402)
    assert gpu["links"] == [{"type": 11, "node_to": 2, "weight": 15, "max_bandwidth": 64000}]
    assert gpu["caches"] == {"l2": 4 << 20}
    assert "capability" not in gpu
    json.dumps(found)


def test_without_the_list_the_error_is_kept(tmp_path):
    assert kfd_facts(tmp_path / "no") == {"start": {"error": "FileNotFoundError"}, "nodes": []}


def test_device_files_say_whether_this_user_may_open_them(tmp_path, monkeypatch):
    (tmp_path / "dri").mkdir()
    for name in ("kfd", "dri/renderD128", "dri/card0"):
        (tmp_path / name).write_text("")
    monkeypatch.setattr(os, "access", lambda path, mode: path.name == "kfd")
    found = host_facts(tmp_path, tmp_path / "module")
    assert found["device_files"] == {
        str(tmp_path / "kfd"): True, str(tmp_path / "dri/renderD128"): False,
    }  # fmt: skip
    assert found["module"] is False


class Smi:
    """A stand-in for the module ``amdsmi``, after its documentation."""

    class AmdSmiLibraryException(Exception):
        err_code = 2

    def __init__(self):
        self.open = 0

    def amdsmi_init(self):
        self.open += 1

    def amdsmi_shut_down(self):
        self.open -= 1

    def amdsmi_get_processor_handles(self):
        return [SimpleNamespace(), SimpleNamespace()]

    def amdsmi_get_gpu_driver_info(self, handle):
        return {"driver_name": "amdgpu", "driver_version": "6.16.6"}

    def amdsmi_get_gpu_asic_info(self, handle):
        return {"market_name": "AMD Instinct MI300X", "target_graphics_version": "gfx942",
                "num_compute_units": 304}  # fmt: skip

    def amdsmi_get_gpu_device_bdf(self, handle):
        return "0000:05:00.0"

    def amdsmi_get_gpu_compute_partition(self, handle):
        return "SPX"

    def amdsmi_get_gpu_memory_partition(self, handle):
        raise Smi.AmdSmiLibraryException("not supported")


def test_amdsmi_is_started_and_shut_down_and_refusals_are_kept():
    smi = Smi()
    found = amdsmi_facts(lambda: smi)
    assert smi.open == 0
    assert (found["start"], found["driver"], len(found["devices"])) == (None, "6.16.6", 2)
    one = found["devices"][0]
    assert (one["name"], one["arch"], one["units"]) == ("AMD Instinct MI300X", "gfx942", 304)
    assert one["memory_partition"] == {"error": "AmdSmiLibraryException 2"}
    assert one["partition"] == {"error": "NoSuchFunction"}
    json.dumps(found)


@pytest.mark.parametrize("error", [ImportError("none"), OSError("libamd_smi.so"), KeyError("x")])
def test_an_amdsmi_that_cannot_be_imported_is_an_answer(error):
    def missing():
        raise error

    assert amdsmi_facts(missing) == {"start": {"error": type(error).__name__}, "devices": []}


def test_an_amdsmi_that_does_not_start_or_answers_nonsense_never_raises():
    smi = Smi()
    smi.amdsmi_init = lambda: 1 / 0
    assert amdsmi_facts(lambda: smi)["start"] == {"error": "ZeroDivisionError"}
    smi = Smi()
    smi.amdsmi_get_gpu_asic_info = lambda handle: object()
    smi.amdsmi_get_gpu_device_bdf = lambda handle: object()
    one = amdsmi_facts(lambda: smi)["devices"][0]
    assert (one["name"], one["bus"]) == (None, {"error": "Damaged"})
    smi.amdsmi_get_processor_handles = lambda: None
    assert amdsmi_facts(lambda: smi)["devices"] == []


def test_the_agents_of_rocminfo_are_its_gpus():
    [one] = agents(ROCMINFO)
    assert one == {"arch": "gfx1100", "name": "AMD Radeon RX 7900 XTX", "units": 96,
                   "memory_bytes": 25149440 << 10}  # fmt: skip
    assert agents("nothing of that kind") == []
    assert rocminfo_facts(("/no/such/command",))["start"] == {"error": "NotFound"}


def test_the_architectures_of_torch_are_read_from_its_library(tmp_path):
    library = tmp_path / "library.so"
    library.write_bytes(b"\0gfx_not\0\0gfx90a;gfx942 gfx1100\0tail")
    assert arch_flags(library) == ["gfx90a", "gfx942", "gfx1100"]
    assert arch_flags(tmp_path / "no.so") == []


def test_this_machine_is_asked_without_starting_anything():
    record = gather({"HIP_VISIBLE_DEVICES": "0"})
    json.dumps(record)
    assert record["environment"]["HIP_VISIBLE_DEVICES"] == "0"
    assert bool(judge(record).reason) is not bool(judge(record).devices)
    assert bool(this_machine().reason) is not bool(this_machine().devices)
    assert not torch.cuda.is_initialized()
