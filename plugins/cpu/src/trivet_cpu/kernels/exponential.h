// exp of a vector, branch free.
#pragma once
#include "simd.h"

namespace {

// 2^n for integral n that fits the exponent field.
INLINE vf power_of_two(vi n) { return (vf)((n + 127) << 23); }

// exp(x) = 2^n p(r), |r| <= ln2/2, p of degree 6, fitted for the smallest relative error: within
// 2e-7. NaN in, NaN out.
INLINE vf exp_core(vf x, vf* n) {
  const vf magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  vf whole = fma(x, splat(1.44269504f), magic) - magic;
  *n = whole;
#if defined(__AVX2__)
  vf r = fma(whole, splat(-0.69314718f), x);
#else  // a product that is rounded: ln2 in two parts, of which the first has few bits
  vf r = fma(whole, splat(2.12194440e-4f), fma(whole, splat(-0.693359375f), x));
#endif
  vf p = splat(1.38434663e-3f);
  p = fma(p, r, splat(8.37431662e-3f));
  p = fma(p, r, splat(4.16680127e-2f));
  p = fma(p, r, splat(1.66664287e-1f));
  p = fma(p, r, splat(4.99999940e-1f));
  p = fma(p, r, splat(1.0f));
  return fma(p, r, splat(1.0f));
}

// For -125 <= x <= 89: infinity above, subnormals and zero below.
INLINE vf exponential_within(vf x) {
  vf whole, p = exp_core(x, &whole);
#if defined(__AVX512F__)
  return (vf)_mm512_scalef_ps((__m512)p, (__m512)whole);
#else
  vi n = __builtin_convertvector(whole, vi), half = n >> 1;
  return p * power_of_two(half) * power_of_two(n - half);
#endif
}
INLINE vf exponential(vf x) { return exponential_within(at_least(at_most(x, 89.0f), -110.0f)); }

// For x <= 0; results below the smallest normal number are zero.
INLINE vf exponential_of_negative(vf x) {
  vf n, y = exp_core(at_least(x, -87.0f), &n);
  y = y * power_of_two(__builtin_convertvector(n, vi));
  return select(x < splat(-87.0f), splat(0.0f), y);
}

}  // namespace
