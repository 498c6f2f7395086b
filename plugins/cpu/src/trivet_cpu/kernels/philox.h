// Gumbel noise of neighbouring tokens, from Philox4x32-10 (Salmon et al. 2011).
#pragma once
#include "simd.h"

namespace {

// A vector of 64-bit lanes, each holding one word in its lower half; the upper halves are noise.
typedef uint64_t vq __attribute__((vector_size(4 * VL)));
constexpr int BLOCKS = VL / 2;      // counters of one vq
constexpr int NOISE = 4 * BLOCKS;  // tokens of one vq of counters

INLINE vq splat_wide(uint64_t x) { return x - (vq){}; }
INLINE vq product(vq a, uint32_t m) {
#if defined(__AVX512F__)
  return (vq)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64(m));
#elif defined(__AVX2__)
  return (vq)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(m));
#else
  return (a & 0xffffffffu) * (uint64_t)m;
#endif
}

struct Draw {  // what decides the noise of a sequence, besides the tokens' ids
  uint64_t seed, position;
};

// The words of the tokens 4 * block, 4 * block + 1, ...: NOISE of them, in order.
INLINE void philox(const Draw& d, int64_t block, uint32_t* words) {
  vq x0 = {}, x1 = {}, x2 = splat_wide(d.position & 0xffffffffu), x3 = splat_wide(d.position >> 32);
  for (int i = 0; i < BLOCKS; i++) x0[i] = (uint64_t)(block + i);
  uint32_t k0 = (uint32_t)d.seed, k1 = (uint32_t)(d.seed >> 32);
  for (int round = 0; round < 10; round++) {
    vq a = product(x0, 0xd2511f53u), b = product(x2, 0xcd9e8d57u);
    x0 = (b >> 32) ^ x1 ^ splat_wide(k0);
    x2 = (a >> 32) ^ x3 ^ splat_wide(k1);
    x1 = b;
    x3 = a;
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  vq even = (x0 & 0xffffffffu) | (x1 << 32), odd = (x2 & 0xffffffffu) | (x3 << 32);
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the lower half of a word pair must come first"
#endif
#if defined(__AVX512F__)
  const __m512i low = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
  const __m512i high = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
  _mm512_storeu_si512(words, _mm512_permutex2var_epi64((__m512i)even, low, (__m512i)odd));
  _mm512_storeu_si512(words + VL, _mm512_permutex2var_epi64((__m512i)even, high, (__m512i)odd));
#else
  for (int i = 0; i < BLOCKS; i++) {
    uint64_t pair[2] = {even[i], odd[i]};
    __builtin_memcpy(words + 4 * i, pair, sizeof pair);
  }
#endif
}

// log of positive normal numbers: x = 2^n m, m in [sqrt(1/2), sqrt(2)), f = m - 1, which is exact;
// log(1 + f) = f - f^2/2 + f^3 P(f), P fitted to relative error, 6e-9. Near 1 the result is as
// accurate relatively as elsewhere.
INLINE vf logarithm(vf x) {
  vi shifted = (vi)x - 0x3f3504f3;
  vi n = shifted >> 23;
  vf f = (vf)((shifted & 0x7fffff) + 0x3f3504f3) - 1.0f;
  vf e = __builtin_convertvector(n, vf);
  vf p = splat(-0.07634437829256058f);
  p = fma(p, f, splat(0.12761563062667847f));
  p = fma(p, f, splat(-0.1316019743680954f));
  p = fma(p, f, splat(0.14201760292053223f));
  p = fma(p, f, splat(-0.16623355448246002f));
  p = fma(p, f, splat(0.20001226663589478f));
  p = fma(p, f, splat(-0.250008225440979f));
  p = fma(p, f, splat(0.3333333134651184f));
  vf square = f * f;
  vf rest = fma(p * f, square, square * -0.5f);
  rest = fma(e, splat(-2.12194440e-4f), rest);
  return fma(e, splat(0.693359375f), f + rest);
}

// -log(-log(u)), u = ((word >> 9) + 0.5) / 2^23: every u is a float, neither 0 nor 1.
INLINE vf gumbel(vu word) {
  vf u = (__builtin_convertvector((vi)(word >> 9), vf) + 0.5f) * 0x1p-23f;
  return -logarithm(-logarithm(u));
}
constexpr float LARGEST_NOISE = 16.6356f;  // u = 1 - 2^-24 gives 16.63553

}  // namespace
