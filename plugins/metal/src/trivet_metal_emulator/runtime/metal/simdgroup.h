// Barriers, and what the lanes of a simdgroup or a quad exchange.
#pragma once
#pragma clang system_header
#include "traits.h"

namespace metal {
enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4, mem_threadgroup_imageblock = 8, mem_object_data = 16 };
SHIM constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(uint(a) | uint(b)); }
SHIM constexpr mem_flags operator&(mem_flags a, mem_flags b) { return mem_flags(uint(a) & uint(b)); }
SHIM void threadgroup_barrier(mem_flags f, SITE) { trivet_msl_wait(trivet_msl::BARRIER, uint(f), nullptr, 0, PASS_SITE); }
SHIM void simdgroup_barrier(mem_flags f, SITE) { trivet_msl_wait(trivet_msl::SIMD_BARRIER, uint(f), nullptr, 0, PASS_SITE); }
}  // namespace metal

namespace trivet_msl {
static inline QUIET u32 lane() { return trivet_msl_current->ids.lane; }

template <class T> static inline QUIET Snapshot& exchanged(const T& x, SITE) {
  static_assert(sizeof(T) <= EXCHANGE, "lanes exchange at most 32 bytes");
  trivet_msl_wait(SIMD, 0, &x, sizeof(T), PASS_SITE);
  return *trivet_msl_current->snapshot;
}

template <class T> static inline QUIET T value_of(const Snapshot& s, u32 lane) {
  T x;
  __builtin_memcpy(&x, s.value[lane], sizeof(T));
  return x;
}

// The same result for all: the first lane that is resumed computes it. Neighbours first, as in a tree.
template <class T, class F> static inline QUIET T reduced(T x, F f, u32 lanes, SITE) {
  Snapshot& s = exchanged<T>(x, PASS_SITE);
  T out;
  bool whole = lanes == 0xffffffffu;
  if (!whole || !s.shared_ready) {
    T list[WIDTH];
    u32 n = 0;
    for (u32 i = 0; i < WIDTH; i++)
      if (s.mask & lanes & 1u << i) list[n++] = value_of<T>(s, i);
    for (; n > 1; n = (n + 1) / 2)
      for (u32 i = 0; i < (n + 1) / 2; i++) list[i] = 2 * i + 1 < n ? f(list[2 * i], list[2 * i + 1]) : list[2 * i];
    out = list[0];
    if (whole) {
      __builtin_memcpy(s.shared, &out, sizeof(T));
      s.shared_ready = true;
    }
  } else __builtin_memcpy(&out, s.shared, sizeof(T));
  return out;
}

template <class T, class F> static inline QUIET T scanned(T x, F f, T identity, bool inclusive, u32 lanes, SITE) {
  Snapshot& s = exchanged<T>(x, PASS_SITE);
  u32 me = lane(), end = inclusive ? me + 1 : me;
  T out = identity;
  for (u32 i = 0; i < end; i++)
    if (s.mask & lanes & 1u << i) out = f(out, value_of<T>(s, i));
  return out;
}

template <class T> static inline QUIET T fetched(T x, u32 from, SITE) {
  Snapshot& s = exchanged<T>(x, PASS_SITE);
  if (from >= WIDTH || !(s.mask >> from & 1)) {
    trivet_msl_report(INACTIVE_LANE, i64(from), site_file, site_line);
    return x;
  }
  return value_of<T>(s, from);
}

// fetched, with what a lane gets for which there is no source
template <class T> static inline QUIET T fetched_or(T x, T otherwise, bool there, u32 from, SITE) {
  T got = fetched<T>(x, there ? from : lane(), PASS_SITE);
  return there ? got : otherwise;
}

static inline QUIET u64 voted(bool x, u32 lanes, SITE) {
  u8 mine = x;
  Snapshot& s = exchanged<u8>(mine, PASS_SITE);
  u64 out = 0;
  for (u32 i = 0; i < WIDTH; i++)
    if ((s.mask & lanes & 1u << i) && s.value[i][0]) out |= 1ul << i;
  return out;
}
static inline QUIET u32 active(SITE) { return exchanged<u8>(u8(0), PASS_SITE).mask; }
static inline QUIET u32 quad_lanes() { return 0xfu << (lane() & ~3u); }
constexpr u32 ALL = 0xffffffffu;

template <class T, class F> SHIM T bitwise(T a, T b, F f) {
  if constexpr (metal::is_same_v<T, float>) return __builtin_bit_cast(float, f(__builtin_bit_cast(u32, a), __builtin_bit_cast(u32, b)));
  else return T(f(a, b));
}
}  // namespace trivet_msl

