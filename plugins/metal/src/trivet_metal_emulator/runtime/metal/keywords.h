// Metal's own words and constants, and how a kernel's parameters are filled. Included last.
#pragma once
#pragma clang system_header
#include "internals.h"

namespace trivet_msl {
template <class F> struct signature;
template <int I, class A, class... B> struct nth { typedef typename nth<I - 1, B...>::type type; };
template <class A, class... B> struct nth<0, A, B...> { typedef A type; };
template <class R, class... A> struct signature<R(A...)> { template <int I> using argument = typename nth<I, A...>::type; };

template <class P> SHIM P buffer(void* p) {
  if constexpr (metal::is_pointer_v<P>) return (P)p;
  else return (P)(*(metal::remove_reference_t<P>*)p);
}
template <class P> SHIM P position(const Triple& t) {
  typedef element_t<P> E;
  if constexpr (size_of_vector<P> == 0) return P(t.x);
  else if constexpr (size_of_vector<P> == 2) return bare_t<P>{E(t.x), E(t.y)};
  else return bare_t<P>{E(t.x), E(t.y), E(t.z)};
}
template <class P> SHIM P position(u32 v) { return P(v); }

template <class T, int N> struct Variable { static char key; };
template <class T, int N> char Variable<T, N>::key;
#ifdef TRIVET_MSL_LINT
template <class T, int N> T& in_threadgroup(const char*, SITE);
#else
template <class T, int N> static inline QUIET T& in_threadgroup(const char* name, SITE) {
  return *(T*)trivet_msl_threadgroup(&Variable<T, N>::key, name, sizeof(T), alignof(T), site_file, site_line);
}
#endif
}  // namespace trivet_msl

#ifdef TRIVET_MSL_LINT
#define device __attribute__((address_space(1)))
#define constant const __attribute__((address_space(2)))
#define threadgroup __attribute__((address_space(3)))
#define TRIVET_CONSTANT_TABLE const __attribute__((address_space(2)))
#else
#define device
#define constant const
#define threadgroup
#define TRIVET_CONSTANT_TABLE const
#endif
#define thread
#define kernel
#define METAL_FUNC inline __attribute__((always_inline))
#define METAL_INTERNAL inline __attribute__((always_inline))
#define METAL_CONST
#define METAL_PURE
#define METAL_VALID_PRIVATE
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define HUGE_VALF __builtin_inff()
#define MAXFLOAT 0x1.fffffep127f
#define FLT_MAX 0x1.fffffep127f
#define FLT_MIN 0x1p-126f
#define FLT_EPSILON 0x1p-23f
#define HALF_MAX ((half)65504.0f)
#define HALF_MIN ((half)0x1p-14f)
#define HALF_EPSILON ((half)0x1p-10f)
#define CHAR_BIT 8
#define SHRT_MAX 32767
#define USHRT_MAX 65535
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 4294967295u
#define LONG_MAX 9223372036854775807l
#define LONG_MIN (-9223372036854775807l - 1)
#define ULONG_MAX 18446744073709551615ul
#define M_E_F 2.71828182845904523536f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LOG10E_F 0.43429448190325182765f
#define M_LN2_F 0.69314718055994530942f
#define M_LN10_F 2.30258509299404568402f
#define M_PI_F 3.14159265358979323846f
#define M_PI_2_F 1.57079632679489661923f
#define M_PI_4_F 0.78539816339744830962f
#define M_1_PI_F 0.31830988618379067154f
#define M_2_PI_F 0.63661977236758134308f
#define M_2_SQRTPI_F 1.12837916709551257390f
#define M_SQRT2_F 1.41421356237309504880f
#define M_SQRT1_2_F 0.70710678118654752440f
#define M_PI_H ((half)3.14159265358979323846f)
using metal::as_type;
