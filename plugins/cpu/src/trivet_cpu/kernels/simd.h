// One vector of floats, as wide as the level this file is compiled for.
//
// Everything lives in an unnamed namespace: the same source is compiled once per level with other
// -march flags, and a merged inline function would carry one level's instructions into another.
// For the same reason no function of the standard library is called here.
#pragma once
#include <cstdint>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define INLINE __attribute__((always_inline)) inline

namespace {

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

#if defined(__AVX512F__)
constexpr int VL = 16;
#elif defined(__AVX2__)
constexpr int VL = 8;
#else
constexpr int VL = 4;
#endif

typedef float vf __attribute__((vector_size(4 * VL)));
typedef uint32_t vu __attribute__((vector_size(4 * VL)));
typedef int32_t vi __attribute__((vector_size(4 * VL)));
typedef uint16_t vh __attribute__((vector_size(2 * VL)));

// --- building blocks -------------------------------------------------------------------------

INLINE vf splat(float x) { return x - (vf){}; }
INLINE vu splat_bits(uint32_t x) { return x - (vu){}; }
INLINE float square_root(float x) { return __builtin_sqrtf(x); }

INLINE vf fma(vf a, vf b, vf c) {
#if defined(__AVX512F__)
  return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
  return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

INLINE vf select(vi mask, vf yes, vf no) {
#if defined(__AVX512F__)
  return mask ? yes : no;
#elif defined(__AVX2__)
  return (vf)_mm256_blendv_ps((__m256)no, (__m256)yes, (__m256)mask);
#elif defined(__aarch64__)
  return (vf)vbslq_f32((uint32x4_t)mask, (float32x4_t)yes, (float32x4_t)no);
#else
  return (vf)(((vi)yes & mask) | ((vi)no & ~mask));
#endif
}

// Lanes of x where x is a NaN stay: the second operand of the instructions, and of a comparison
// that is false for them.
INLINE vf at_most(vf x, float high) {
#if defined(__AVX512F__)
  return (vf)_mm512_min_ps((__m512)splat(high), (__m512)x);
#elif defined(__AVX2__)
  return (vf)_mm256_min_ps((__m256)splat(high), (__m256)x);
#else
  return select(x > splat(high), splat(high), x);
#endif
}
INLINE vf at_least(vf x, float low) {
#if defined(__AVX512F__)
  return (vf)_mm512_max_ps((__m512)splat(low), (__m512)x);
#elif defined(__AVX2__)
  return (vf)_mm256_max_ps((__m256)splat(low), (__m256)x);
#else
  return select(x < splat(low), splat(low), x);
#endif
}
INLINE vf magnitude(vf x) { return (vf)((vi)x & 0x7fffffff); }

// 1 / x for x >= 1, within a unit in the last place; of infinity it is zero. A division of wide
// vectors takes as long as all the rest of an activation.
INLINE vf reciprocal(vf x) {
#if defined(__AVX512F__)
  const __m512 d = (__m512)x, r = _mm512_rcp14_ps(d);
  const __mmask16 finite = _mm512_cmp_ps_mask(d, (__m512)splat(__builtin_inff()), _CMP_LT_OQ);
  return (vf)_mm512_fmadd_ps(r, _mm512_maskz_fnmadd_ps(finite, d, r, (__m512)splat(1.0f)), r);
#else
  return 1.0f / x;
#endif
}

// --- bfloat16 <-> float ----------------------------------------------------------------------

INLINE float widen(float x) { return x; }
INLINE float widen(bf16 x) {
  uint32_t bits = (uint32_t)x.bits << 16;
  float out;
  __builtin_memcpy(&out, &bits, 4);
  return out;
}

// Round to nearest even in the upper 16 bits; a NaN stays a (quiet) NaN of the same sign.
INLINE uint32_t round_bits(float x) {
  uint32_t u;
  __builtin_memcpy(&u, &x, 4);
  uint32_t rounded = u + 0x7fffu + ((u >> 16) & 1u);
  return x != x ? (u | 0x400000u) : rounded;
}
// The same for lanes that are not NaN; the carry of a NaN may run into its sign.
INLINE vu round_numbers(vf x) {
#if defined(__AVX512F__)
  __m512i u = (__m512i)x;
  __mmask16 odd = _mm512_test_epi32_mask(u, _mm512_set1_epi32(0x10000));
  __m512i r = _mm512_add_epi32(u, _mm512_set1_epi32(0x7fff));
  return (vu)_mm512_mask_add_epi32(r, odd, u, _mm512_set1_epi32(0x8000));
#else
  vu u = (vu)x;
  return u + (splat_bits(0x7fffu) + ((u >> 16) & 1u));
#endif
}
INLINE vu keep_nan(vf x, vu rounded) {
  vu u = (vu)x;
#if defined(__AVX512F__)
  __mmask16 nan = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);
  return (vu)_mm512_mask_or_epi32((__m512i)rounded, nan, (__m512i)u, _mm512_set1_epi32(0x400000));
#else
  return (vu)select(x != x, (vf)(u | 0x400000u), (vf)rounded);
#endif
}
INLINE vu round_bits(vf x) { return keep_nan(x, round_numbers(x)); }

// True when a lane of either vector is a NaN: one comparison for both.
INLINE bool any_nan(vf a, vf b) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_UNORD_Q) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_UNORD_Q)) != 0;
#elif defined(__aarch64__)
  return vminvq_u32((uint32x4_t)((a == a) & (b == b))) == 0;
