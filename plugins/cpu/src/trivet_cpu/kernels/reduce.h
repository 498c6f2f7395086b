// Reductions over ranks: out[i] = in[0][i] + in[1][i] + ... in the order of ranks, one element at a
// time, so that the result depends neither on how much is reduced at once nor on the level. Narrow
// floats are summed as floats and rounded once.
#pragma once
#include "simd.h"
#include "table.h"

namespace {

struct e4m3 {
  uint8_t bits;
};
struct e5m2 {
  uint8_t bits;
};
typedef uint8_t vb __attribute__((vector_size(VL)));

INLINE vu bytes_of(const void* p) {
  vb b;
  __builtin_memcpy(&b, p, sizeof b);
  return __builtin_convertvector(b, vu);
}
INLINE void store_bytes(void* p, vu x) {
  const vb b = __builtin_convertvector(x, vb);
  __builtin_memcpy(p, &b, sizeof b);
}
INLINE vu pick(vi mask, vu yes, vu no) { return (vu)select(mask, (vf)yes, (vf)no); }

// Four bits of exponent, no infinity; all bits set is the NaN.
INLINE vf load(const e4m3* p) {
  const vu u = bytes_of(p), m = u & 0x7fu;
  const vf small = __builtin_convertvector((vi)m, vf) * 0x1p-9f;
  vu wide = pick((vi)m < 8, (vu)small, (m << 20) + (120u << 23));
  wide |= pick((vi)m == 0x7f, splat_bits(0x7fc00000u), splat_bits(0));
  return (vf)(wide | (u & 0x80u) << 24);
}
INLINE void store(e4m3* p, vf x) {
  const vu u = (vu)x, m = u & 0x7fffffffu;
  const vu small = (vu)((vf)m + 0x1p14f) - (141u << 23);  // the sum is a multiple of 2^-9
  vu y = (m - (120u << 23) + (splat_bits(0x7ffffu) + (m >> 20 & 1u))) >> 20;
  y = pick((vi)m < (121 << 23), small, y);
  y = pick((vi)m > 0x43e00000, splat_bits(0x7e), y);  // saturates, as torch from 2.13 on
  y = pick((vi)m > 0x7f800000, splat_bits(0x7f), y);
  store_bytes(p, y | (u >> 24 & 0x80u));
}
// The upper half of a float16.
INLINE vf load(const e5m2* p) {
  const vu u = bytes_of(p);
  return from_half(__builtin_convertvector(u << 8, vh));
}
INLINE void store(e5m2* p, vf x) {
  const vu u = (vu)x, m = u & 0x7fffffffu;
  const vu small = (vu)((vf)m + 0x1p7f) - (134u << 23);  // the sum is a multiple of 2^-16
  vu y = (m - (112u << 23) + (splat_bits(0xfffffu) + (m >> 21 & 1u))) >> 21;
  y = pick((vi)m < (113 << 23), small, y);
  y = pick((vi)m >= (143 << 23), splat_bits(0x7c), y);
  y = pick((vi)m > 0x7f800000, splat_bits(0x7f), y);
  store_bytes(p, y | (u >> 24 & 0x80u));
}

// How elements of a type are carried while they are reduced.
template <class T>
struct AsFloats {
  using Element = T;
  using Vector = vf;
  static constexpr int LANES = VL;
  static INLINE vf get(const T* p) { return load(p); }
  static INLINE void put(T* p, vf x) { store(p, x); }
  static INLINE vf choose(vi mask, vf yes, vf no) { return select(mask, yes, no); }
};
template <class T, class Bits>
struct AsThemselves {
  using Element = T;
  typedef T Vector __attribute__((vector_size(4 * VL)));
  typedef Bits Mask __attribute__((vector_size(4 * VL)));
  static constexpr int LANES = 4 * VL / (int)sizeof(T);
  static INLINE Vector get(const T* p) {
    Vector x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
  }
  static INLINE void put(T* p, Vector x) { __builtin_memcpy(p, &x, sizeof x); }
  static INLINE Vector choose(Mask mask, Vector yes, Vector no) {
    return (Vector)(((Mask)yes & mask) | ((Mask)no & ~mask));
  }
};

struct Sum {
  template <class C, class V>
  static INLINE V join(V a, V b) { return a + b; }
};
struct Product {
  template <class C, class V>
  static INLINE V join(V a, V b) { return a * b; }
};
// Of zeros of both signs, that of the higher rank. A NaN wins.
struct Min {
  template <class C, class V>
  static INLINE V join(V a, V b) { return C::choose((a < b) | (a != a), a, b); }
};
struct Max {
  template <class C, class V>
  static INLINE V join(V a, V b) { return C::choose((a > b) | (a != a), a, b); }
};
struct And {
  template <class C, class V>
  static INLINE V join(V a, V b) { return a & b; }
};
struct Or {
  template <class C, class V>
  static INLINE V join(V a, V b) { return a | b; }
};
struct Xor {
  template <class C, class V>
  static INLINE V join(V a, V b) { return a ^ b; }
};

template <class C, class Op, int N>
INLINE void reduce_vectors(typename C::Element* out, const typename C::Element* const* in,
                           int ranks, int64_t at) {
  typename C::Vector a[N];
  for (int k = 0; k < N; k++) a[k] = C::get(in[0] + at + k * C::LANES);
  for (int r = 1; r < ranks; r++) {
    const typename C::Element* p = in[r] + at;
    for (int k = 0; k < N; k++) a[k] = Op::template join<C>(a[k], C::get(p + k * C::LANES));
  }
  for (int k = 0; k < N; k++) C::put(out + at + k * C::LANES, a[k]);
}

// out may be one of the inputs.
template <class C, class Op>
void reduce(void* out, const void* const* in, int ranks, int64_t n) {
  using T = typename C::Element;
  T* to = (T*)out;
  const T* const* from = (const T* const*)in;
  int64_t i = 0;
  for (; i + 4 * C::LANES <= n; i += 4 * C::LANES)
    reduce_vectors<C, Op, 4>(to, from, ranks, i);
  for (; i + C::LANES <= n; i += C::LANES) reduce_vectors<C, Op, 1>(to, from, ranks, i);
  if (i == n) return;
  T part[C::LANES] = {};
  __builtin_memcpy(part, from[0] + i, (uint64_t)(n - i) * sizeof(T));
  typename C::Vector a = C::get(part);
  for (int r = 1; r < ranks; r++) {
    __builtin_memcpy(part, from[r] + i, (uint64_t)(n - i) * sizeof(T));
    a = Op::template join<C>(a, C::get(part));
  }
  C::put(part, a);
  __builtin_memcpy(to + i, part, (uint64_t)(n - i) * sizeof(T));
}

using Signed8 = AsThemselves<int8_t, int8_t>;
using Signed16 = AsThemselves<int16_t, int16_t>;
using Signed32 = AsThemselves<int32_t, int32_t>;
using Signed64 = AsThemselves<int64_t, int64_t>;
using Unsigned8 = AsThemselves<uint8_t, int8_t>;
using Unsigned16 = AsThemselves<uint16_t, int16_t>;
using Unsigned32 = AsThemselves<uint32_t, int32_t>;
using Unsigned64 = AsThemselves<uint64_t, int64_t>;
using Doubles = AsThemselves<double, int64_t>;

}  // namespace

