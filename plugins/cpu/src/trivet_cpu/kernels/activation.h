// silu_and_mul: silu(first half of a row) times the second half, rounded once.
#pragma once
#include "exponential.h"
#include "pair.h"
#include "table.h"

namespace {

using trivet_cpu::GateArgs;

// g / (1 + exp(-g)): as written, -inf gives NaN and so does the reference.
INLINE vf silu(vf g) { return g / (exponential(-g) + 1.0f); }
INLINE Pair silu(Pair g) { return {silu(g.a), silu(g.b)}; }

template <class T>
void silu_and_mul(const GateArgs& a, int64_t begin, int64_t end) {
  const int64_t n = a.inter;
  for (int64_t row = begin; row < end; row++) {
    const T* gate = (const T*)a.x + row * a.x_stride;
    const T* up = gate + n;
    T* y = (T*)a.y + row * a.y_stride;
    int64_t i = 0;
    for (; i + 2 * VL <= n; i += 2 * VL)
      store_pair<FROM_BF16>(y + i, silu(load_pair<T>(gate + i)) * load_pair<T>(up + i));
    if (i < n) {
      Pair g = load_pair_first<T>(gate + i, n - i), u = load_pair_first<T>(up + i, n - i);
      store_pair_first(y + i, silu(g) * u, n - i);
    }
  }
}

}  // namespace
