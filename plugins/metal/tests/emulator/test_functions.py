"""What metal_stdlib gives is what torch computes; vectors and casts mean what Metal means."""

from __future__ import annotations

import math

import pytest
import torch

import trivet_metal_emulator as emulator

UNARY = {
    "exp": torch.exp, "exp2": torch.exp2, "exp10": lambda x: 10**x, "log": torch.log,
    "log2": torch.log2, "log10": torch.log10, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt,
    "sin": torch.sin, "cos": torch.cos, "tan": torch.tan, "asin": torch.asin, "acos": torch.acos,
    "atan": torch.atan, "sinh": torch.sinh, "cosh": torch.cosh, "tanh": torch.tanh,
    "asinh": torch.asinh, "atanh": torch.atanh, "sinpi": lambda x: torch.sin(math.pi * x),
    "cospi": lambda x: torch.cos(math.pi * x), "ceil": torch.ceil, "floor": torch.floor,
    "trunc": torch.trunc, "round": torch.round, "rint": torch.round, "fabs": torch.abs,
    "abs": torch.abs, "sign": torch.sign, "fract": torch.frac,
    "saturate": lambda x: x.clamp(0, 1), "precise::exp": torch.exp, "fast::exp": torch.exp,
    "precise::rsqrt": torch.rsqrt, "fast::log": torch.log, "metal::precise::tanh": torch.tanh,
}  # fmt: skip
BINARY = {
    "pow": torch.pow, "powr": torch.pow, "atan2": torch.atan2, "fmod": torch.fmod,
    "copysign": torch.copysign, "max": torch.maximum, "min": torch.minimum, "fmax": torch.fmax,
    "fmin": torch.fmin, "step": lambda a, x: (x >= a).to(x.dtype),
    "fdim": lambda a, b: (a - b).clamp(min=0), "fast::max": torch.maximum,
}  # fmt: skip
HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"


def _name(function: str) -> str:
    return function.replace("::", "_")


def _math_text() -> str:
    text = HEAD
    for f in UNARY:
        text += (
            f"template <typename T> kernel void u_{_name(f)}(device const T* x [[buffer(0)]], "
            "device T* out [[buffer(1)]], uint i [[thread_position_in_grid]]) "
            f"{{ out[i] = {f}(x[i]); }}\n"
        )
        for kind in ("float", "half"):
            text += (
                f'template [[host_name("u_{_name(f)}_{kind}")]] kernel void u_{_name(f)}<{kind}>('
                f"device const {kind}*, device {kind}*, uint);\n"
            )
    for f in BINARY:
        text += (
            f"kernel void b_{_name(f)}(device const float* x [[buffer(0)]], device const float* y "
            "[[buffer(1)]], device float* out [[buffer(2)]], uint i [[thread_position_in_grid]]) "
            f"{{ out[i] = {f}(x[i], y[i]); }}\n"
        )
    return text


@pytest.fixture(scope="module")
def maths():
    return emulator.compile_shader(_math_text(), name="maths.metal")


@pytest.mark.parametrize("name", UNARY)
def test_a_function_of_one_number(maths, name):
    for kind, dtype in (("float", torch.float32), ("half", torch.float16)):
        x = torch.linspace(0.05, 0.95, 33).to(dtype)
        if name in {"sign", "abs", "fabs", "saturate", "round", "rint", "ceil", "floor", "trunc"}:
            x = (x * 8 - 4).to(dtype)
        out = torch.full_like(x, float("nan"))
        getattr(maths, f"u_{_name(name)}_{kind}")(x, out)
        # in half the result is the float's, rounded once
        torch.testing.assert_close(
            out, UNARY[name](x.float()).to(dtype), rtol=2e-3 if kind == "half" else 2e-6, atol=2e-6
        )


@pytest.mark.parametrize("name", BINARY)
def test_a_function_of_two_numbers(maths, name):
    x, y = torch.linspace(0.1, 3, 40), torch.linspace(2, 0.3, 40)
    out = torch.full_like(x, float("nan"))
    getattr(maths, f"b_{_name(name)}")(x, y, out)
    torch.testing.assert_close(out, BINARY[name](x, y), rtol=2e-6, atol=2e-6)


