// Products with a weight whose numbers lie on a grid: 32 neighbours of a row are d * q + m with
// 4-bit q, or d * q with 8-bit q. Each weight is computed in a register, exactly as it was, so that
// a step reads a fifth (a quarter) of the bytes of the float32 weight.
#pragma once
#include "simd.h"
#include "table.h"

namespace {

using trivet_cpu::GridArgs;

constexpr int GROUP = 32;  // weights that share a scale

INLINE vf lanes() {
  vf x;
  for (int i = 0; i < VL; i++) x[i] = (float)i;
  return x;
}

// VL bytes as numbers; the upper bits of a lane are those of its byte, or its sign.
INLINE vi unsigned_bytes(const uint8_t* p) {
#if defined(__AVX512F__)
  return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
#elif defined(__AVX2__)
  return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
#else
  vi x;
  for (int i = 0; i < VL; i++) x[i] = p[i];
  return x;
#endif
}
INLINE vi signed_bytes(const uint8_t* p) {
#if defined(__AVX512F__)
  return (vi)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p));
#elif defined(__AVX2__)
  return (vi)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p));
#else
  vi x;
  for (int i = 0; i < VL; i++) x[i] = (int8_t)p[i];
  return x;
#endif
}
INLINE vf numbers(vi x) {
#if defined(__AVX512F__)
  return (vf)_mm512_cvtepi32_ps((__m512i)x);
#elif defined(__AVX2__)
  return (vf)_mm256_cvtepi32_ps((__m256i)x);
#else
  return __builtin_convertvector(x, vf);
#endif
}

// The weights of one group, VL at a time: w[i] holds elements i * VL and on.
struct Group {
  vf w[GROUP / VL];
};

// Low halves of 16 bytes are the first 16 elements, high halves the others.
struct FourBits {
  static constexpr int BYTES = GROUP / 2, SCALES = 2;
  static INLINE Group weights(const uint8_t* q, const float* scale) {
    Group g;
    const vf d = splat(scale[0]), m = splat(scale[1]);
#if defined(__AVX512F__)
    const __m512 table = (__m512)fma(lanes(), d, m);  // all sixteen numbers that a weight can be
    const __m512i both = (__m512i)unsigned_bytes(q);
    g.w[0] = (vf)_mm512_permutexvar_ps(both, table);  // looks at the low four bits only
    g.w[1] = (vf)_mm512_permutexvar_ps(_mm512_srli_epi32(both, 4), table);
#else
    for (int i = 0; i < 16 / VL; i++) {
      const vi both = unsigned_bytes(q + i * VL);
      g.w[i] = fma(numbers(both & 15), d, m);
      g.w[i + 16 / VL] = fma(numbers(both >> 4), d, m);
    }
#endif
    return g;
  }
};
struct EightBits {
  static constexpr int BYTES = GROUP, SCALES = 1;
  static INLINE Group weights(const uint8_t* q, const float* scale) {
    Group g;
    const vf d = splat(scale[0]);
    for (int i = 0; i < GROUP / VL; i++) g.w[i] = numbers(signed_bytes(q + i * VL)) * d;
    return g;
  }
};

// VL outputs of R rows; each output is summed in an order that depends on in_features alone.
template <class BITS, int R>
INLINE void grid_block(const GridArgs& a, const float* x, float* y, int64_t out, int64_t count) {
  constexpr int C = R <= 2 ? 4 : R <= 4 ? 2 : 1;  // outputs at once: chains of sums hide latency
  constexpr int N = 2;  // sums of one output, for any R: a row has the same bits in every batch
  const int64_t groups = a.in_features / GROUP;
  vf part[R][VL];
  for (int c = 0; c < VL; c += C) {
    vf sum[R][C][N] = {};
    const uint8_t* q[C];
    const float* scale[C];
    for (int i = 0; i < C; i++) {
      const int64_t row = out + (c + i < count ? c + i : 0);  // past the end: any row, not stored
      q[i] = a.q + row * groups * BITS::BYTES;
      scale[i] = a.scales + row * groups * BITS::SCALES;
    }
    for (int64_t g = 0; g < groups; g++)
      for (int i = 0; i < C; i++) {
        const Group w = BITS::weights(q[i] + g * BITS::BYTES, scale[i] + g * BITS::SCALES);
        for (int r = 0; r < R; r++)
          for (int j = 0; j < GROUP / VL; j++)
            sum[r][i][j % N] =
                fma(w.w[j], load(x + r * a.x_stride + g * GROUP + j * VL), sum[r][i][j % N]);
      }
    for (int r = 0; r < R; r++)
      for (int i = 0; i < C; i++) {
        vf total = sum[r][i][0];
        for (int n = 1; n < N; n++) total = total + sum[r][i][n];
        part[r][c + i] = total;
      }
  }
  for (int r = 0; r < R; r++) {
    vf result = sums_of_lanes(part[r]);
    if (a.bias) result = result + load_first(a.bias + out, count < VL ? count : VL);
    if (count >= VL)
      store(y + r * a.y_stride + out, result);
    else
      store_first(y + r * a.y_stride + out, result, count);
  }
}

template <class BITS>
INLINE void grid_rows(const GridArgs& a, int64_t begin, int64_t end) {
  for (int64_t block = begin; block < end; block++) {
    const int64_t out = block * VL, count = a.out_features - out;
    int64_t row = 0;
    for (; row + 8 <= a.rows; row += 8)
      grid_block<BITS, 8>(a, a.x + row * a.x_stride, a.y + row * a.y_stride, out, count);
    for (; row + 4 <= a.rows; row += 4)
      grid_block<BITS, 4>(a, a.x + row * a.x_stride, a.y + row * a.y_stride, out, count);
    for (; row + 2 <= a.rows; row += 2)
      grid_block<BITS, 2>(a, a.x + row * a.x_stride, a.y + row * a.y_stride, out, count);
    for (; row < a.rows; row++)
      grid_block<BITS, 1>(a, a.x + row * a.x_stride, a.y + row * a.y_stride, out, count);
  }
}

// Blocks of VL outputs.
void grid(const GridArgs& a, int64_t begin, int64_t end) {
  if (a.bits == 4) return grid_rows<FourBits>(a, begin, end);
  return grid_rows<EightBits>(a, begin, end);
}
constexpr int64_t GRID_BLOCK = VL;

}  // namespace