// In the order of trivet_cpu::Number. What does not compare is the same for signed and unsigned.
#define FLOATS(OP)                                                                            \
  reduce<AsFloats<float>, OP>, reduce<AsFloats<bf16>, OP>, reduce<AsFloats<f16>, OP>,         \
      reduce<AsFloats<e4m3>, OP>, reduce<AsFloats<e5m2>, OP>, reduce<Doubles, OP>
#define NO_FLOATS nullptr, nullptr, nullptr, nullptr, nullptr, nullptr
#define SIGNED(OP) \
  reduce<Signed8, OP>, reduce<Signed16, OP>, reduce<Signed32, OP>, reduce<Signed64, OP>
#define UNSIGNED(OP) \
  reduce<Unsigned8, OP>, reduce<Unsigned16, OP>, reduce<Unsigned32, OP>, reduce<Unsigned64, OP>
#define REDUCTIONS_OVER_RANKS                       \
  {{FLOATS(Sum), UNSIGNED(Sum), UNSIGNED(Sum)},             \
   {FLOATS(Product), UNSIGNED(Product), UNSIGNED(Product)}, \
   {FLOATS(Max), SIGNED(Max), UNSIGNED(Max)},               \
   {FLOATS(Min), SIGNED(Min), UNSIGNED(Min)},               \
   {NO_FLOATS, UNSIGNED(And), UNSIGNED(And)},               \
   {NO_FLOATS, UNSIGNED(Or), UNSIGNED(Or)},                 \
   {NO_FLOATS, UNSIGNED(Xor), UNSIGNED(Xor)}}