namespace metal {
struct simd_vote {
  typedef ulong vote_t;
  vote_t bits;
  METHOD explicit constexpr simd_vote(vote_t v = 0) : bits(v) {}
  METHOD explicit constexpr operator vote_t() const { return bits; }
  METHOD constexpr bool all() const { return bits == 0xffffffffu; }
  METHOD constexpr bool any() const { return bits != 0; }
};
struct quad_vote {
  typedef uint vote_t;
  vote_t bits;
  METHOD explicit constexpr quad_vote(vote_t v = 0) : bits(v) {}
  METHOD explicit constexpr operator vote_t() const { return bits; }
  METHOD constexpr bool all() const { return bits == 0xfu; }
  METHOD constexpr bool any() const { return bits != 0; }
};

#define TRIVET_REDUCE(name, ...)                                                                                        \
  template <class A> SHIM auto simd_##name(A x, SITE) { typedef trivet_msl::wide_t<A> T; return trivet_msl::reduced<T>(trivet_msl::wide(x), [](T a, T b) -> T { return __VA_ARGS__; }, trivet_msl::ALL, PASS_SITE); } \
  template <class A> SHIM auto quad_##name(A x, SITE) { typedef trivet_msl::wide_t<A> T; return trivet_msl::reduced<T>(trivet_msl::wide(x), [](T a, T b) -> T { return __VA_ARGS__; }, trivet_msl::quad_lanes(), PASS_SITE); }
TRIVET_REDUCE(sum, T(a + b))
TRIVET_REDUCE(product, T(a * b))
TRIVET_REDUCE(and, trivet_msl::bitwise(a, b, [](auto x, auto y) { return x & y; }))
TRIVET_REDUCE(or, trivet_msl::bitwise(a, b, [](auto x, auto y) { return x | y; }))
TRIVET_REDUCE(xor, trivet_msl::bitwise(a, b, [](auto x, auto y) { return x ^ y; }))
#undef TRIVET_REDUCE
}  // namespace metal

namespace trivet_msl {
template <class T> SHIM T larger(T a, T b);
template <class T> SHIM T smaller(T a, T b);
}

