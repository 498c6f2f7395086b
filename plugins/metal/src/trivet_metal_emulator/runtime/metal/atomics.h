// metal_atomic: one thread runs at a time, so a plain access is atomic; the checker is told of it.
#pragma once
#pragma clang system_header
#include "math.h"

namespace metal {
enum memory_order { memory_order_relaxed, memory_order_acquire, memory_order_release, memory_order_acq_rel, memory_order_seq_cst };
enum thread_scope { thread_scope_thread, thread_scope_simdgroup, thread_scope_threadgroup, thread_scope_device };
template <class T> struct _atomic { T value; };
template <class T> using atomic = _atomic<T>;
typedef _atomic<int> atomic_int;
typedef _atomic<uint> atomic_uint;
typedef _atomic<bool> atomic_bool;
typedef _atomic<float> atomic_float;
typedef _atomic<ulong> atomic_ulong;
}  // namespace metal

namespace trivet_msl {
template <class P> struct atomic_value { typedef bare_t<decltype(metal::declval<P>()->value)> type; };
template <class P> using atomic_value_t = typename atomic_value<P>::type;

template <class P, class F> static inline QUIET atomic_value_t<P> atomically(P p, u32 access, F f, SITE) {
  typedef atomic_value_t<P> T;
#ifdef TRIVET_MSL_LINT
  return T();
#else
  trivet_msl_touch((const void*)p, sizeof(T), access | ATOMIC | NATURAL, site_file, site_line);
  T* at = (T*)p;
  T old = *at;
  if (access & WRITE) *at = f(old);
  return old;
#endif
}
}  // namespace trivet_msl

namespace metal {
#define TRIVET_UPDATE(name, ...)                                                                       \
  template <class P> SHIM trivet_msl::atomic_value_t<P> atomic_##name##_explicit(P p, trivet_msl::atomic_value_t<P> x, memory_order, SITE) { \
    typedef trivet_msl::atomic_value_t<P> T;                                                           \
    return trivet_msl::atomically(p, trivet_msl::WRITE | trivet_msl::UPDATE, [x](T old) -> T { return __VA_ARGS__; }, PASS_SITE); \
  }
TRIVET_UPDATE(exchange, x)
TRIVET_UPDATE(fetch_add, T(old + x))
TRIVET_UPDATE(fetch_sub, T(old - x))
TRIVET_UPDATE(fetch_max, trivet_msl::larger_element(old, x))
TRIVET_UPDATE(fetch_min, trivet_msl::smaller_element(old, x))
TRIVET_UPDATE(max, trivet_msl::larger_element(old, x))
TRIVET_UPDATE(min, trivet_msl::smaller_element(old, x))
TRIVET_UPDATE(fetch_and, T(old & x))
TRIVET_UPDATE(fetch_or, T(old | x))
TRIVET_UPDATE(fetch_xor, T(old ^ x))
#undef TRIVET_UPDATE
template <class P> SHIM void atomic_store_explicit(P p, trivet_msl::atomic_value_t<P> x, memory_order, SITE) {
  trivet_msl::atomically(p, trivet_msl::WRITE, [x](trivet_msl::atomic_value_t<P>) { return x; }, PASS_SITE);
}
template <class P> SHIM trivet_msl::atomic_value_t<P> atomic_load_explicit(P p, memory_order, SITE) {
  typedef trivet_msl::atomic_value_t<P> T;
  return trivet_msl::atomically(p, trivet_msl::READ, [](T old) { return old; }, PASS_SITE);
}
template <class P> SHIM bool atomic_compare_exchange_weak_explicit(P p, trivet_msl::atomic_value_t<P>* expected, trivet_msl::atomic_value_t<P> desired, memory_order, memory_order, SITE) {
  typedef trivet_msl::atomic_value_t<P> T;
  T wanted = *expected;
  T old = trivet_msl::atomically(p, trivet_msl::WRITE | trivet_msl::UPDATE, [=](T now) -> T { return now == wanted ? desired : now; }, PASS_SITE);
  if (old == wanted) return true;
  *expected = old;
  return false;
}
SHIM void atomic_thread_fence(mem_flags, memory_order, thread_scope = thread_scope_device) {}
}  // namespace metal
