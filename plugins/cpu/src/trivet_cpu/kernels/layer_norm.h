// layer_norm: two or three passes over a row that stays in the first-level cache.
#pragma once
#include "pair.h"
#include "table.h"

namespace {

using trivet_cpu::LayerNormArgs;

// One in the first n places and zero after them, in the order of a pair.
template <class X>
INLINE Pair ones_first(int64_t n) {
  X one[2 * VL];
  for (int64_t i = 0; i < n; i++) store_one(one + i, 1.0f);
  return load_pair_first<X>(one, n);
}

struct Moments {
  float mean, variance;
};

// Mean and mean square of x - shift. Four accumulators each; the order of additions depends on
// the length of a row and nothing else.
template <class X>
INLINE Moments moments_about(const X* x, int64_t n, float shift) {
  const vf minus = splat(-shift);
  vf sum[4] = {}, square[4] = {};
  auto add = [&sum, &square](Pair d, int j) {
    sum[j] += d.a, sum[j + 1] += d.b;
    square[j] = fma(d.a, d.a, square[j]), square[j + 1] = fma(d.b, d.b, square[j + 1]);
  };
  int64_t i = 0;
  for (; i + 4 * VL <= n; i += 4 * VL)
    for (int j = 0; j < 4; j += 2) add(load_pair<X>(x + i + j * VL) + minus, j);
  if (i + 2 * VL <= n) {
    add(load_pair<X>(x + i) + minus, 0);
    i += 2 * VL;
  }
  if (i < n) add((load_pair_first<X>(x + i, n - i) + minus) * ones_first<X>(n - i), 2);
  const float count = (float)n;
  return {sum_of_lanes((sum[0] + sum[1]) + (sum[2] + sum[3])) / count,
          sum_of_lanes((square[0] + square[1]) + (square[2] + square[3])) / count};
}

// One pass where the mean is small beside the deviations, as in most rows of a model; elsewhere
// the difference of the squares would cancel, and a second pass takes the mean off first.
template <class X>
INLINE Moments moments(const X* x, int64_t n) {
  Moments m = moments_about(x, n, 0.0f);
  const float square_of_mean = m.mean * m.mean;
  if (__builtin_expect(2.0f * square_of_mean <= m.variance && m.variance <= 3e38f, 1))
    return {m.mean, m.variance - square_of_mean};
  const Moments rest = moments_about(x, n, m.mean);
  if (!(rest.variance <= 3e38f)) return {m.mean, rest.variance};
  return {m.mean + rest.mean, rest.variance - rest.mean * rest.mean};
}

// (x - mean) * inverse * weight + bias; an absent operand is null and is not read.
template <class W, class X, bool WEIGHT, bool BIAS, bool WHOLE>
INLINE Pair normalised(Pair d, const W* w, const W* b, float inverse, int64_t n) {
  auto load = [n](const W* p) {
    return WHOLE ? load_pair<X>(p) : load_pair_first<X>(p, n);
  };
  Pair f = d * splat(inverse);
  if constexpr (WEIGHT && BIAS) {
    Pair v = load(w), c = load(b);
    return {fma(f.a, v.a, c.a), fma(f.b, v.b, c.b)};
  }
  if constexpr (WEIGHT) return f * load(w);
  if constexpr (BIAS) return f + load(b);
  return f;
}

template <class X, class W, bool WEIGHT, bool BIAS>
void layer_norm_rows(const LayerNormArgs& a, int64_t begin, int64_t end) {
  constexpr Nan nan = (WEIGHT || BIAS) && sizeof(W) == 4 ? FROM_FLOAT : FROM_BF16;
  const int64_t n = a.hidden;
  const W *w = (const W*)a.weight, *b = (const W*)a.bias;
  for (int64_t row = begin; row < end; row++) {
    const X* x = (const X*)a.x + row * a.x_stride;
    X* y = (X*)a.y + row * a.y_stride;
    const Moments m = moments(x, n);
    const vf minus_mean = splat(-m.mean);
    const float inverse = 1.0f / square_root(m.variance + a.eps);
    int64_t i = 0;
    for (; i + 2 * VL <= n; i += 2 * VL)
      store_pair<nan>(y + i, normalised<W, X, WEIGHT, BIAS, true>(load_pair<X>(x + i) + minus_mean,
                                                                 w + i, b + i, inverse, 0));
    if (i < n)
      store_pair_first(y + i, normalised<W, X, WEIGHT, BIAS, false>(
                                  load_pair_first<X>(x + i, n - i) + minus_mean, w + i, b + i,
                                  inverse, n - i), n - i);
  }
}

template <class X, class W>
void layer_norm(const LayerNormArgs& a, int64_t begin, int64_t end) {
  if (a.weight && a.bias) return layer_norm_rows<X, W, true, true>(a, begin, end);
  if (a.weight) return layer_norm_rows<X, W, true, false>(a, begin, end);
  if (a.bias) return layer_norm_rows<X, W, false, true>(a, begin, end);
  return layer_norm_rows<X, W, false, false>(a, begin, end);
}

}  // namespace