namespace metal {
#define TRIVET_REDUCE(name, f)                                                                                         \
  template <class A> SHIM auto simd_##name(A x, SITE) { typedef trivet_msl::wide_t<A> T; return trivet_msl::reduced<T>(trivet_msl::wide(x), [](T a, T b) -> T { return f(a, b); }, trivet_msl::ALL, PASS_SITE); } \
  template <class A> SHIM auto quad_##name(A x, SITE) { typedef trivet_msl::wide_t<A> T; return trivet_msl::reduced<T>(trivet_msl::wide(x), [](T a, T b) -> T { return f(a, b); }, trivet_msl::quad_lanes(), PASS_SITE); }
TRIVET_REDUCE(max, trivet_msl::larger)
TRIVET_REDUCE(min, trivet_msl::smaller)
#undef TRIVET_REDUCE

#define TRIVET_SCAN(name, inclusive, identity, ...)                                                                   \
  template <class A> SHIM auto simd_prefix_##name(A x, SITE) { typedef trivet_msl::wide_t<A> T; return trivet_msl::scanned<T>(trivet_msl::wide(x), [](T a, T b) -> T { return __VA_ARGS__; }, T(identity), inclusive, trivet_msl::ALL, PASS_SITE); } \
  template <class A> SHIM auto quad_prefix_##name(A x, SITE) { typedef trivet_msl::wide_t<A> T; return trivet_msl::scanned<T>(trivet_msl::wide(x), [](T a, T b) -> T { return __VA_ARGS__; }, T(identity), inclusive, trivet_msl::quad_lanes(), PASS_SITE); }
TRIVET_SCAN(inclusive_sum, true, 0, T(a + b))
TRIVET_SCAN(exclusive_sum, false, 0, T(a + b))
TRIVET_SCAN(inclusive_product, true, 1, T(a * b))
TRIVET_SCAN(exclusive_product, false, 1, T(a * b))
#undef TRIVET_SCAN

#define TRIVET_SHUFFLE(kind, width, base)                                                                              \
  template <class A> SHIM auto kind##_shuffle(A given, ushort from, SITE) { typedef trivet_msl::wide_t<A> T; T x = trivet_msl::wide(given); return trivet_msl::fetched<T>(x, base + from, PASS_SITE); } \
  template <class A> SHIM auto kind##_broadcast(A given, ushort from, SITE) { typedef trivet_msl::wide_t<A> T; T x = trivet_msl::wide(given); return trivet_msl::fetched<T>(x, base + from, PASS_SITE); } \
  template <class A> SHIM auto kind##_shuffle_xor(A given, ushort mask, SITE) { typedef trivet_msl::wide_t<A> T; T x = trivet_msl::wide(given); return trivet_msl::fetched<T>(x, trivet_msl::lane() ^ mask, PASS_SITE); } \
  template <class A> SHIM auto kind##_shuffle_down(A given, ushort n, SITE) { typedef trivet_msl::wide_t<A> T; T x = trivet_msl::wide(given); uint at = trivet_msl::lane() - (base) + n; return trivet_msl::fetched_or<T>(x, x, at < width, base + at, PASS_SITE); } \
  template <class A> SHIM auto kind##_shuffle_up(A given, ushort n, SITE) { typedef trivet_msl::wide_t<A> T; T x = trivet_msl::wide(given); uint at = trivet_msl::lane() - (base); return trivet_msl::fetched_or<T>(x, x, at >= n, base + at - n, PASS_SITE); } \
  template <class A> SHIM auto kind##_shuffle_rotate_down(A given, ushort n, SITE) { typedef trivet_msl::wide_t<A> T; T x = trivet_msl::wide(given); return trivet_msl::fetched<T>(x, base + (trivet_msl::lane() - (base) + n) % width, PASS_SITE); } \
  template <class A> SHIM auto kind##_shuffle_rotate_up(A given, ushort n, SITE) { typedef trivet_msl::wide_t<A> T; T x = trivet_msl::wide(given); return trivet_msl::fetched<T>(x, base + (trivet_msl::lane() - (base) + width - n % width) % width, PASS_SITE); } \
  template <class A> SHIM auto kind##_shuffle_and_fill_down(A x, A fill, ushort n, ushort modulo = width, SITE) { uint at = trivet_msl::lane() % modulo + n; auto a = kind##_shuffle(x, ushort((trivet_msl::lane() - (base)) / modulo * modulo + at % modulo), PASS_SITE), b = kind##_shuffle(fill, ushort((trivet_msl::lane() - (base)) / modulo * modulo + at % modulo), PASS_SITE); return at < modulo ? a : b; } \
  template <class A> SHIM auto kind##_shuffle_and_fill_up(A x, A fill, ushort n, ushort modulo = width, SITE) { uint at = trivet_msl::lane() % modulo, from = (trivet_msl::lane() - (base)) / modulo * modulo + (at + modulo - n % modulo) % modulo; auto a = kind##_shuffle(x, ushort(from), PASS_SITE), b = kind##_shuffle(fill, ushort(from), PASS_SITE); return at >= n ? a : b; }
TRIVET_SHUFFLE(simd, 32u, 0u)
TRIVET_SHUFFLE(quad, 4u, (trivet_msl::lane() & ~3u))
#undef TRIVET_SHUFFLE

template <class A> static inline QUIET auto simd_broadcast_first(A given, SITE) {
  typedef trivet_msl::wide_t<A> T;
  T x = trivet_msl::wide(given);
  trivet_msl::Snapshot& s = trivet_msl::exchanged<T>(x, PASS_SITE);
  return trivet_msl::value_of<T>(s, __builtin_ctz(s.mask));
}
template <class A> static inline QUIET auto quad_broadcast_first(A given, SITE) {
  typedef trivet_msl::wide_t<A> T;
  T x = trivet_msl::wide(given);
  trivet_msl::Snapshot& s = trivet_msl::exchanged<T>(x, PASS_SITE);
  return trivet_msl::value_of<T>(s, __builtin_ctz(s.mask & trivet_msl::quad_lanes()));
}
SHIM bool simd_is_first(SITE) { return trivet_msl::lane() == (uint)__builtin_ctz(trivet_msl::active(PASS_SITE)); }
SHIM bool quad_is_first(SITE) { return trivet_msl::lane() == (uint)__builtin_ctz(trivet_msl::active(PASS_SITE) & trivet_msl::quad_lanes()); }
SHIM simd_vote simd_ballot(bool x, SITE) { return simd_vote(trivet_msl::voted(x, trivet_msl::ALL, PASS_SITE)); }
SHIM simd_vote simd_active_threads_mask(SITE) { return simd_vote(trivet_msl::voted(true, trivet_msl::ALL, PASS_SITE)); }
SHIM bool simd_any(bool x, SITE) { return trivet_msl::voted(x, trivet_msl::ALL, PASS_SITE) != 0; }
SHIM bool simd_all(bool x, SITE) { return trivet_msl::voted(!x, trivet_msl::ALL, PASS_SITE) == 0; }
SHIM bool quad_any(bool x, SITE) { return trivet_msl::voted(x, trivet_msl::quad_lanes(), PASS_SITE) != 0; }
SHIM bool quad_all(bool x, SITE) { return trivet_msl::voted(!x, trivet_msl::quad_lanes(), PASS_SITE) == 0; }
SHIM quad_vote quad_ballot(bool x, SITE) { return quad_vote(uint(trivet_msl::voted(x, trivet_msl::quad_lanes(), PASS_SITE) >> (trivet_msl::lane() & ~3u))); }
SHIM quad_vote quad_active_threads_mask(SITE) { return quad_ballot(true, PASS_SITE); }
SHIM ushort get_simd_lane_id() { return ushort(trivet_msl::lane()); }
}  // namespace metal
