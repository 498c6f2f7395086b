// rotary_embedding: rotates pairs of a head by the angle of its token; in place or into an output.
#pragma once
#include "pair.h"
#include "table.h"

namespace {

using trivet_cpu::RotaryArgs;
using trivet_cpu::RotaryCacheArgs;
using trivet_cpu::RotaryPart;

// Pairs (i, i + half). COSINES is how cos and sin are read: float when they lie in the order of T
// already, T when they have to be brought into it.
template <class T, class COSINES>
INLINE void rotate_halves(const T* in, T* out, const float* cos, const float* sin, int64_t half) {
  int64_t i = 0;
  for (; i + 2 * VL <= half; i += 2 * VL) {
    Pair c = load_pair<COSINES>(cos + i), s = load_pair<COSINES>(sin + i);
    Pair a = load_pair<T>(in + i), b = load_pair<T>(in + half + i);
    store_pair(out + i, {fma(a.a, c.a, -(b.a * s.a)), fma(a.b, c.b, -(b.b * s.b))});
    store_pair(out + half + i, {fma(b.a, c.a, a.a * s.a), fma(b.b, c.b, a.b * s.b)});
  }
  for (; i + VL <= half; i += VL) {
    vf c = load(cos + i), s = load(sin + i);
    vf a = load(in + i), b = load(in + half + i);
    store(out + i, fma(a, c, -(b * s)));
    store(out + half + i, fma(b, c, a * s));
  }
  if (i < half) {
    int64_t n = half - i;
    vf c = load_first(cos + i, n), s = load_first(sin + i, n);
    vf a = load_first(in + i, n), b = load_first(in + half + i, n);
    store_first(out + i, fma(a, c, -(b * s)), n);
    store_first(out + half + i, fma(b, c, a * s), n);
  }
}

constexpr int64_t ORDERED = 256;  // cosines that are brought into the order of T, once a token

template <class T>
INLINE void order_cosines(const float* from, float* to, int64_t half) {
  int64_t i = 0;
  for (; i + 2 * VL <= half; i += 2 * VL) {
    Pair x = load_pair<T>(from + i);
    store(to + i, x.a);
    store(to + i + VL, x.b);
  }
  for (; i < half; i++) to[i] = from[i];
}

template <class T>
INLINE void rotate_one_pair(const T* in, T* out, float c, float s) {
  float a = widen(in[0]), b = widen(in[1]);
  store_one(out, a * c - b * s);
  store_one(out + 1, b * c + a * s);
}

// VL pairs (2i, 2i + 1) of floats.
INLINE void rotate_neighbours(const float* in, float* out, vf c, vf s) {
#if defined(__AVX512F__)
  const __m512i low = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  const __m512i order[2] = {low, _mm512_add_epi32(low, _mm512_set1_epi32(8))};
  for (int h = 0; h < 2; h++) {
    __m512 x = (__m512)load(in + h * VL);
    __m512 cc = _mm512_permutexvar_ps(order[h], (__m512)c);
    __m512 ss = _mm512_permutexvar_ps(order[h], (__m512)s);
    __m512 swapped = _mm512_permute_ps(x, 0xb1);
    store(out + h * VL, (vf)_mm512_fmaddsub_ps(x, cc, _mm512_mul_ps(swapped, ss)));
  }
#elif defined(__AVX2__)
  const __m256i low = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
  const __m256i order[2] = {low, _mm256_add_epi32(low, _mm256_set1_epi32(4))};
  for (int h = 0; h < 2; h++) {
    __m256 x = (__m256)load(in + h * VL);
    __m256 cc = _mm256_permutevar8x32_ps((__m256)c, order[h]);
    __m256 ss = _mm256_permutevar8x32_ps((__m256)s, order[h]);
    __m256 swapped = _mm256_permute_ps(x, 0xb1);
    store(out + h * VL, (vf)_mm256_fmaddsub_ps(x, cc, _mm256_mul_ps(swapped, ss)));
  }
#elif defined(__aarch64__)
  Pair x = load_pair<bf16>(in);  // even and odd elements
  float32x4x2_t turned;
  turned.val[0] = (float32x4_t)fma(x.a, c, -(x.b * s));
  turned.val[1] = (float32x4_t)fma(x.b, c, x.a * s);
  vst2q_f32(out, turned);
#else
  for (int i = 0; i < VL; i++) rotate_one_pair(in + 2 * i, out + 2 * i, c[i], s[i]);
#endif
}

// VL pairs of bf16: even and odd elements are what load_pair gives.
INLINE void rotate_neighbours(const bf16* in, bf16* out, vf c, vf s) {
  Pair x = load_pair<bf16>(in);
  store_pair(out, {fma(x.a, c, -(x.b * s)), fma(x.b, c, x.a * s)});
}

// Of float16 as of floats.
INLINE void rotate_neighbours(const f16* in, f16* out, vf c, vf s) {
  float pairs[2 * VL];
  store_pair(pairs, load_pair<float>(in));
  rotate_neighbours(pairs, pairs, c, s);
  store_pair(out, load_pair<float>(pairs));
}

template <class T>
INLINE void rotate_pairs(const T* in, T* out, const float* cos, const float* sin, int64_t half) {
  int64_t i = 0;
  for (; i + VL <= half; i += VL)
    rotate_neighbours(in + 2 * i, out + 2 * i, load(cos + i), load(sin + i));
  for (; i < half; i++) rotate_one_pair(in + 2 * i, out + 2 * i, cos[i], sin[i]);
}

// Copies the row of v to its slot.
template <class T>
INLINE void keep_value(const RotaryPart& v, int64_t token, int64_t slot, int64_t head_dim) {
  const T* in = (const T*)v.in + token * v.in_stride;
  T* out = (T*)v.out + slot * v.out_stride;
  if (v.in_head_stride == head_dim) {
    __builtin_memcpy(out, in, v.heads * head_dim * sizeof(T));
    return;
  }
  for (int64_t h = 0; h < v.heads; h++, in += v.in_head_stride, out += head_dim)
    __builtin_memcpy(out, in, head_dim * sizeof(T));
}

// With a cache, k is rotated into its slot and v is copied; a token without a slot keeps both out.
template <class T, bool INTERLEAVED>
INLINE void rotate_tokens(const RotaryArgs& a, const RotaryCacheArgs* cache, int64_t begin,
                          int64_t end) {
  const int64_t kept = a.head_dim - 2 * a.half;
  const bool order = !INTERLEAVED && EVEN_ODD<T> && a.half <= ORDERED;
  float ordered_cos[ORDERED], ordered_sin[ORDERED];
  for (int64_t token = begin; token < end; token++) {
    const float* cos = a.cos + token * a.cos_stride;
    const float* sin = a.sin + token * a.sin_stride;
    if (order) {
      order_cosines<T>(cos, ordered_cos, a.half);
      order_cosines<T>(sin, ordered_sin, a.half);
      cos = ordered_cos;
      sin = ordered_sin;
    }
    for (int p = 0; p < a.parts; p++) {
      const RotaryPart& part = a.part[p];
      const T* in = (const T*)part.in + token * part.in_stride;
      int64_t row = token;
      if (cache && p == 1) {
        row = cache->slots[token * cache->slot_step];
        if (row < 0) break;
        keep_value<T>(cache->v, token, row, a.head_dim);
      }
      T* out = (T*)part.out + row * part.out_stride;
      for (int64_t h = 0; h < part.heads; h++) {
        if constexpr (INTERLEAVED)
          rotate_pairs(in, out, cos, sin, a.half);
        else if (order)
          rotate_halves<T, float>(in, out, cos, sin, a.half);
        else
          rotate_halves<T, T>(in, out, cos, sin, a.half);
        if (kept && in != out)
          __builtin_memcpy(out + 2 * a.half, in + 2 * a.half, kept * sizeof(T));
        in += part.in_head_stride;
        out += part.out_head_stride;
      }
    }
  }
}

template <class T>
void rotary(const RotaryArgs& a, int64_t begin, int64_t end) {
  if (a.interleaved) return rotate_tokens<T, true>(a, nullptr, begin, end);
  return rotate_tokens<T, false>(a, nullptr, begin, end);
}
template <class T>
void rotary_cache(const RotaryCacheArgs& a, int64_t begin, int64_t end) {
  if (a.rotary.interleaved) return rotate_tokens<T, true>(a.rotary, &a, begin, end);
  return rotate_tokens<T, false>(a.rotary, &a, begin, end);
}

}  // namespace