# an expression of Metal, and the numbers that it gives
EXPRESSIONS = {
    "float4(1, 2, 3, 4)": [1, 2, 3, 4],
    "float4(float2(1, 2), 3, 4)": [1, 2, 3, 4],
    "float4(1.0, float3(2, 3, 4))": [1, 2, 3, 4],
    "float4(7)": [7, 7, 7, 7],
    "float4(half4(1.5h, 2, 3, 4))": [1.5, 2, 3, 4],
    "float4(int4(1, -2, 3, 4))": [1, -2, 3, 4],
    "float4(bfloat4(bfloat(1), bfloat(2), bfloat(3), bfloat(4)))": [1, 2, 3, 4],
    "(float4)int4(float4(1.9f, -1.9f, 2.5f, 0.1f))": [1, -1, 2, 0],
    "-(float4)half4(1, 2, 3, 4)": [-1, -2, -3, -4],
    "static_cast<float4>(short4(1, 2, 3, 4))": [1, 2, 3, 4],
    "vec<float, 4>(vec<half, 4>(1, 2, 3, 4))": [1, 2, 3, 4],
    "metal::vec<float, 4>(5)": [5, 5, 5, 5],
    "float4(1, 2, 3, 4).wzyx": [4, 3, 2, 1],
    "float4(float4(1, 2, 3, 4).xy, float4(5, 6, 7, 8).zw)": [1, 2, 7, 8],
    "float4(1, 2, 3, 4) * 2.0 + 1": [3, 5, 7, 9],
    "max(float4(1, 5, 3, 0), float4(2))": [2, 5, 3, 2],
    "clamp(float4(-1, 0.5, 2, 1), 0.0, 1.0)": [0, 0.5, 1, 1],
    "select(float4(1), float4(2), float4(0, 1, 2, 3) > float4(1.5))": [1, 1, 2, 2],
    "mix(float4(0), float4(10), 0.25f)": [2.5, 2.5, 2.5, 2.5],
    "float4(dot(float3(1, 2, 3), float3(4, 5, 6)), length(float2(3, 4)), 0, 0)": [32, 5, 0, 0],
    "float4(cross(float3(1, 0, 0), float3(0, 1, 0)), 1)": [0, 0, 1, 1],
    "float4(normalize(float2(3, 4)), 0, 0)": [0.6, 0.8, 0, 0],
    "exp(float4(0))": [1, 1, 1, 1],
    "fma(float4(2), float4(3), float4(1))": [7, 7, 7, 7],
    "as_type<float>(as_type<uint>(2.5f)) * float4(1)": [2.5, 2.5, 2.5, 2.5],
    "float4(as_type<half2>(0x40003c00u), 0, 0)": [1, 2, 0, 0],
    "float4(popcount(255u), clz(1u), ctz(8u), reverse_bits(1u) >> 31)": [8, 31, 3, 1],
    "float4(rotate(1u, 4u), mulhi(1u << 31, 4u), extract_bits(240u, 4, 4), 0)": [16, 2, 15, 0],
    "float4(insert_bits(0u, 7u, 1, 2), absdiff(3u, 5u), abs(-3), 0)": [6, 2, 3, 0],
    "float4(addsat(uchar(250), uchar(10)), subsat(2u, 3u), hadd(3, 6), 0)": [255, 0, 4, 0],
    "float4(isnan(NAN), isinf(INFINITY), isfinite(1.0f), signbit(-1.0f))": [1, 1, 1, 1],
    "float4(any(float2(0, 1) > 0.5f), all(float2(0, 1) > 0.5f), 0, 0)": [1, 0, 0, 0],
    "float4(min3(3.0, 1.0, 2.0), max3(3.0, 1.0, 2.0), median3(3.0, 1.0, 2.0), 0)": [1, 3, 2, 0],
    "float4(ldexp(1.5f, 3), smoothstep(0.0f, 1.0f, 0.5f), 0, 0)": [12, 0.5, 0, 0],
    "float4(sizeof(float3), sizeof(packed_float3), sizeof(bfloat), sizeof(ulong))": [16, 12, 2, 8],
    "float4(packed_float3(1, 2, 3) * 2.0f, 1)": [2, 4, 6, 1],
    "float4(numeric_limits<half>::max(), numeric_limits<char>::min(), 0, 0)": [65504, -128, 0, 0],
    "float4(half(0.1f), bfloat(0.1f), 0, 0)": [0.0999755859375, 0.10009765625, 0, 0],
    "float4(half(bfloat(1.5f)), bfloat(half(2.5f)), 0, 0)": [1.5, 2.5, 0, 0],
    "float4(1 / 3.0, 1e-2, .5, 3.)": [1 / 3, 0.01, 0.5, 3],
    "float4(1.5h, 0x10, 0b11, 1'000)": [1.5, 16, 3, 1000],
    "float4(is_same_v<float, decltype(1.0)>, is_same_v<half, decltype(1.0h)>, 0, 0)": [1, 1, 0, 0],
    "float4(is_same_v<float, decltype(exp(bfloat(1)))>, is_integral_v<half>, 0, 0)": [1, 0, 0, 0],
    "float4x4(2) * float4(1, 2, 3, 4)": [2, 4, 6, 8],
    "float4(float2x2(float2(1, 2), float2(3, 4)) * float2(1, 1), 0, 0)": [4, 6, 0, 0],
    "float4(triple(2.0f), triple(2), M_PI_F, 0)": [6, 6, math.pi, 0],
    "float4((float)((half)2049.0f), (T4(1) + T4(2)).x, Wide(3).y, 0)": [2048, 3, 3, 0],
}  # fmt: skip


