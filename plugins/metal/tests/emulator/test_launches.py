"""Launches follow torch's rules; what a launch did is counted."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
import torch

import trivet_metal_emulator as emulator

TEXT = """#include <metal_stdlib>
using namespace metal;
kernel void place(device int* out [[buffer(0)]], uint i [[thread_position_in_grid]],
                  uint lid [[thread_position_in_threadgroup]],
                  uint size [[threads_per_threadgroup]], uint g [[threadgroup_position_in_grid]],
                  uint lane [[thread_index_in_simdgroup]],
                  uint all [[threads_per_grid]], uint width [[threads_per_simdgroup]]) {
  device int* o = out + i * 7;
  o[0] = int(i); o[1] = int(lid); o[2] = int(size); o[3] = int(g); o[4] = int(lane);
  o[5] = int(all); o[6] = int(width);
}
kernel void place3(device int* out [[buffer(0)]], uint3 i [[thread_position_in_grid]],
                   uint3 size [[threads_per_grid]],
                   ushort2 group [[threadgroup_position_in_grid]]) {
  out[(i.z * size.y + i.y) * size.x + i.x] = int(i.x + 10 * i.y + 100 * i.z + 1000 * group.y);
}
kernel void numbers(constant long& a, constant float& b, constant long* c, constant float2& d,
                    constant int& e, constant half& f, device float* out, constant bool& g) {
  out[0] = float(a); out[1] = b; out[2] = float(c[1]); out[3] = d.y; out[4] = float(e);
  out[5] = float(f); out[6] = float(g);
}
kernel void copy(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                 uint i [[thread_position_in_grid]]) { y[i] = x[i] + 1; }
kernel void gather(constant ulong* list [[buffer(0)]], device float* y [[buffer(1)]],
                   uint i [[thread_position_in_grid]]) {
  y[i] = ((device const float*)list[i])[0];
}
[[kernel, max_total_threads_per_threadgroup(64)]] void small(device float* y [[buffer(0)]]) {
  y[0] = 1;
}
kernel void dynamic(device float* y [[buffer(0)]], threadgroup float* t [[threadgroup(0)]]) {
  y[0] = 1;
}
"""


@pytest.fixture(scope="module")
def library():
    return emulator.compile_shader(
        TEXT.replace("constant device const float* const*", "constant ulong*").replace(
            "list[i][0]", "((device const float*)list[i])[0]"
        ),
        name="launches.metal",
    )


def test_threads_are_all_threads_and_edge_groups_are_smaller(library):
    out = torch.full((70, 7), -1, dtype=torch.int32)
    library.place(out, threads=70, group_size=32)
    assert out[:, 0].tolist() == list(range(70))
    assert out[69].tolist() == [69, 5, 6, 2, 5, 70, 32]
    assert library.last.groups == 3


def test_three_dimensions(library):
    out = torch.full((2, 5, 3), -1, dtype=torch.int32)
    library.place3(out, threads=(3, 5, 2), group_size=(2, 2, 1))
    z, y, x = torch.meshgrid(torch.arange(2), torch.arange(5), torch.arange(3), indexing="ij")
    assert torch.equal(out, (x + 10 * y + 100 * z + 1000 * (y // 2)).int())


def test_the_first_tensor_gives_the_threads(library):
    x, y = torch.randn(5, 9), torch.zeros(5, 9)
    library.copy(x, y)
    assert torch.equal(y, x + 1)


def test_numbers_become_the_bytes_that_torch_makes(library):
    out = torch.zeros(7)
    library.numbers(
        1 << 40,
        0.5,
        [3, 4],
        [1.0, 2.5],
        7,
        1.5,
        out,
        True,
        threads=1,
        arg_casts={4: "int32", 5: "fp16"},
    )
    assert out.tolist() == [float(1 << 40), 0.5, 4.0, 2.5, 7.0, 1.5, 1.0]


def test_a_list_of_tensors_is_a_list_of_addresses(library):
    tensors, y = [torch.tensor([float(k)]) for k in range(4)], torch.zeros(4)
    library.gather(tensors, y, threads=4)
    assert y.tolist() == [0, 1, 2, 3]


def test_a_view_begins_at_its_offset_and_its_neighbours_are_outside(library):
    whole, y = torch.arange(12.0), torch.zeros(4)
    library.copy(whole[5:9], y)
    assert y.tolist() == [6, 7, 8, 9]
    with pytest.raises(
        emulator.KernelFault, match="out-of-bounds: read of 4 bytes in x at byte 16"
    ):
        library.copy(whole[5:9], torch.zeros(5), threads=5)


def test_arguments_that_share_a_storage_still_do(library):
    x = torch.arange(6.0)
    library.copy(x, x)
    assert x.tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((5,), {}, "Number of threads is undefined"),
        ((5,), {"threads": (1, 1, 1, 1)}, "wrong dimension"),
        ((5,), {"threads": (4, 4), "group_size": 4}, "same number of dimensions"),
        ((5,), {"threads": 4096, "group_size": 1025}, "Threadgroup size exceeds 1024 limit"),
        ((5,), {"threads": 0}, "positive"),
        ((5,), {"threads": 4, "arg_casts": "uint32"}, "Unsupported cast: uint32"),
        (("text",), {"threads": 4}, "is a str"),
        (([],), {"threads": 4}, "empty list"),
        ((1 << 70,), {"threads": 4}, "does not fit"),
        ((torch.zeros(3, dtype=torch.float64),), {}, "not supported on MPS"),
        ((torch.zeros(3, device="meta"),), {}, "on meta"),
        ((torch.zeros(3),), {}, r"reads y \(buffer 1\)"),
        (tuple(range(40)), {"threads": 1}, "31 buffers"),
        ((torch.zeros(3),) * 3, {}, "has 2 buffers, and 3"),
        ((torch.zeros(3), 2**70), {"arg_casts": "int32"}, "does not fit"),
    ],
)  # fmt: skip
def test_a_launch_that_cannot_be_is_refused(library, arguments, options, words):
    with pytest.raises(ValueError, match=words) as caught:
        library.copy(*arguments, **options)
    assert isinstance(caught.value, RuntimeError)  # torch raises one or the other


def test_a_kernel_may_ask_for_smaller_groups(library):
    assert library.small.max_threads_per_threadgroup == 64
    assert library.copy.max_threads_per_threadgroup == 1024
    assert library.copy.thread_execution_width == 32
    with pytest.raises(ValueError, match="exceeds 64 limit"):
        library.small(torch.zeros(1), threads=128, group_size=128)


def test_memory_that_only_a_host_can_size_is_refused(library):
    with pytest.raises(emulator.LaunchError, match=r"\[\[threadgroup\(0\)\]\]"):
        library.dynamic(torch.zeros(1))


def test_an_unknown_kernel_is_an_error_that_lists_the_others(library):
    with pytest.raises(AttributeError, match="copy, dynamic"):
        library.nothing  # noqa: B018 - the look-up is what is tested
    assert "copy" in dir(library)


def test_traffic_is_counted(library):
    x, y = torch.zeros(50), torch.zeros(50)
    library.copy(x, y, threads=50, group_size=32)
    stats = library.last
    assert (stats.buffer("x").bytes_read, stats.buffer("x").bytes_written) == (200, 0)
    assert (stats.buffer("y").bytes_read, stats.buffer("y").bytes_written) == (0, 200)
    assert (stats.bytes_read, stats.bytes_written, stats.bytes_covered) == (200, 200, 200)
    assert stats.as_dict()["groups"] == 2


DIVERGENT = """#include <metal_stdlib>
using namespace metal;
kernel void f(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  if (i % 2 == 0)
    x[i] = simd_sum(1.0f);
}
"""


def test_divergent_operations_are_counted_with_their_lines():
    library = emulator.compile_shader(DIVERGENT, name="divergent.metal")
    x = torch.zeros(64)
    library.f(x)
    assert x.tolist() == [16.0, 0.0] * 32
    assert library.last.divergent_simd_ops == 2
    assert library.last.divergent_lines == (("divergent.metal", 5),)


def test_fast_mode_gives_the_same_results():
    library = emulator.compile_shader(
        TEXT.replace("constant device const float* const*", "constant ulong*").replace(
            "list[i][0]", "((device const float*)list[i])[0]"
        ),
        name="launches.metal",
        check=False,
    )
    x, y = torch.randn(1000), torch.zeros(1000)
    library.copy(x, y)
    assert torch.equal(y, x + 1)
    out = torch.full((70, 7), -1, dtype=torch.int32)
    library.place(out, threads=70, group_size=32)
    assert out[69].tolist() == [69, 5, 6, 2, 5, 70, 32]
    tensors, z = [torch.tensor([float(k)]) for k in range(4)], torch.zeros(4)
    library.gather(tensors, z, threads=4)
    assert z.tolist() == [0, 1, 2, 3]


CONSTANTS = """#include <metal_stdlib>
using namespace metal;
constant bool negative [[function_constant(0)]];
constant int times [[function_constant(3)]];
constant bool given = is_function_constant_defined(times);
constant int factor = given ? times : 1;
kernel void f(device float* x [[buffer(0)]],
              device const float* y [[buffer(1), function_constant(negative)]],
              uint i [[thread_position_in_grid]]) {
  x[i] = negative ? -y[i] * factor : x[i] * factor;
}
"""


def test_function_constants_have_values_in_the_emulator_alone():
    x = torch.ones(3)
    emulator.compile_shader(CONSTANTS, name="constants.metal").f(x)
    assert x.tolist() == [1, 1, 1]
    library = emulator.compile_shader(
        CONSTANTS, name="constants.metal", constants={"negative": 1, 3: 5}
    )
    library.f(x, torch.full((3,), 2.0))
    assert x.tolist() == [-10, -10, -10]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"constants": {"negative": 1, "zzz": 1}}, "no function constant zzz"),
        ({"include": ["/no/such/folder"]}, "is no folder"),
        ({"language": -1}, "no version of Metal"),
        ({"cxx": "'unbalanced"}, "unbalanced"),
    ],
)
def test_an_option_that_means_nothing_is_refused(options, words):
    with pytest.raises(emulator.EmulatorError, match=words):
        emulator.compile_shader(CONSTANTS, name="constants.metal", **options)


def test_what_is_no_text_or_is_nowhere_defined_is_refused():
    with pytest.raises(emulator.LaunchError, match="NoneType"):
        emulator.compile_shader(None)
    text = CONSTANTS.replace("using", "float nowhere(float);\nusing").replace(
        "x[i] * f", "nowhere(x[i]) * f"
    )
    with pytest.raises(emulator.CompileError, match="nowhere"):
        emulator.compile_shader(text, name="constants.metal")


OVERRUN = """#include <metal_stdlib>
using namespace metal;
kernel void f(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  threadgroup_barrier(mem_flags::mem_none);  // each has a stack of its own, the last the highest
  if (i != 63) return;
  float a[75000];
  for (uint k = 0; k < 75000; k += 100) a[k] = k + i;
  x[i] = a[i * 100];
}
"""


def test_an_overrun_of_a_stack_changes_no_other_thread():
    code = (
        "import torch, trivet_metal_emulator as e\n"
        f"f = e.compile_shader({OVERRUN!r}, name='o.metal').f\n"
        "f(torch.zeros(64), threads=64, group_size=64)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == -signal.SIGSEGV, done.stderr


def test_the_version_of_the_language_decides():
    text = (
        "#if __METAL_VERSION__ >= 310\nkernel void f(device bfloat* x) { x[0] = bfloat(1); }\n"
        "#else\nkernel void f(device half* x) { x[0] = 1; }\n#endif\n"
    )
    x = torch.zeros(1, dtype=torch.float16)
    emulator.compile_shader(text, language=300).f(x)
    assert x.item() == 1
    with pytest.raises(emulator.LintError, match=r"bfloat is of Metal 3\.1"):
        emulator.compile_shader("kernel void f(device bfloat* x) {}", language=300)


def test_two_kernels_of_one_name_are_refused():
    text = "kernel void f(device int* x) {}\n"
    with pytest.raises(emulator.CompileError, match="two kernels are called f"):
        emulator.compile_shader(
            text + "template <class T> kernel void g(device T* x) {}\n"
            'template [[host_name("f")]] kernel void g<int>(device int*);\n'
        )


def test_families_and_their_names():
    assert (
        emulator.compile_shader(TEXT, family="apple9", name="l.metal", lint=False).family.name
        == "m3"
    )
    with pytest.raises(ValueError, match="'m99'"):
        emulator.compile_shader(TEXT, family="m99")
