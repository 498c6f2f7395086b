// rms_norm and fused_add_rms_norm: two passes over a row that stays in the first-level cache.
#pragma once
#include "pair.h"
#include "table.h"

namespace {

using trivet_cpu::NormArgs;

// Four independent accumulators; their order depends on the length of a row and nothing else.
struct SumOfSquares {
  vf part[4] = {};
  INLINE void add(Pair v, int j) {
    part[j] = fma(v.a, v.a, part[j]);
    part[j + 1] = fma(v.b, v.b, part[j + 1]);
  }
  INLINE float mean(int64_t count) const {
    return sum_of_lanes((part[0] + part[1]) + (part[2] + part[3])) / (float)count;
  }
};

template <class X>
INLINE float mean_square(const X* x, int64_t hidden) {
  SumOfSquares s;
  int64_t i = 0;
  for (; i + 4 * VL <= hidden; i += 4 * VL) {
    s.add(load_pair<X>(x + i), 0);
    s.add(load_pair<X>(x + i + 2 * VL), 2);
  }
  if (i + 2 * VL <= hidden) {
    s.add(load_pair<X>(x + i), 0);
    i += 2 * VL;
  }
  if (i < hidden) s.add(load_pair_first<X>(x + i, hidden - i), 2);
  return s.mean(hidden);
}

// The pass over x and residual: writes their sum and accumulates the squares of what was written.
template <class X>
INLINE float add_and_mean_square(const X* x, const X* residual, X* sum, int64_t hidden) {
  SumOfSquares s;
  int64_t i = 0;
  for (; i + 4 * VL <= hidden; i += 4 * VL)
    for (int j = 0; j < 4; j += 2) {
      int64_t k = i + j * VL;
      s.add(store_pair_rounded(sum + k, load_pair<X>(x + k) + load_pair<X>(residual + k)), j);
    }
  if (i + 2 * VL <= hidden) {
    s.add(store_pair_rounded(sum + i, load_pair<X>(x + i) + load_pair<X>(residual + i)), 0);
    i += 2 * VL;
  }
  if (i < hidden) {
    int64_t n = hidden - i;
    Pair v = load_pair_first<X>(x + i, n) + load_pair_first<X>(residual + i, n);
    store_pair_first(sum + i, v, n);
    s.add(rounded<X>(v), 2);
  }
  return s.mean(hidden);
}

// The sums behind the elements that the mean square is taken over.
template <class X>
INLINE void add_rest(const X* x, const X* residual, X* sum, int64_t i, int64_t hidden) {
  for (; i + 2 * VL <= hidden; i += 2 * VL)
    store_pair_rounded(sum + i, load_pair<X>(x + i) + load_pair<X>(residual + i));
  if (i < hidden) {
    int64_t n = hidden - i;
    store_pair_first(sum + i, load_pair_first<X>(x + i, n) + load_pair_first<X>(residual + i, n),
                     n);
  }
}

// How f = x * rsqrt(...) meets the weight; the order of rounding is part of the operator.
template <class X, class W, bool IN_FLOAT32, bool OFFSET>
INLINE Pair weighted(Pair f, Pair w, vf offset) {
  if constexpr (OFFSET) w = IN_FLOAT32 ? w + offset : rounded<W>(w + offset);
  return (IN_FLOAT32 ? f : rounded<X>(f)) * w;
}

template <class X, class W, bool IN_FLOAT32, bool OFFSET>
INLINE void scale_row(const X* x, const W* w, X* y, int64_t hidden, float inverse, float offset) {
  constexpr Nan nan = EVEN_ODD<W> ? FROM_BF16 : FROM_FLOAT;
  const vf r = splat(inverse), o = splat(offset);
  int64_t i = 0;
  for (; i + 2 * VL <= hidden; i += 2 * VL) {
    Pair f = load_pair<X>(x + i) * r;
    store_pair<nan>(y + i, weighted<X, W, IN_FLOAT32, OFFSET>(f, load_pair<X>(w + i), o));
  }
  if (i < hidden) {
    int64_t n = hidden - i;
    Pair f = load_pair_first<X>(x + i, n) * r;
    Pair v = load_pair_first<X>(w + i, n);
    store_pair_first(y + i, weighted<X, W, IN_FLOAT32, OFFSET>(f, v, o), n);
  }
}

template <class X, class W, bool IN_FLOAT32, bool OFFSET>
void norm_rows(const NormArgs& a, int64_t begin, int64_t end) {
  const X* x = (const X*)a.x + begin * a.x_stride;
  X* y = (X*)a.y + begin * a.y_stride;
  const W* w = (const W*)a.weight;
  for (int64_t row = begin; row < end; row++, x += a.x_stride, y += a.y_stride) {
    float inverse = 1.0f / square_root(mean_square(x, a.seen) + a.eps);
    scale_row<X, W, IN_FLOAT32, OFFSET>(x, w, y, a.hidden, inverse, a.offset);
  }
}

template <class X, class W, bool IN_FLOAT32, bool OFFSET>
void add_norm_rows(const NormArgs& a, int64_t begin, int64_t end) {
  const X* x = (const X*)a.x + begin * a.x_stride;
  const X* residual = (const X*)a.residual + begin * a.residual_stride;
  X* sum = (X*)a.sum + begin * a.sum_stride;
  X* y = (X*)a.y + begin * a.y_stride;
  const W* w = (const W*)a.weight;
  for (int64_t row = begin; row < end; row++) {
    float inverse = 1.0f / square_root(add_and_mean_square(x, residual, sum, a.seen) + a.eps);
    if (a.seen < a.hidden) add_rest(x, residual, sum, a.seen, a.hidden);
    scale_row<X, W, IN_FLOAT32, OFFSET>(sum, w, y, a.hidden, inverse, a.offset);
    x += a.x_stride;
    residual += a.residual_stride;
    sum += a.sum_stride;
    y += a.y_stride;
  }
}

// Where everything is a float nothing is rounded, and both orders are one.
template <class X, class W>
void rms_norm(const NormArgs& a, int64_t begin, int64_t end) {
  constexpr bool always = sizeof(X) == 4 && sizeof(W) == 4;
  if (a.weight_in_float32 || always) {
    if (a.offset != 0.0f) return norm_rows<X, W, true, true>(a, begin, end);
    return norm_rows<X, W, true, false>(a, begin, end);
  }
  if (a.offset != 0.0f) return norm_rows<X, W, always, true>(a, begin, end);
  return norm_rows<X, W, always, false>(a, begin, end);
}
template <class X, class W>
void fused_add_rms_norm(const NormArgs& a, int64_t begin, int64_t end) {
  constexpr bool always = sizeof(X) == 4 && sizeof(W) == 4;
  if (a.weight_in_float32 || always) {
    if (a.offset != 0.0f) return add_norm_rows<X, W, true, true>(a, begin, end);
    return add_norm_rows<X, W, true, false>(a, begin, end);
  }
  if (a.offset != 0.0f) return add_norm_rows<X, W, always, true>(a, begin, end);
  return add_norm_rows<X, W, always, false>(a, begin, end);
}

}  // namespace