def _expression_text() -> str:
    text = HEAD + (
        "typedef float4 T4;\nusing Wide = vec<float, 2>;\n"
        "template <typename T> T triple(T x) { return T(3) * static_cast<T>(x); }\n"
    )
    for i, expression in enumerate(EXPRESSIONS):
        text += f"kernel void e{i}(device float4* out [[buffer(0)]]) {{ out[0] = {expression}; }}\n"
    return text


@pytest.fixture(scope="module")
def expressions():
    return emulator.compile_shader(_expression_text(), name="expressions.metal")


@pytest.mark.parametrize("index", range(len(EXPRESSIONS)), ids=list(EXPRESSIONS))
def test_an_expression(expressions, index):
    out = torch.full((4,), float("nan"))
    getattr(expressions, f"e{index}")(out, threads=1)
    assert out.tolist() == pytest.approx(list(EXPRESSIONS.values())[index], rel=1e-6)


# an expression of the lanes of one simdgroup: x is lane * lane, lane is the number of the lane
X = torch.arange(32) ** 2
LANE = torch.arange(32)
LANES = {
    "simd_sum(x)": X.sum().expand(32),
    "simd_max(x)": X.max().expand(32),
    "simd_min(x)": X.min().expand(32),
    "simd_product(lane % 2 + 1)": torch.tensor(2**16).expand(32),
    "simd_or(lane)": torch.tensor(31).expand(32),
    "simd_xor(lane)": torch.tensor(0).expand(32),
    "simd_and(lane | 8)": torch.tensor(8).expand(32),
    "simd_prefix_inclusive_sum(x)": X.cumsum(0),
    "simd_prefix_exclusive_sum(x)": X.cumsum(0) - X,
    "simd_prefix_inclusive_product(lane < 3 ? lane + 1 : 1)": torch.tensor([1, 2] + [6] * 30),
    "simd_shuffle(x, ushort(31 - lane))": X.flip(0),
    "simd_broadcast(x, 5)": torch.tensor(25).expand(32),
    "simd_broadcast_first(x + 1)": torch.tensor(1).expand(32),
    "simd_shuffle_xor(x, 1)": X.view(-1, 2).flip(1).flatten(),
    "simd_shuffle_down(x, 2)": torch.cat([X[2:], X[30:]]),
    "simd_shuffle_up(x, 2)": torch.cat([X[:2], X[:30]]),
    "simd_shuffle_rotate_down(x, 3)": X.roll(-3),
    "simd_shuffle_rotate_up(x, 3)": X.roll(3),
    "simd_shuffle_and_fill_down(x, 7u, 2)": torch.cat([X[2:], torch.tensor([7, 7])]),
    "simd_shuffle_and_fill_up(x, 7u, 2)": torch.cat([torch.tensor([7, 7]), X[:30]]),
    "uint(simd_any(lane == 3)) + 2 * uint(simd_all(lane < 40))": torch.tensor(3).expand(32),
    "uint(ulong(simd_ballot(lane < 4)))": torch.tensor(15).expand(32),
    "popcount(uint(ulong(simd_active_threads_mask())))": torch.tensor(32).expand(32),
    "uint(simd_is_first())": (LANE == 0).long(),
    "quad_sum(x)": X.view(-1, 4).sum(1).repeat_interleave(4),
    "quad_max(x)": X.view(-1, 4).max(1).values.repeat_interleave(4),
    "quad_broadcast(x, 2)": X.view(-1, 4)[:, 2].repeat_interleave(4),
    "quad_shuffle_xor(x, 3)": X.view(-1, 4).flip(1).flatten(),
    "quad_shuffle_down(x, 1)": X.view(-1, 4)[:, [1, 2, 3, 3]].flatten(),
    "quad_prefix_inclusive_sum(x)": X.view(-1, 4).cumsum(1).flatten(),
    "uint(quad_any(lane % 4 == 1))": torch.tensor(1).expand(32),
    "uint(simd_sum(float4(x, 1, 2, 3)).y)": torch.tensor(32).expand(32),
    "uint(simd_sum(half(lane)))": torch.tensor(496).expand(32),
    "uint(simd_max(bfloat(lane)))": torch.tensor(31).expand(32),
}


@pytest.fixture(scope="module")
def lanes():
    text = HEAD
    for i, expression in enumerate(LANES):
        text += (
            f"kernel void l{i}(device uint* out [[buffer(0)]], "
            "uint lane [[thread_index_in_simdgroup]]) "
            f"{{ uint x = lane * lane; out[lane] = {expression}; }}\n"
        )
    return emulator.compile_shader(text, name="lanes.metal")


