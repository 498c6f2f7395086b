// silu and gelu, alone and as the gate of a row: act(first half) times the second half. One
// template each over the activation; everything in float32, rounded once.
#pragma once
#include "exponential.h"
#include "pair.h"
#include "table.h"

namespace {

using trivet_cpu::ActivationArgs;

// g / (1 + exp(-g)): as written, -inf times 0 gives NaN and so does the reference.
struct Silu {
  static INLINE vf of(vf g) { return g * reciprocal(exponential(-g) + 1.0f); }
};

// x/2 (1 + tanh(u)) = x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3): nothing cancels,
// neither near zero nor where tanh is close to -1.
struct GeluTanh {
  static INLINE vf of(vf x) {
    vf minus_2u = x * fma(x * x, splat(-0.071354814f), splat(-1.5957691f));
    return x * reciprocal(exponential(minus_2u) + 1.0f);
  }
};

// x times the normal distribution function. 1 + erf(x / sqrt(2)) would cancel for negative x, so
// the tail beyond m = |x| is computed: exp(-m^2/2) s q(s - 1/2), s = 1 / (1 + 0.26 m), where q (of
// degree 8, fitted for the smallest relative error) is within 4e-8 up to m = 15. Where m is larger
// the tail is zero in float32.
struct Gelu {
  static INLINE vf of(vf x) {
    vf m = at_most(magnitude(x), 15.0f);
    vf s = reciprocal(fma(m, splat(0.26f), splat(1.0f)));
    vf t = s - 0.5f;
    vf q = splat(2.9960284e-2f);
    q = fma(q, t, splat(-3.0346733e-2f));
    q = fma(q, t, splat(-6.9889560e-2f));
    q = fma(q, t, splat(1.4645085e-2f));
    q = fma(q, t, splat(1.91507638e-1f));
    q = fma(q, t, splat(3.43352258e-1f));
    q = fma(q, t, splat(3.81132185e-1f));
    q = fma(q, t, splat(3.09965640e-1f));
    q = fma(q, t, splat(1.95600286e-1f)) * s;
    vf tail = exponential_within(m * m * -0.5f) * q;
    return x * select(x < splat(0.0f), tail, 1.0f - tail);
  }
};

template <class F>
INLINE Pair apply(Pair x) { return {F::of(x.a), F::of(x.b)}; }

constexpr int64_t READ_AHEAD = 4096, WRITE_AHEAD = 1024;  // bytes, by measurement

template <class F, class T>
void activation(const ActivationArgs& a, int64_t begin, int64_t end) {
  const int64_t n = a.width;
  for (int64_t row = begin; row < end; row++) {
    const T* x = (const T*)a.x + row * a.x_stride;
    T* y = (T*)a.y + row * a.y_stride;
    int64_t i = 0;
    for (; i + 2 * VL <= n; i += 2 * VL) {
      read_soon(x + i, READ_AHEAD);
      write_soon(y + i, WRITE_AHEAD);
      store_pair<FROM_BF16>(y + i, apply<F>(load_pair<T>(x + i)));
    }
    if (i < n) store_pair_first(y + i, apply<F>(load_pair_first<T>(x + i, n - i)), n - i);
  }
}

template <class F, class T>
void activation_and_mul(const ActivationArgs& a, int64_t begin, int64_t end) {
  const int64_t n = a.width;
  for (int64_t row = begin; row < end; row++) {
    const T* gate = (const T*)a.x + row * a.x_stride;
    const T* up = gate + n;
    T* y = (T*)a.y + row * a.y_stride;
    int64_t i = 0;
    for (; i + 2 * VL <= n; i += 2 * VL) {
      read_soon(gate + i, READ_AHEAD);
      read_soon(up + i, READ_AHEAD);
      write_soon(y + i, WRITE_AHEAD);
      store_pair<FROM_BF16>(y + i, apply<F>(load_pair<T>(gate + i)) * load_pair<T>(up + i));
    }
    if (i < n) {
      Pair g = load_pair_first<T>(gate + i, n - i), u = load_pair_first<T>(up + i, n - i);
      store_pair_first(y + i, apply<F>(g) * u, n - i);
    }
  }
}

}  // namespace