#else
  vi bad = (a != a) | (b != b);
  int32_t any = 0;
  for (int i = 0; i < VL; i++) any |= bad[i];
  return any != 0;
#endif
}

// --- float16 <-> float -----------------------------------------------------------------------

#if defined(__AVX2__) || defined(__aarch64__)
#define HALF INLINE
#else  // a score of instructions, called from many places
#define HALF __attribute__((noinline, unused)) static
#endif

HALF vf from_half(vh h) {
#if defined(__AVX512F__)
  return (vf)_mm512_cvtph_ps((__m256i)h);
#elif defined(__AVX2__)
  return (vf)_mm256_cvtph_ps((__m128i)h);
#elif defined(__aarch64__)
  return (vf)vcvt_f32_f16((float16x4_t)h);
#else
  const vu bits = __builtin_convertvector(h, vu);
  const vi m = (vi)(bits & 0x7fffu);
  const vf wide = (vf)(m << 13) * 0x1p112f;  // the difference of the exponents' biases
  const vi special = (m >= 0x7c00) & 0x7f800000;  // infinity and NaN
  return (vf)((vu)wide | (vu)special | (bits & 0x8000u) << 16);
#endif
}
// Rounds to nearest even, to infinity from 65520 on; a NaN stays a (quiet) NaN of the same sign.
HALF vh to_half(vf x) {
#if defined(__AVX512F__)
  return (vh)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__AVX2__)
  return (vh)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__aarch64__)
  return (vh)vcvt_f16_f32((float32x4_t)x);
#else
  const vu u = (vu)x;
  const vi m = (vi)(u & 0x7fffffffu);
  const vi small = (vi)((vf)m + 0.5f) - 0x3f000000;  // the sum is a multiple of 2^-24
  vi half = (m - 0x38000000 + 0xfff + ((m >> 13) & 1)) >> 13;
  half = (vi)select(m < 0x38800000, (vf)small, (vf)half);
  half = (vi)select(m > 0x477fffff, (vf)(vi)splat_bits(0x7c00), (vf)half);
  half |= (m > 0x7f800000) & (0x200 | (m >> 13 & 0x3ff));
  return __builtin_convertvector((vu)half | (u >> 16 & 0x8000u), vh);
#endif
}
INLINE float widen(f16 x) {
#if defined(__AVX2__)
  return _cvtsh_ss(x.bits);
#else
  return from_half(x.bits - (vh){})[0];
#endif
}

// --- loads and stores ------------------------------------------------------------------------

INLINE vf load(const float* p) {
  vf x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
INLINE vf load(const bf16* p) {
  vh h;
  __builtin_memcpy(&h, p, sizeof h);
#if defined(__AVX512F__)
  return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)h), 16);