@pytest.mark.parametrize("index", range(len(LANES)), ids=list(LANES))
def test_an_exchange_of_lanes(lanes, index):
    for seed in (0, 1):
        lanes.seed = seed
        out = torch.zeros(32, dtype=torch.int32)
        getattr(lanes, f"l{index}")(out)
        assert out.tolist() == list(LANES.values())[index].tolist()


GEMM = (
    HEAD
    + """
template <typename T> kernel void gemm(
    device const T* a [[buffer(0)]], device const T* b [[buffer(1)]], device float* c [[buffer(2)]],
    constant int& k [[buffer(3)]], constant int& n [[buffer(4)]],
    uint2 tile [[threadgroup_position_in_grid]]) {
  simdgroup_matrix<T, 8, 8> left, right;
  simdgroup_float8x8 sum = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  for (int i = 0; i < k; i += 8) {
    simdgroup_load(left, a + tile.y * 8 * uint(k) + uint(i), ulong(k));
    simdgroup_load(right, b + tile.x * 8 * uint(k) + uint(i), ulong(k), ulong2(0, 0), true);
    simdgroup_multiply_accumulate(sum, left, right, sum);
  }
  simdgroup_store(sum, c + tile.y * 8 * uint(n) + tile.x * 8, ulong(n));
}
template [[host_name("gemm_float")]] kernel decltype(gemm<float>) gemm<float>;
template [[host_name("gemm_half")]] kernel decltype(gemm<half>) gemm<half>;
template [[host_name("gemm_bfloat")]] kernel decltype(gemm<bfloat>) gemm<bfloat>;
"""
)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("float", torch.float32), ("half", torch.float16), ("bfloat", torch.bfloat16)],
)
def test_matrices_of_a_simdgroup(kind, dtype):
    library = emulator.compile_shader(GEMM, name="gemm.metal")
    a, b = torch.randn(16, 40).to(dtype), torch.randn(24, 40).to(dtype)
    c = torch.full((16, 24), float("nan"))
    getattr(library, f"gemm_{kind}")(
        a, b, c, 40, 24, threads=(32 * 3, 2), group_size=(32, 1), arg_casts={3: "int32", 4: "int32"}
    )
    torch.testing.assert_close(c, a.float() @ b.float().T, rtol=1e-5, atol=1e-5)


ATOMICS = (
    HEAD
    + """
kernel void count(device atomic_int* all [[buffer(0)]], device atomic<float>* real [[buffer(1)]],
                  uint i [[thread_position_in_grid]], uint lid [[thread_position_in_threadgroup]]) {
  threadgroup atomic_uint here;
  if (lid == 0) atomic_store_explicit(&here, 0u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  atomic_fetch_add_explicit(&here, 2u, memory_order_relaxed);
  atomic_fetch_add_explicit(&all[0], 1, memory_order_relaxed);
  atomic_fetch_max_explicit(&all[1], int(i), memory_order_relaxed);
  atomic_fetch_min_explicit(&all[2], -int(i), memory_order_relaxed);
  atomic_fetch_or_explicit(&all[3], 1 << (i % 8), memory_order_relaxed);
  atomic_fetch_add_explicit(real, 0.5f, memory_order_relaxed);
  int expected = 0;
  atomic_compare_exchange_weak_explicit(
      &all[4], &expected, int(i) + 1, memory_order_relaxed, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint total = atomic_load_explicit(&here, memory_order_relaxed);
  if (lid == 0) atomic_fetch_add_explicit(&all[5], int(total), memory_order_relaxed);
}
"""
)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_atomics(seed):
    library = emulator.compile_shader(ATOMICS, name="atomics.metal", seed=seed)
    counts, real = torch.zeros(6, dtype=torch.int32), torch.zeros(1)
    library.count(counts, real, threads=100, group_size=32)
    assert counts[[0, 1, 2, 3, 5]].tolist() == [100, 99, -99, 255, 200]
    assert counts[4] > 0
    assert real.item() == 50


def test_half_and_bfloat_round_every_operation():
    text = HEAD + (
        "template <typename T> kernel void f(device const T* x [[buffer(0)]], device const T* y "
        "[[buffer(1)]], device T* out [[buffer(2)]], uint i [[thread_position_in_grid]]) "
        "{ out[i] = x[i] * y[i] + x[i]; }\n"
        'template [[host_name("half_")]] kernel decltype(f<half>) f<half>;\n'
        'template [[host_name("bfloat_")]] kernel decltype(f<bfloat>) f<bfloat>;\n'
    )
    library = emulator.compile_shader(text, name="rounding.metal")
    for dtype, kernel in ((torch.float16, library.half_), (torch.bfloat16, library.bfloat_)):
        x, y = torch.randn(2, 500).to(dtype)
        out = torch.empty_like(x)
        kernel(x, y, out)
        assert torch.equal(out, x * y + x)
