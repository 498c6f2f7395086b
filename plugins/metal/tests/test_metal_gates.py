"""What no kernel may do ends a launch on the emulator, as an error that the kit counts."""

from __future__ import annotations

import pytest
import torch

from trivet.errors import PluginBroken
from trivet_metal.packages import Package

SOURCE = """#include <metal_stdlib>
using namespace metal;
kernel void whole(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                  uint i [[thread_position_in_grid]]) { y[i] = x[i]; }
kernel void less(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                 uint i [[thread_position_in_grid]]) { if (i != 3) y[i] = x[i]; }
kernel void twice(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                  uint i [[thread_position_in_grid]]) { y[i] = x[i]; y[i] = x[i] + y[i]; }
kernel void beyond(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                   uint i [[thread_position_in_grid]]) { y[i + 1] = x[i]; }
kernel void racing(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                   uint i [[thread_position_in_grid]]) { y[i / 2] = x[i]; }
kernel void divergent(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                      uint i [[thread_position_in_grid]]) {
  float sum = 0.0f;
  if (i < 8) sum = simd_sum(x[i]);
  threadgroup_barrier(mem_flags::mem_none);
  y[i] = sum;
}
"""


@pytest.fixture
def launched(emulator, tmp_path):
    (tmp_path / "gates.metal").write_text(SOURCE)
    x = torch.arange(32.0)

    def launch(name, *, way="out", divergent=False):
        args = ("x: in float*", f"y: {way} float*")
        package = Package("gates.metal", name, args, divergent=divergent, folder=tmp_path)
        y = torch.full((32,), torch.nan)
        package.at()(x, y, threads=(32,), group=(32,))
        return y

    return launch


def test_a_kernel_that_writes_its_result_passes(launched):
    assert torch.equal(launched("whole"), torch.arange(32.0))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("less", "wrote 124 bytes, its results have 128"),
        ("twice", "wrote 256 bytes"),
        ("beyond", "gates.metal:10"),
        ("racing", "gates.metal:12"),
        ("divergent", "SIMD operation"),
    ],
)
def test_what_no_kernel_may_do_is_an_error_with_its_place(launched, name, words):
    with pytest.raises(PluginBroken, match=words):
        launched(name)


def test_what_was_meant_is_declared(launched):
    assert launched("less", way="into").isnan().sum() == 1
    assert launched("divergent", divergent=True)[0] == 28


def test_a_kernel_that_does_not_compile_is_tried_once(emulator, tmp_path, monkeypatch):
    (tmp_path / "bad.metal").write_text("kernel void bad(device float* x) { x[0] = y; }\n")
    package = Package("bad.metal", "bad", ("x: out float*",), folder=tmp_path)
    for _ in range(2):
        with pytest.raises(PluginBroken, match=r"bad.metal does not compile"):
            package.at()(torch.zeros(1), threads=(1,), group=(1,))
        monkeypatch.setattr("trivet_metal.packages.text_of", None)  # it is not read again
