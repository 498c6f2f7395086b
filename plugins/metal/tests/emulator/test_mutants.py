"""Defects put into kernels, one by one: each must be found, most with file and line.

All mutants that run are kernels of one file, so that one compilation serves them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

import trivet_metal_emulator as emulator

FILE = "mutants.metal"
ROWS, COLUMNS, GROUP = 3, 100, 64
HEAD = """#include <metal_stdlib>
using namespace metal;
struct Block { float a[12]; int b; };
void use(Block b, device float* out) { for (int k = 0; k < 12; k++) out[0] = b.a[k] + float(b.b); }
constant float TABLE[4] = {1.0, 2.0, 3.0, 4.0};
"""
SIGNATURE = """kernel void NAME(
    device float* x [[buffer(0)]], device float* out [[buffer(1)]],
    constant int& n [[buffer(2)]], constant float4& four [[buffer(3)]],
    device atomic_int* counter [[buffer(4)]],
    uint row [[threadgroup_position_in_grid]], uint i [[thread_position_in_threadgroup]],
    uint size [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]], uint sgs [[simdgroups_per_threadgroup]]) {
"""
REDUCTION = """  threadgroup float part[32];
  float sum = 0.0f;
  for (uint k = i; k < uint(n); k += size) sum += x[row * uint(n) + k];
  sum = simd_sum(sum);
  if (lane == 0) part[sg] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float all = lane < sgs ? part[lane] : 0.0f;
  all = simd_sum(all);
  if (i == 0) out[row] = all;
}
"""
EXCHANGE = """  threadgroup float part[64];
  part[i] = x[i];
  simdgroup_barrier(mem_flags::mem_threadgroup);
  out[row * size + i] = part[i ^ 1];
}
"""
BARRIER = "  threadgroup_barrier(mem_flags::mem_threadgroup);\n"
SIMD_BARRIER = "  simdgroup_barrier(mem_flags::mem_threadgroup);\n"
FREE = "  BODY\n}\n"


@dataclass(frozen=True)
class Mutant:
    """A change of a body, and the finding that it must cause."""

    name: str
    kinds: str
    old: str
    new: str
    body: str = REDUCTION
    place: str = ""
    """A piece of the line at which the finding must be; the changed text by default."""
    launch: dict = field(default_factory=dict)
    numbers: dict = field(default_factory=dict)


def alone(name: str, kinds: str, statement: str, **more: dict) -> Mutant:
    """A statement that is wrong without anything around it."""
    return Mutant(name, kinds, "BODY", statement, FREE, **more)


SUM = "sum += x[row * uint(n) + k];"
STORE = "if (lane == 0) part[sg] = sum;"
LOAD = "lane < sgs ? part[lane] : 0.0f"
WRITE = "if (i == 0) out[row] = all;"
RUNNING = (
    Mutant("no_barrier", "uninitialised race", BARRIER, "", place=LOAD),
    Mutant("barrier_of_nothing", "race", "mem_threadgroup", "mem_none", place=LOAD),
    Mutant("barrier_of_device", "race", "mem_threadgroup", "mem_device", place=LOAD),
    Mutant("simd_barrier_only", "uninitialised race", BARRIER, SIMD_BARRIER, place=LOAD),
    Mutant("half_at_barrier", "barrier", BARRIER, "  if (sg == 0)" + BARRIER, place="if (sg == 0)"),
    Mutant("early_return", "barrier", STORE, STORE + " if (i > 60) return;", place=BARRIER.strip()),
    Mutant(
        "two_barriers",
        "barrier",
        BARRIER,
        "  if (sg == 0) threadgroup_barrier(mem_flags::mem_threadgroup);\n"
        "  else threadgroup_barrier(mem_flags::mem_threadgroup);\n",
        place="if (sg == 0) threadgroup_barrier",
    ),
    Mutant("off_by_one", "out-of-bounds", "k < uint(n)", "k <= uint(n)"),
    Mutant("negative_index", "out-of-bounds", SUM, "sum += x[int(k) - 1];"),
    Mutant("write_past_the_end", "out-of-bounds", WRITE, "if (i == 0) out[row + 9999] = all;"),
    Mutant("far_away", "out-of-bounds", SUM, "sum += x[ulong(k) << 40];"),
    Mutant("small_array", "array-index", "part[32]", "part[1]", place=STORE),
    Mutant(
        "threadgroup_pointer",
        "out-of-bounds",
        STORE,
        "threadgroup float* p = part; if (lane == 0) p[sg + 40] = sum;",
    ),
    Mutant(
        "one_writes_nothing",
        "uninitialised",
        "if (lane == 0)",
        "if (lane == 0 && sg > 0)",
        place=LOAD,
    ),
    Mutant("nobody_writes", "uninitialised", STORE, "", place=LOAD),
    Mutant("reads_all_slots", "uninitialised", LOAD, "part[lane]"),
    Mutant("adds_to_nothing", "uninitialised", STORE, "if (lane == 0) part[sg] += sum;"),
    Mutant(
        "misaligned_read",
        "misaligned",
        SUM,
        "sum += (*(device const float4*)(x + 1 + 4 * k)).x;",
        numbers={2: 8},
    ),
    Mutant(
        "misaligned_write", "misaligned", WRITE, "*(device float2*)(out + 1) = float2(all, all);"
    ),
    Mutant("groups_write_one", "race", WRITE, "if (i == 0) out[0] = all;"),
    Mutant(
        "group_reads_another", "race", WRITE, "if (i == 0) out[row] = row > 0 ? out[row - 1] : all;"
    ),
    Mutant("threads_write_one", "race", WRITE, "out[row] = all;"),
    Mutant(
        "second_use_too_early",
        "race",
        WRITE,
        "if (lane == 0) part[sg] = all;",
        place="if (lane == 0) part[sg] = all;",
    ),
    Mutant(
        "device_exchange",
        "race",
        WRITE,
        "out[row * size + i] = sum; threadgroup_barrier(mem_flags::mem_threadgroup); "
        "x[row * size + i] = out[row * size + (i + 32) % size];",
    ),
    Mutant(
        "atomic_and_plain",
        "race",
        WRITE,
        "atomic_fetch_add_explicit(counter, 1, memory_order_relaxed); *((device int*)counter) = 1;",
    ),
    Mutant("no_simd_barrier", "race uninitialised", SIMD_BARRIER, "", EXCHANGE, "part[i ^ 1]"),
    Mutant(
        "simd_barrier_of_nothing",
        "race uninitialised",
        "mem_threadgroup",
        "mem_none",
        EXCHANGE,
        "part[i ^ 1]",
    ),
    Mutant("beyond_the_simdgroup", "race uninitialised", "part[i ^ 1]", "part[i ^ 32]", EXCHANGE),
    Mutant(
        "half_at_simd_barrier",
        "simdgroup-barrier",
        SIMD_BARRIER,
        "  if (lane < 7)" + SIMD_BARRIER,
        EXCHANGE,
        "if (lane < 7)",
    ),
    alone("inactive_lane", "inactive-lane", "if (lane < 8) out[i] = simd_shuffle(x[i], 9);"),
    alone(
        "matrix_outside",
        "out-of-bounds",
        "simdgroup_float8x8 m; simdgroup_load(m, x + 296); simdgroup_store(m, out);",
    ),
    alone("packed_outside", "out-of-bounds", "out[i] = float3(((device packed_float3*)x)[n]).y;"),
    alone("vector_outside", "out-of-bounds", "out[i] = ((device float4*)x)[75].z;"),
    alone(
        "struct_outside", "out-of-bounds", "Block b = ((device Block*)x)[n / 4]; use(b, out + i);"
    ),
    alone(
        "atomic_outside",
        "out-of-bounds",
        "atomic_store_explicit(counter + 1, 1, memory_order_relaxed);",
    ),
    alone(
        "atomic_misaligned",
        "misaligned",
        "auto p = (device atomic_int*)((device char*)counter + 2); "
        "atomic_fetch_add_explicit(p, 1, memory_order_relaxed);",
    ),
    alone(
        "vector_that_nobody_wrote",
        "uninitialised",
        "threadgroup float4 t[64]; out[i] = t[i].w;",
    ),
    alone("constant_outside", "out-of-bounds", "out[i] = (&four)[1].x;"),
    alone("endless_barriers", "endless", "for (;;) threadgroup_barrier(mem_flags::mem_none);"),
    alone("endless_exchange", "endless", "for (uint k = 1; simd_sum(k) > 0; k = 1) {}"),
    alone("no_such_lane", "inactive-lane", "out[i] = simd_shuffle(x[i], 40);"),
    alone("inactive_broadcast", "inactive-lane", "if (lane > 0) out[i] = simd_broadcast(x[i], 0);"),
    alone(
        "inactive_neighbour", "inactive-lane", "if (lane != 4) out[i] = quad_shuffle_xor(x[i], 1);"
    ),
    alone(
        "divergent_matrix",
        "inactive-lane",
        "simdgroup_float8x8 m; if (lane < 30) { simdgroup_load(m, x); simdgroup_store(m, out); }",
    ),
    alone(
        "small_constant", "out-of-bounds", "out[i + row * size] = four.w;", numbers={3: [1.0, 2.0]}
    ),
    alone("table", "array-index", "out[i + row * size] = TABLE[i];"),
    alone(
        "private_array",
        "array-index",
        "float own[8]; for (int k = 0; k <= n; k++) own[k] = x[k]; out[i] = own[3];",
    ),
    alone("division", "division", "out[i + row * size] = float(int(i) / (n - 100));"),
    alone("remainder", "division", "out[i + row * size] = float(i % uint(n - 100));"),
    alone(
        "much_threadgroup_memory",
        "threadgroup-memory",
        "threadgroup float tile[10000]; tile[i] = x[i]; out[i + row * size] = tile[i];",
    ),
    Mutant(
        "endless",
        "endless",
        "BODY",
        "while (atomic_load_explicit(counter, memory_order_relaxed) == 0) {}",
        FREE,
        launch={"threads": 1, "group_size": 1},
    ),
)


def _text(mutant: Mutant) -> str:
    body = mutant.body.replace(mutant.old, mutant.new, 1)
    assert body != mutant.body, mutant.name
    return SIGNATURE.replace("NAME", mutant.name) + body


ELEMENTS = """  threadgroup float3 part[64];
  part[i].x = 1; part[i].z = x[i]; part[i].y = float(i);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float3 v = part[i ^ 1];
  out[row * size + i] = v.x + v.y + v.z;
}
"""
CLEAN = {"reduction": REDUCTION, "exchange": EXCHANGE, "elements": ELEMENTS}
PROGRAM = "".join(
    [
        HEAD,
        *(SIGNATURE.replace("NAME", name) + body for name, body in CLEAN.items()),
        *map(_text, RUNNING),
    ]
)


@pytest.fixture(scope="module")
def library():
    return emulator.compile_shader(PROGRAM, name=FILE, max_accesses=100_000)


def _launch(library, name, numbers=None, **launch):
    x = torch.rand(4 * ROWS * COLUMNS)
    out = torch.full((1024,), float("nan"))
    counter = torch.zeros(1, dtype=torch.int32)
    values = [x, out, COLUMNS, [1.0, 2.0, 3.0, 4.0], counter]
    for index, value in (numbers or {}).items():
        values[index] = value
    # exactly the bytes that a row sum needs, so that one more is outside
    values[0] = x[: ROWS * COLUMNS]
    launch = {"threads": ROWS * GROUP, "group_size": GROUP, **launch}
    getattr(library, name)(*values, arg_casts={2: "int32"}, **launch)
    return values[0], out


def _line(mutant: Mutant) -> tuple[int, int]:
    lines = PROGRAM.splitlines()
    start = next(k for k, line in enumerate(lines) if f"void {mutant.name}(" in line)
    place = mutant.place or mutant.new
    for k in range(start, len(lines)):
        if place.strip() in lines[k]:
            return k + 1, k + 2  # a statement may begin on one line and end on the next
    raise AssertionError(mutant.name)


@pytest.mark.parametrize("mutant", RUNNING, ids=lambda mutant: mutant.name)
def test_a_defect_is_found_with_its_line(library, mutant):
    library.seed = 0
    with pytest.raises(emulator.KernelFault) as caught:
        _launch(library, mutant.name, mutant.numbers, **mutant.launch)
    found = caught.value.findings
    kinds = mutant.kinds.split()
    of_kind = [one for one in found if one.kind in kinds]
    assert of_kind, str(caught.value)
    places = {(one.file, one.line) for one in of_kind}  # a race is told from both sides
    assert places & {(FILE, line) for line in _line(mutant)}, str(caught.value)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_sound_kernels_cause_no_finding(library, seed):
    library.seed = seed
    x, out = _launch(library, "reduction")
    torch.testing.assert_close(out[:ROWS], x.view(ROWS, COLUMNS).sum(1))
    assert library.last.divergent_simd_ops == 0
    assert library.last.bytes_covered == ROWS * 4
    x, out = _launch(library, "elements")
    wanted = (1 + x[:GROUP] + torch.arange(GROUP)).view(-1, 2).flip(1).flatten()
    torch.testing.assert_close(out[:GROUP], wanted)
    x, out = _launch(library, "exchange")
    torch.testing.assert_close(out[:GROUP], x[:GROUP].view(-1, 2).flip(1).flatten())


SIMPLE = """#include <metal_stdlib>
using namespace metal;
kernel void simple(device float* x [[buffer(0)]], constant float& y [[buffer(1)]],
                   device bfloat* b [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  threadgroup float t[32];
  BODY
}
"""
REFUSED = {
    "double": ("double", "double d = 1; x[i] = d;"),
    "no_memory_named": ("address-space", "float* p = x; p[i] = 1;"),
    "device_from_threadgroup": ("address-space", "t[0] = 1; device float* p = t; p[i] = 1;"),
    "thread_from_device": ("address-space", "thread float* p = x; p[i] = 1;"),
    "goto": ("banned", "goto end; end: x[i] = 1;"),
    "new": ("banned", "thread float* p = new float; x[i] = *p;"),
    "exception": ("banned", "try { x[i] = 1; } catch (...) {}"),
    "standard_library": ("banned", "x[i] = std::max(1.0f, 2.0f);"),
    "initial_value": ("banned", "threadgroup float s = 0; x[i] = s;"),
    "asm": ("banned", 'asm("nop");'),
    "bfloat_from_float": ("bfloat", "b[i] = x[i];"),
    "bfloat_from_function": ("bfloat", "b[i] = exp(b[i]);"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_compiler_of_apple_refuses_is_refused_with_its_line(name):
    kind, body = REFUSED[name]
    with pytest.raises(emulator.LintError) as caught:
        emulator.compile_shader(SIMPLE.replace("BODY", body), name="simple.metal")
    places = {(one.kind, one.file, one.line) for one in caught.value.findings}
    assert (kind, "simple.metal", 6) in places, str(caught.value)


def test_a_parameter_without_memory_is_refused():
    text = SIMPLE.replace("BODY", "").replace("device float* x", "float* x")
    with pytest.raises(emulator.LintError, match="x points to no named memory"):
        emulator.compile_shader(text, name="simple.metal")


def test_recursion_is_refused():
    text = "int f(int n) { return n ? f(n - 1) : 0; }\n" + SIMPLE.replace("BODY", "x[i] = f(3);")
    with pytest.raises(emulator.LintError, match=r"simple.metal:1: banned"):
        emulator.compile_shader(text, name="simple.metal")


@pytest.mark.parametrize(
    ("body", "words"),
    [("y = 1;", "const"), ("x[i] = unknown;", "unknown"), ("x[i] = 1", "expected ';'")],
)
def test_what_is_no_metal_is_an_error_with_its_line(body, words):
    with pytest.raises(emulator.CompileError, match=words) as caught:
        emulator.compile_shader(SIMPLE.replace("BODY", body), name="simple.metal", lint=False)
    assert caught.value.findings[0].file == "simple.metal"
    assert caught.value.findings[0].line in {6, 7}


def test_newer_language_is_a_warning():
    library = emulator.compile_shader(
        SIMPLE.replace("BODY", "if constexpr (sizeof(int) == 4) x[i] = 1;"), name="simple.metal"
    )
    assert [(one.kind, one.line) for one in library.warnings] == [("newer-language", 6)]


def test_a_group_that_is_too_large_is_refused(library):
    with pytest.raises(ValueError, match="Threadgroup size exceeds 1024 limit"):
        _launch(library, "reduction", threads=4096, group_size=2048)


def test_there_are_enough_mutants():
    assert len(RUNNING) + len(REFUSED) >= 50