#elif defined(__AVX2__)
  return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)h), 16);
#elif defined(__aarch64__)
  return (vf)vshlq_n_u32(vmovl_u16((uint16x4_t)h), 16);
#else
  return (vf)(__builtin_convertvector(h, vu) << 16);
#endif
}
INLINE vf load(const f16* p) {
  vh h;
  __builtin_memcpy(&h, p, sizeof h);
  return from_half(h);
}

INLINE void store(float* p, vf x) { __builtin_memcpy(p, &x, sizeof x); }
INLINE vh upper_half(vu u) {
#if defined(__AVX512F__)
  return (vh)_mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)u, 16));
#elif defined(__AVX2__)
  __m256i s = _mm256_srli_epi32((__m256i)u, 16);
  return (vh)_mm_packus_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
#elif defined(__aarch64__)
  return (vh)vshrn_n_u32((uint32x4_t)u, 16);
#else
  return __builtin_convertvector(u >> 16, vh);
#endif
}
INLINE void store(bf16* p, vf x) {
  vh h = upper_half(round_bits(x));
  __builtin_memcpy(p, &h, sizeof h);
}
INLINE void store(f16* p, vf x) {
  vh h = to_half(x);
  __builtin_memcpy(p, &h, sizeof h);
}
INLINE void store_one(float* p, float x) { *p = x; }
INLINE void store_one(bf16* p, float x) { p->bits = (uint16_t)(round_bits(x) >> 16); }
INLINE void store_one(f16* p, float x) { p->bits = to_half(splat(x))[0]; }

// The first n < VL elements; the other lanes of a load are zero, and memory past n is not touched.
#if defined(__AVX512F__)
INLINE __mmask16 first(int64_t n) { return (__mmask16)((1u << n) - 1u); }
INLINE vf load_first(const float* p, int64_t n) { return (vf)_mm512_maskz_loadu_ps(first(n), p); }
INLINE vf load_first(const bf16* p, int64_t n) {
  __m256i h = _mm256_maskz_loadu_epi16(first(n), p);
  return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16);
}
INLINE vf load_first(const f16* p, int64_t n) {
  return from_half((vh)_mm256_maskz_loadu_epi16(first(n), p));
}
INLINE void store_first(float* p, vf x, int64_t n) {
  _mm512_mask_storeu_ps(p, first(n), (__m512)x);
}
INLINE void store_first(bf16* p, vf x, int64_t n) {
  _mm256_mask_storeu_epi16(p, first(n), (__m256i)upper_half(round_bits(x)));
}
INLINE void store_first(f16* p, vf x, int64_t n) {
  _mm256_mask_storeu_epi16(p, first(n), (__m256i)to_half(x));
}
#else
template <class T>
INLINE vf load_first(const T* p, int64_t n) {
  T part[VL] = {};
  for (int64_t i = 0; i < n; i++) part[i] = p[i];
  return load(part);
}
template <class T>
INLINE void store_first(T* p, vf x, int64_t n) {
  T part[VL];
  store(part, x);
  for (int64_t i = 0; i < n; i++) p[i] = part[i];
}
#endif

// The lines of the cache in which `bytes` from p lie will be read, or written, soon. The processor
// itself looks ahead within a page of 4 KiB only, and less far than the last level is away. Any
// address may be named, also one behind the end of memory.
INLINE void read_soon(uintptr_t p, int bytes) {
  for (int k = 0; k < bytes; k += 64) __builtin_prefetch((const void*)(p + k), 0, 2);
}
INLINE void write_soon(uintptr_t p, int bytes) {
  for (int k = 0; k < bytes; k += 64) {
#if defined(__x86_64__)  // compilers know the instruction on few levels; older processors skip it
    asm volatile("prefetchw %0" : : "m"(*(const char*)(p + k)));
#else
    __builtin_prefetch((const void*)(p + k), 1, 3);
#endif
  }
}

// --- reductions, in an order that depends on nothing but VL ----------------------------------

