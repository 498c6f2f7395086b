// layer_norm: two or three passes over rows that stay in the inner caches.
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
template <bool WEIGHT, bool BIAS>
INLINE Pair affine(Pair f, Pair w, Pair b) {
  if constexpr (WEIGHT && BIAS) return {fma(f.a, w.a, b.a), fma(f.b, w.b, b.b)};
  if constexpr (WEIGHT) return f * w;
  if constexpr (BIAS) return f + b;
  return f;
}

// ROWS rows, for which weight and bias are read once. While they are written the next ones are
// fetched: that pass leaves the way from the outer caches free.
template <class X, class W, bool WEIGHT, bool BIAS, int ROWS>
INLINE void layer_norm_rows(const LayerNormArgs& a, int64_t row) {
  constexpr Nan nan = (WEIGHT || BIAS) && !EVEN_ODD<W> ? FROM_FLOAT : FROM_BF16;
  const int64_t n = a.hidden;
  const W *weight = (const W*)a.weight, *bias = (const W*)a.bias;
  const X* x = (const X*)a.x + row * a.x_stride;
  X* y = (X*)a.y + row * a.y_stride;
  vf minus_mean[ROWS], inverse[ROWS];
  for (int r = 0; r < ROWS; r++) {
    const Moments m = moments(x + r * a.x_stride, n);
    minus_mean[r] = splat(-m.mean);
    inverse[r] = splat(1.0f / square_root(m.variance + a.eps));
  }
  int64_t i = 0;
  for (; i + 2 * VL <= n; i += 2 * VL) {
    Pair w{}, b{};
    if constexpr (WEIGHT) w = load_pair<X>(weight + i);
    if constexpr (BIAS) b = load_pair<X>(bias + i);
    for (int r = 0; r < ROWS; r++) {
      const X* from = x + r * a.x_stride + i;
      X* to = y + r * a.y_stride + i;
      read_soon(from, ROWS * a.x_stride * (int64_t)sizeof(X));
      write_soon(to, 512);
      Pair f = (load_pair<X>(from) + minus_mean[r]) * inverse[r];
      store_pair<nan>(to, affine<WEIGHT, BIAS>(f, w, b));
    }
  }
  if (i == n) return;
  Pair w{}, b{};
  if constexpr (WEIGHT) w = load_pair_first<X>(weight + i, n - i);
  if constexpr (BIAS) b = load_pair_first<X>(bias + i, n - i);
  for (int r = 0; r < ROWS; r++) {
    Pair f = load_pair_first<X>(x + r * a.x_stride + i, n - i);
    f = (f + minus_mean[r]) * inverse[r];
    store_pair_first(y + r * a.y_stride + i, affine<WEIGHT, BIAS>(f, w, b), n - i);
  }
}

template <class X, class W, bool WEIGHT, bool BIAS>
void layer_norm_of(const LayerNormArgs& a, int64_t begin, int64_t end) {
  for (; begin + 4 <= end; begin += 4) layer_norm_rows<X, W, WEIGHT, BIAS, 4>(a, begin);
  for (; begin < end; begin++) layer_norm_rows<X, W, WEIGHT, BIAS, 1>(a, begin);
}

template <class X, class W>
void layer_norm(const LayerNormArgs& a, int64_t begin, int64_t end) {
  if (a.weight && a.bias) return layer_norm_of<X, W, true, true>(a, begin, end);
  if (a.weight) return layer_norm_of<X, W, true, false>(a, begin, end);
  if (a.bias) return layer_norm_of<X, W, false, true>(a, begin, end);
  return layer_norm_of<X, W, false, false>(a, begin, end);
}

}  // namespace
