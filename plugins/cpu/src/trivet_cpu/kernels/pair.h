// Pairs of vectors: 2 * VL neighbours of a row.
//
// For floats and float16 they are the first and the second half. For bf16 they are the even and the odd
// elements: a 32-bit word holds one of each, so widening is a shift and a mask, and narrowing
// another two, where natural order would have to move lanes. Work on single elements does not
// care, as long as everything that meets is loaded in one order.
#pragma once
#include "simd.h"

namespace {

struct Pair {
  vf a, b;
};

// Whether pairs of T are even and odd elements.
template <class T>
constexpr bool EVEN_ODD = false;
template <>
constexpr bool EVEN_ODD<bf16> = true;

INLINE Pair even_odd(vf x, vf y) {
#if defined(__AVX512F__)
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  return {(vf)_mm512_permutex2var_ps((__m512)x, even, (__m512)y),
          (vf)_mm512_permutex2var_ps((__m512)x, odd, (__m512)y)};
#elif defined(__AVX2__)
  __m256 even = _mm256_shuffle_ps((__m256)x, (__m256)y, 0x88);
  __m256 odd = _mm256_shuffle_ps((__m256)x, (__m256)y, 0xdd);
  return {(vf)_mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(even), 0xd8)),
          (vf)_mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(odd), 0xd8))};
#elif defined(__aarch64__)
  float32x4x2_t parts = vuzpq_f32((float32x4_t)x, (float32x4_t)y);
  return {(vf)parts.val[0], (vf)parts.val[1]};
#else
  Pair out;
  for (int i = 0; i < VL / 2; i++) {
    out.a[i] = x[2 * i], out.a[i + VL / 2] = y[2 * i];
    out.b[i] = x[2 * i + 1], out.b[i + VL / 2] = y[2 * i + 1];
  }
  return out;
#endif
}

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the lower half of a word must be its first element"
#endif
INLINE Pair halves_of_words(const bf16* p) {
  vu word;
  __builtin_memcpy(&word, p, sizeof word);
  return {(vf)(word << 16), (vf)(word & 0xffff0000u)};
}
template <class ORDER, class T>
INLINE Pair load_pair(const T* p) {
  if constexpr (EVEN_ODD<ORDER> && EVEN_ODD<T>)
    return halves_of_words(p);
  else if constexpr (EVEN_ODD<ORDER>)
    return even_odd(load(p), load(p + VL));
  else
    return {load(p), load(p + VL)};
}

// Where a NaN comes from. Widened bf16 and results of invalid operations have nothing in their
// lower half, so that rounding cannot carry into the sign; a NaN of a float may be any pattern.
enum Nan { FROM_BF16, FROM_FLOAT };

template <Nan SOURCE = FROM_FLOAT>
INLINE void store_pair(float* p, Pair x) {
  store(p, x.a);
  store(p + VL, x.b);
}
// Rounds both; returns the bits, of which the upper halves count.
template <Nan SOURCE>
INLINE void round_pair(Pair x, vu* a, vu* b) {
  *a = round_numbers(x.a);
  *b = round_numbers(x.b);
  if constexpr (SOURCE == FROM_FLOAT)
    if (__builtin_expect(any_nan(x.a, x.b), 0)) {
      *a = keep_nan(x.a, *a);
      *b = keep_nan(x.b, *b);
    }
}
INLINE vu merge_upper(vu a, vu b) {
#if defined(__AVX512F__)  // mask ? b : a
  return (vu)_mm512_ternarylogic_epi32((__m512i)(a >> 16), (__m512i)b,
                                       _mm512_set1_epi32((int)0xffff0000u), 0xd8);
#elif defined(__aarch64__)  // shifts a, and keeps the upper half of b
  return (vu)vsriq_n_u32((uint32x4_t)b, (uint32x4_t)a, 16);
#else
  return (a >> 16) | (b & 0xffff0000u);
#endif
}
template <Nan SOURCE = FROM_FLOAT>
INLINE void store_pair(bf16* p, Pair x) {
  vu a, b;
  round_pair<SOURCE>(x, &a, &b);
  vu word = merge_upper(a, b);
  __builtin_memcpy(p, &word, sizeof word);
}

// The same for the pair that lies `ahead` bytes behind the one at p.
template <class T>
INLINE void read_soon(const T* p, int64_t ahead) {
  read_soon((uintptr_t)p + (uintptr_t)ahead, 2 * VL * sizeof(T));
}
template <class T>
INLINE void write_soon(T* p, int64_t ahead) {
  write_soon((uintptr_t)p + (uintptr_t)ahead, 2 * VL * sizeof(T));
}
template <Nan SOURCE = FROM_FLOAT>
INLINE void store_pair(f16* p, Pair x) {
  store(p, x.a);
  store(p + VL, x.b);
}

// Stores a sum of two T and returns what was stored.
INLINE Pair store_pair_rounded(float* p, Pair x) {
  store_pair(p, x);
  return x;
}
INLINE Pair store_pair_rounded(bf16* p, Pair x) {
  vu a, b;
  round_pair<FROM_BF16>(x, &a, &b);
  a &= 0xffff0000u;
  b &= 0xffff0000u;
  vu word = (a >> 16) | b;
  __builtin_memcpy(p, &word, sizeof word);
  return {(vf)a, (vf)b};
}

INLINE Pair store_pair_rounded(f16* p, Pair x) {
  vh a = to_half(x.a), b = to_half(x.b);
  __builtin_memcpy(p, &a, sizeof a);
  __builtin_memcpy(p + VL, &b, sizeof b);
  return {from_half(a), from_half(b)};
}

// The values that a T would hold, of numbers that were computed from T.
template <class T>
INLINE Pair rounded(Pair x);
template <>
INLINE Pair rounded<float>(Pair x) { return x; }
template <>
INLINE Pair rounded<bf16>(Pair x) {
  vu a, b;
  round_pair<FROM_BF16>(x, &a, &b);
  return {(vf)(a & 0xffff0000u), (vf)(b & 0xffff0000u)};
}
template <>
INLINE Pair rounded<f16>(Pair x) { return {from_half(to_half(x.a)), from_half(to_half(x.b))}; }

// The last n < 2 * VL elements of a row, through a full-sized copy padded with zeros.
template <class ORDER, class T>
INLINE Pair load_pair_first(const T* p, int64_t n) {
  T part[2 * VL] = {};
  for (int64_t i = 0; i < n; i++) part[i] = p[i];
  return load_pair<ORDER>(part);
}
template <class T>
INLINE void store_pair_first(T* p, Pair x, int64_t n) {
  T part[2 * VL];
  store_pair(part, x);
  for (int64_t i = 0; i < n; i++) p[i] = part[i];
}

INLINE Pair operator+(Pair x, Pair y) { return {x.a + y.a, x.b + y.b}; }
INLINE Pair operator*(Pair x, Pair y) { return {x.a * y.a, x.b * y.b}; }
INLINE Pair operator*(Pair x, vf y) { return {x.a * y, x.b * y}; }
INLINE Pair operator+(Pair x, vf y) { return {x.a + y, x.b + y}; }

}  // namespace