#if defined(__AVX512F__) || defined(__AVX2__)
INLINE float sum_of_lanes(__m128 q) {
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
#endif
INLINE float sum_of_lanes(vf x) {
#if defined(__AVX512F__)
  __m256 h = _mm256_add_ps(_mm512_castps512_ps256((__m512)x),
                           _mm512_extractf32x8_ps((__m512)x, 1));
  return sum_of_lanes(_mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1)));
#elif defined(__AVX2__)
  __m256 h = (__m256)x;
  return sum_of_lanes(_mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1)));
#elif defined(__aarch64__)
  return vpadds_f32(vadd_f32(vget_low_f32((float32x4_t)x), vget_high_f32((float32x4_t)x)));
#else
  return (x[0] + x[2]) + (x[1] + x[3]);
#endif
}

// The largest lane; NaN lanes may be ignored.
INLINE float max_of_lanes(vf x) {
#if defined(__AVX512F__) || defined(__AVX2__)
#if defined(__AVX512F__)
  __m256 h = _mm256_max_ps(_mm512_castps512_ps256((__m512)x),
                           _mm512_extractf32x8_ps((__m512)x, 1));
#else
  __m256 h = (__m256)x;
#endif
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
#elif defined(__aarch64__)
  return vmaxnmvq_f32((float32x4_t)x);
#else
  float m = x[0];
  for (int i = 1; i < VL; i++) m = x[i] > m ? x[i] : m;
  return m;
#endif
}

// sums[i] = sum_of_lanes(rows[i]), for VL vectors at once, each in the same order of additions.
INLINE vf sums_of_lanes(const vf* rows) {
#if defined(__AVX512F__)
  __m512 a[8], b[4], c[2];
  for (int i = 0; i < 8; i++) {  // lane l + lane l+8, rows i and i+8 side by side
    __m512 x = (__m512)rows[i], y = (__m512)rows[i + 8];
    a[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
  }
  for (int i = 0; i < 4; i++)  // + lane l+4: quarters hold rows i, i+8, i+4, i+12
    b[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[i], a[i + 4], 0x88),
                         _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd));
  for (int i = 0; i < 2; i++)  // + lane l+2
    c[i] = _mm512_add_ps(_mm512_shuffle_ps(b[i], b[i + 2], 0x44),
                         _mm512_shuffle_ps(b[i], b[i + 2], 0xee));
  __m512 d = _mm512_add_ps(_mm512_shuffle_ps(c[0], c[1], 0x88),  // + lane l+1
                           _mm512_shuffle_ps(c[0], c[1], 0xdd));
  // A quarter holds rows r, r+2, r+1, r+3 for r = 0, 8, 4, 12.
  const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
  return (vf)_mm512_permutexvar_ps(order, d);
#elif defined(__AVX2__)
  __m256 a[4], b[2];
  for (int i = 0; i < 4; i++) {
    __m256 x = (__m256)rows[i], y = (__m256)rows[i + 4];
    a[i] = _mm256_add_ps(_mm256_permute2f128_ps(x, y, 0x20), _mm256_permute2f128_ps(x, y, 0x31));
  }
  for (int i = 0; i < 2; i++)
    b[i] = _mm256_add_ps(_mm256_shuffle_ps(a[i], a[i + 2], 0x44),
                         _mm256_shuffle_ps(a[i], a[i + 2], 0xee));
  __m256 c = _mm256_add_ps(_mm256_shuffle_ps(b[0], b[1], 0x88), _mm256_shuffle_ps(b[0], b[1], 0xdd));
  return (vf)_mm256_shuffle_ps(c, c, 0xd8);
#elif defined(__aarch64__)
  float32x4_t a[2];
  for (int i = 0; i < 2; i++) {  // lane l + lane l+2, rows 2i and 2i+1 side by side
    float64x2_t x = (float64x2_t)rows[2 * i], y = (float64x2_t)rows[2 * i + 1];
    a[i] = vaddq_f32((float32x4_t)vzip1q_f64(x, y), (float32x4_t)vzip2q_f64(x, y));
  }
  return (vf)vpaddq_f32(a[0], a[1]);  // + lane l+1
#else
  vf out;
  for (int i = 0; i < VL; i++) out[i] = sum_of_lanes(rows[i]);
  return out;
#endif
}

}  // namespace
