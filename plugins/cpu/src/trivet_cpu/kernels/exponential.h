// exp of a vector, branch free.
#pragma once
#include "simd.h"

namespace {

// 2^n for integral n that fits the exponent field.
INLINE vf power_of_two(vi n) { return (vf)((n + 127) << 23); }

// exp(x) = 2^n p(r), |r| <= ln2/2, p of degree 7: relative error below 2e-7. NaN in, NaN out.
INLINE vf exp_core(vf x, vi* n) {
  const vf magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  vf shifted = fma(x, splat(1.44269504f), magic);
  vf whole = shifted - magic;
  *n = (vi)shifted - (vi)magic;
  vf r = fma(whole, splat(-0.693359375f), x);
  r = fma(whole, splat(2.12194440e-4f), r);
  vf p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  return fma(p, r * r, r) + 1.0f;
}

// The full range: infinity above, subnormals and zero below.
INLINE vf exponential(vf x) {
  x = at_least(at_most(x, 89.0f), -110.0f);
  vi n;
  vf p = exp_core(x, &n);
#if defined(__AVX512F__)
  return (vf)_mm512_scalef_ps((__m512)p, _mm512_cvtepi32_ps((__m512i)n));
#else
  vi half = n >> 1;
  return p * power_of_two(half) * power_of_two(n - half);
#endif
}

// For x <= 0; results below the smallest normal number are zero.
INLINE vf exponential_of_negative(vf x) {
  vi n;
  vf y = exp_core(at_least(x, -87.0f), &n);
  y = y * power_of_two(n);
  return select(x < splat(-87.0f), splat(0.0f), y);
}

}  // namespace
