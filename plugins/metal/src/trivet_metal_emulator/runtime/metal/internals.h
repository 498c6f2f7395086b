// Names inside Apple's own headers that other projects call all the same.
#pragma once
#pragma clang system_header
#include "matrix.h"

#define __METAL_FAST_MATH__ 1
#define __METAL_PRECISE_MATH__ 0
#define __METAL_MAYBE_FAST_MATH__ 1

#define TRIVET_1(name) template <class T> SHIM auto __metal_##name(T a, int = 0) { return metal::name(a); }
#define TRIVET_2(name) template <class A, class B> SHIM auto __metal_##name(A a, B b, int = 0) { return metal::name(a, b); }
#define TRIVET_SIMD(name) template <class T> SHIM auto __metal_##name(T a, SITE) { return metal::name(a, PASS_SITE); }
#define TRIVET_SIMD2(name) template <class T> SHIM auto __metal_##name(T a, ushort n, SITE) { return metal::name(a, n, PASS_SITE); }
TRIVET_1(acos) TRIVET_1(acosh) TRIVET_1(asin) TRIVET_1(asinh) TRIVET_1(atan) TRIVET_1(atanh) TRIVET_1(ceil)
TRIVET_1(cos) TRIVET_1(cosh) TRIVET_1(cospi) TRIVET_1(exp) TRIVET_1(exp10) TRIVET_1(exp2) TRIVET_1(fabs)
TRIVET_1(floor) TRIVET_1(fract) TRIVET_1(log) TRIVET_1(log10) TRIVET_1(log2) TRIVET_1(rint) TRIVET_1(round)
TRIVET_1(rsqrt) TRIVET_1(sin) TRIVET_1(sinh) TRIVET_1(sinpi) TRIVET_1(sqrt) TRIVET_1(tan) TRIVET_1(tanh)
TRIVET_1(tanpi) TRIVET_1(trunc)
TRIVET_2(atan2) TRIVET_2(divide) TRIVET_2(fmax) TRIVET_2(fmin) TRIVET_2(fmod) TRIVET_2(ldexp)
TRIVET_2(nextafter) TRIVET_2(pow) TRIVET_2(powr)
TRIVET_SIMD(simd_sum) TRIVET_SIMD(simd_product) TRIVET_SIMD(simd_max) TRIVET_SIMD(simd_min)
TRIVET_SIMD(simd_and) TRIVET_SIMD(simd_or) TRIVET_SIMD(simd_xor) TRIVET_SIMD(simd_prefix_inclusive_sum)
TRIVET_SIMD(simd_prefix_exclusive_sum) TRIVET_SIMD(simd_prefix_inclusive_product)
TRIVET_SIMD(simd_prefix_exclusive_product)
TRIVET_SIMD2(simd_broadcast) TRIVET_SIMD2(simd_shuffle) TRIVET_SIMD2(simd_shuffle_xor)
TRIVET_SIMD2(simd_shuffle_down) TRIVET_SIMD2(simd_shuffle_up) TRIVET_SIMD2(simd_shuffle_rotate_down)
TRIVET_SIMD2(simd_shuffle_rotate_up)
#undef TRIVET_1
#undef TRIVET_2
#undef TRIVET_SIMD
#undef TRIVET_SIMD2
template <class T> SHIM auto __metal_fma(T a, T b, T c, int = 0) { return metal::fma(a, b, c); }
template <class T> SHIM auto __metal_fmax3(T a, T b, T c, int = 0) { return metal::max3(a, b, c); }
template <class T> SHIM auto __metal_fmin3(T a, T b, T c, int = 0) { return metal::min3(a, b, c); }
template <class T> SHIM auto __metal_fmedian3(T a, T b, T c, int = 0) { return metal::median3(a, b, c); }
template <class T> SHIM auto __metal_frexp(T a, int* n, int = 0) { return metal::frexp(a, *n); }
template <class T> SHIM auto __metal_simd_shuffle_and_fill_down(T a, T fill, ushort n, ushort modulo, SITE) { return metal::simd_shuffle_and_fill_down(a, fill, n, modulo, PASS_SITE); }
template <class T> SHIM auto __metal_simd_shuffle_and_fill_up(T a, T fill, ushort n, ushort modulo, SITE) { return metal::simd_shuffle_and_fill_up(a, fill, n, modulo, PASS_SITE); }
SHIM ushort __metal_get_simdgroup_size(ushort) { return 32; }
SHIM ushort __metal_get_thread_index_in_simdgroup(ushort) { return ushort(trivet_msl::lane()); }
