// metal_math, metal_common, metal_integer, metal_relational and metal_geometric. Half and bfloat are computed
// in float and rounded once; fast:: and precise:: are the same functions here.
#pragma once
#pragma clang system_header
#include "simdgroup.h"

extern "C" {
float expf(float); float exp2f(float); float logf(float); float log2f(float); float log10f(float); float sinf(float);
float cosf(float); float tanf(float); float asinf(float); float acosf(float); float atanf(float); float sinhf(float);
float coshf(float); float tanhf(float); float asinhf(float); float acoshf(float); float atanhf(float);
float atan2f(float, float); float powf(float, float); float fmodf(float, float); float ldexpf(float, int);
float frexpf(float, int*); float fmaf(float, float, float); float nextafterf(float, float);
float rintf(float); float roundf(float); float floorf(float); float ceilf(float); float truncf(float);
}

namespace trivet_msl {
template <class T> constexpr bool floats = metal::is_floating_point_v<element_t<T>>;
template <class T> constexpr bool integers = metal::is_integral_v<element_t<T>>;

// Applies f to one element after another; scalars among vectors count for every element.
template <class A> SHIM constexpr auto element(const A& a, int i) {
  if constexpr (size_of_vector<A> != 0) return a[i];
  else return a;
}
template <class V, class F, class... A> SHIM V elementwise(F f, A... a) {
  if constexpr (size_of_vector<V> == 0) return f(a...);
  else {
    V v;
    for (int i = 0; i < size_of_vector<V>; i++) v[i] = f(element_t<V>(element(a, i))...);
    return v;
  }
}
// a type for each position of a call: the vector if there is one, else what C++ makes of the scalars
template <class A, class B> struct joint { typedef metal::common_type_t<A, B> type; };
template <class A, class B, int N> struct joint<A __attribute__((ext_vector_type(N))), B> { typedef metal::vec<A, N> type; };
template <class A, class B, int N> struct joint<A, B __attribute__((ext_vector_type(N)))> { typedef metal::vec<B, N> type; };
template <class A, class B, int N> struct joint<A __attribute__((ext_vector_type(N))), B __attribute__((ext_vector_type(N)))> { typedef metal::vec<A, N> type; };
template <class A, class B> using joint_t = typename joint<bare_t<A>, bare_t<B>>::type;
template <class A, class B, class C> using joint3_t = joint_t<joint_t<A, B>, C>;

template <class T> SHIM constexpr T larger_element(T a, T b) { return b != b ? a : a < b || a != a ? b : a; }
template <class T> SHIM constexpr T smaller_element(T a, T b) { return b != b ? a : b < a || a != a ? b : a; }
template <class T> SHIM T larger(T a, T b) { return elementwise<T>([](auto x, auto y) { return larger_element(x, y); }, a, b); }
template <class T> SHIM T smaller(T a, T b) { return elementwise<T>([](auto x, auto y) { return smaller_element(x, y); }, a, b); }
// what functions of real numbers give for two arguments: float for integers
template <class T> struct real { typedef metal::conditional_t<metal::is_integral_v<T>, float, wide_t<T>> type; };
template <class T> using math_t = typename real<T>::type;
}  // namespace trivet_msl

#define TRIVET_1(name, ...)                                                                      \
  template <class T> SHIM auto name(T a) {                                                       \
    if constexpr (trivet_msl::size_of_vector<T> == 0 && metal::is_integral_v<T>) { float x = float(a); return float(__VA_ARGS__); } \
    else return trivet_msl::elementwise<trivet_msl::wide_t<T>>([](auto e) { float x = float(e); return decltype(e)(__VA_ARGS__); }, trivet_msl::wide(a)); \
  }
#define TRIVET_2(name, ...)                                                                      \
  template <class A, class B> SHIM auto name(A a, B b) {                                         \
    typedef trivet_msl::math_t<trivet_msl::joint_t<A, B>> T;                                     \
    return trivet_msl::elementwise<T>([](auto e, auto g) { float x = float(e), y = float(g); return trivet_msl::element_t<T>(__VA_ARGS__); }, a, b); \
  }
#define TRIVET_MATH                                                                              \
  TRIVET_1(exp, expf(x)) TRIVET_1(exp2, exp2f(x)) TRIVET_1(exp10, powf(10.0f, x)) TRIVET_1(log, logf(x))  \
  TRIVET_1(log2, log2f(x)) TRIVET_1(log10, log10f(x)) TRIVET_1(sqrt, __builtin_sqrtf(x))         \
  TRIVET_1(rsqrt, 1.0f / __builtin_sqrtf(x)) TRIVET_1(sin, sinf(x)) TRIVET_1(cos, cosf(x)) TRIVET_1(tan, tanf(x)) \
  TRIVET_1(asin, asinf(x)) TRIVET_1(acos, acosf(x)) TRIVET_1(atan, atanf(x)) TRIVET_1(sinh, sinhf(x)) \
  TRIVET_1(cosh, coshf(x)) TRIVET_1(tanh, tanhf(x)) TRIVET_1(asinh, asinhf(x)) TRIVET_1(acosh, acoshf(x)) \
  TRIVET_1(atanh, atanhf(x)) TRIVET_1(sinpi, sinf(3.14159265358979323846f * x))                  \
  TRIVET_1(cospi, cosf(3.14159265358979323846f * x)) TRIVET_1(tanpi, tanf(3.14159265358979323846f * x)) \
  TRIVET_1(ceil, ceilf(x)) TRIVET_1(floor, floorf(x)) TRIVET_1(trunc, truncf(x)) TRIVET_1(round, roundf(x)) \
  TRIVET_1(rint, rintf(x)) TRIVET_1(fabs, __builtin_fabsf(x)) TRIVET_1(fract, trivet_msl::smaller_element(x - floorf(x), 0x1.fffffep-1f)) \
  TRIVET_2(pow, powf(x, y)) TRIVET_2(powr, powf(x, y)) TRIVET_2(atan2, atan2f(x, y)) TRIVET_2(fmod, fmodf(x, y)) \
  TRIVET_2(copysign, __builtin_copysignf(x, y)) TRIVET_2(fdim, x > y ? x - y : 0.0f) TRIVET_2(divide, x / y) \
  TRIVET_2(nextafter, nextafterf(x, y))                                                          \
  TRIVET_2(fmax, trivet_msl::larger_element(x, y)) TRIVET_2(fmin, trivet_msl::smaller_element(x, y)) \
  template <class A, class B, class C> SHIM auto fma(A a, B b, C c) { typedef trivet_msl::math_t<trivet_msl::joint3_t<A, B, C>> T; return trivet_msl::elementwise<T>([](auto x, auto y, auto z) { return trivet_msl::element_t<T>(fmaf(float(x), float(y), float(z))); }, a, b, c); } \
  template <class T> SHIM T sincos(T a, T& c) { c = cos(a); return sin(a); }

namespace metal {
TRIVET_MATH
TRIVET_1(sign, x > 0 ? 1.0f : x < 0 ? -1.0f : x == 0 ? x : 0.0f)
TRIVET_1(saturate, trivet_msl::smaller_element(trivet_msl::larger_element(x, 0.0f), 1.0f))
TRIVET_2(step, y < x ? 0.0f : 1.0f)
namespace fast {
TRIVET_MATH
}
namespace precise {
TRIVET_MATH
}
#undef TRIVET_MATH
#undef TRIVET_1
#undef TRIVET_2

template <class A, class B> SHIM constexpr auto max(A a, B b) {
  typedef trivet_msl::wide_t<trivet_msl::joint_t<A, B>> T;
  if constexpr (trivet_msl::size_of_vector<T> == 0) return trivet_msl::larger_element<T>(T(a), T(b));
  else return trivet_msl::elementwise<T>([](auto x, auto y) { return trivet_msl::larger_element(x, y); }, a, b);
}
template <class A, class B> SHIM constexpr auto min(A a, B b) {
  typedef trivet_msl::wide_t<trivet_msl::joint_t<A, B>> T;
  if constexpr (trivet_msl::size_of_vector<T> == 0) return trivet_msl::smaller_element<T>(T(a), T(b));
  else return trivet_msl::elementwise<T>([](auto x, auto y) { return trivet_msl::smaller_element(x, y); }, a, b);
}
template <class T> SHIM auto max3(T a, T b, T c) { return max(max(a, b), c); }
template <class T> SHIM auto min3(T a, T b, T c) { return min(min(a, b), c); }
template <class T> SHIM auto median3(T a, T b, T c) { return max(min(a, b), min(max(a, b), c)); }
template <class T, class L, class H> SHIM constexpr auto clamp(T x, L low, H high) { return min(max(x, low), high); }
template <class A, class B, class C> SHIM auto mix(A a, B b, C t) { return a + (b - a) * t; }
template <class T> SHIM T smoothstep(T a, T b, T x) { T t = clamp((x - a) / (b - a), T(0), T(1)); return t * t * (T(3) - T(2) * t); }
template <class A> SHIM auto abs(A a) {
  typedef trivet_msl::wide_t<A> T;
  return trivet_msl::elementwise<T>([](auto x) {
    typedef decltype(x) E;
    if constexpr (is_floating_point_v<E>) return E(__builtin_fabsf(float(x)));
    else return E(x < 0 ? -x : x);
  }, trivet_msl::wide(a));
}
namespace fast {
using metal::max; using metal::min; using metal::clamp; using metal::abs; using metal::saturate; using metal::sign;
template <class A, class B, class C> SHIM auto mix(A a, B b, C t) { return a + (b - a) * t; }
}
namespace precise {
using metal::max; using metal::min; using metal::clamp; using metal::abs; using metal::saturate; using metal::sign;
}
template <class T, class I> SHIM T ldexp(T a, I n) { return trivet_msl::elementwise<T>([](auto x, auto k) { return decltype(x)(ldexpf(float(x), int(k))); }, a, n); }
template <class T> SHIM T frexp(T a, int& n) { int k; T m = T(frexpf(float(a), &k)); n = k; return m; }
template <class T> SHIM T modf(T a, T& whole) { whole = trunc(a); return a - whole; }
template <class T> SHIM int ilogb(T a) { int k; frexpf(float(a), &k); return k - 1; }

// --- relational: vectors of comparisons are clang's, 0 or -1 in every element
#define TRIVET_TEST(name, ...)                                                                          \
  template <class T> SHIM constexpr auto name(T a) {                                                    \
    if constexpr (trivet_msl::size_of_vector<T> == 0) { typedef T E; E x = a; return bool(__VA_ARGS__); } \
    else { bool kept[4]; for (int i = 0; i < trivet_msl::size_of_vector<T>; i++) kept[i] = name(a[i]);    \
           vec<int, trivet_msl::size_of_vector<T>> v; for (int i = 0; i < trivet_msl::size_of_vector<T>; i++) v[i] = kept[i] ? -1 : 0; return v; } \
  }
TRIVET_TEST(isnan, x != x)
TRIVET_TEST(isinf, (is_floating_point_v<E>) && __builtin_isinf(float(x)))
TRIVET_TEST(isfinite, (!is_floating_point_v<E>) || __builtin_isfinite(float(x)))
TRIVET_TEST(isnormal, __builtin_isnormal(float(x)))
TRIVET_TEST(signbit, __builtin_signbit(float(x)))
#undef TRIVET_TEST
template <class T> SHIM auto isunordered(T a, T b) {
  if constexpr (trivet_msl::size_of_vector<T> == 0) return bool(a != a || b != b);
  else return isnan(a) | isnan(b);
}
template <class T> SHIM auto isordered(T a, T b) {
  if constexpr (trivet_msl::size_of_vector<T> == 0) return bool(a == a && b == b);
  else return ~(isnan(a) | isnan(b));
}
template <class T> SHIM bool any(T a) {
  if constexpr (trivet_msl::size_of_vector<T> == 0) return bool(a);
  else { bool r = false; for (int i = 0; i < trivet_msl::size_of_vector<T>; i++) r = r || bool(a[i]); return r; }
}
template <class T> SHIM bool all(T a) {
  if constexpr (trivet_msl::size_of_vector<T> == 0) return bool(a);
  else { bool r = true; for (int i = 0; i < trivet_msl::size_of_vector<T>; i++) r = r && bool(a[i]); return r; }
}
template <class A, class B, class C> SHIM auto select(A a, B b, C c) {
  typedef trivet_msl::joint_t<A, B> T;
  if constexpr (trivet_msl::size_of_vector<T> == 0) return bool(c) ? T(b) : T(a);
  else {
    T r;
    for (int i = 0; i < trivet_msl::size_of_vector<T>; i++)
      r[i] = bool(trivet_msl::element(c, i)) ? trivet_msl::element(b, i) : trivet_msl::element(a, i);
    return r;
  }
}

// --- integers
#define TRIVET_INT(name, parameters, arguments, ...)                                            \
  template <class T> SHIM T name parameters { return trivet_msl::elementwise<T>([=](auto x, auto... rest) { return trivet_msl::name##_of(x, rest...); }, arguments); }
}  // namespace metal
namespace trivet_msl {
template <class T> using unsigned_t = metal::make_unsigned_t<T>;
template <class T> constexpr int BITS = int(sizeof(T) * 8);
template <class T> SHIM T popcount_of(T x) { return T(__builtin_popcountll((unsigned long long)(unsigned_t<T>)x)); }
template <class T> SHIM T clz_of(T x) { return x == 0 ? T(BITS<T>) : T(__builtin_clzll((unsigned long long)(unsigned_t<T>)x) - (64 - BITS<T>)); }
template <class T> SHIM T ctz_of(T x) { return x == 0 ? T(BITS<T>) : T(__builtin_ctzll((unsigned long long)(unsigned_t<T>)x)); }
template <class T> SHIM T reverse_bits_of(T x) {
  unsigned_t<T> in = unsigned_t<T>(x), out = 0;
  for (int i = 0; i < BITS<T>; i++) out = unsigned_t<T>(out << 1 | (in >> i & 1));
  return T(out);
}
template <class T> SHIM T rotate_of(T x, T n) {
  unsigned_t<T> u = unsigned_t<T>(x);
  int k = int(n) & (BITS<T> - 1);
  return k ? T(unsigned_t<T>(u << k | u >> (BITS<T> - k))) : x;
}
template <class T> SHIM T mulhi_of(T x, T y) { return T(((__int128)x * (__int128)y) >> BITS<T>); }
template <class T> SHIM T addsat_of(T x, T y) {
  T r;
  if (!__builtin_add_overflow(x, y, &r)) return r;
  return y < 0 ? metal::numeric_limits<T>::min() : metal::numeric_limits<T>::max();
}
template <class T> SHIM T subsat_of(T x, T y) {
  T r;
  if (!__builtin_sub_overflow(x, y, &r)) return r;
  return x < y ? metal::numeric_limits<T>::min() : metal::numeric_limits<T>::max();
}
template <class T> SHIM T absdiff_of(T x, T y) { return x < y ? T(y - x) : T(x - y); }
template <class T> SHIM T hadd_of(T x, T y) { return T((x & y) + ((x ^ y) >> 1)); }
template <class T> SHIM T rhadd_of(T x, T y) { return T((x | y) - ((x ^ y) >> 1)); }
}  // namespace trivet_msl
namespace metal {
#define TRIVET_INT1(name) template <class T> SHIM T name(T a) { return trivet_msl::elementwise<T>([](auto x) { return trivet_msl::name##_of(x); }, a); }
#define TRIVET_INT2(name) template <class T> SHIM T name(T a, T b) { return trivet_msl::elementwise<T>([](auto x, auto y) { return trivet_msl::name##_of(x, y); }, a, b); }
TRIVET_INT1(popcount) TRIVET_INT1(clz) TRIVET_INT1(ctz) TRIVET_INT1(reverse_bits)
TRIVET_INT2(rotate) TRIVET_INT2(mulhi) TRIVET_INT2(addsat) TRIVET_INT2(subsat) TRIVET_INT2(absdiff) TRIVET_INT2(hadd) TRIVET_INT2(rhadd)
#undef TRIVET_INT
#undef TRIVET_INT1
#undef TRIVET_INT2
template <class T> SHIM T mul24(T a, T b) { return a * b; }
template <class T> SHIM T mad24(T a, T b, T c) { return a * b + c; }
template <class T> SHIM T madhi(T a, T b, T c) { return mulhi(a, b) + c; }
template <class T> SHIM T madsat(T a, T b, T c) {
  __int128 r = (__int128)a * b + c;
  return r > numeric_limits<T>::max() ? numeric_limits<T>::max() : r < numeric_limits<T>::min() ? numeric_limits<T>::min() : T(r);
}
template <class T> SHIM T extract_bits(T x, uint offset, uint bits) {
  if (bits == 0) return T(0);
  constexpr int all = trivet_msl::BITS<T>;
  return T(T(trivet_msl::unsigned_t<T>(x) << (all - bits - offset)) >> (all - bits));
}
template <class T> SHIM T insert_bits(T base, T insert, uint offset, uint bits) {
  typedef trivet_msl::unsigned_t<T> U;
  U mask = bits >= sizeof(T) * 8 ? U(~U(0)) : U((U(1) << bits) - 1);
  return T((U(base) & ~U(mask << offset)) | (U(insert) & mask) << offset);
}

// --- geometric
template <class T, int N> SHIM T dot(vec<T, N> a, vec<T, N> b) { T r = a[0] * b[0]; for (int i = 1; i < N; i++) r += a[i] * b[i]; return r; }
template <class T, int N> SHIM T length_squared(vec<T, N> a) { return dot(a, a); }
template <class T, int N> SHIM T length(vec<T, N> a) { return sqrt(dot(a, a)); }
template <class T, int N> SHIM T distance(vec<T, N> a, vec<T, N> b) { return length(a - b); }
template <class T, int N> SHIM T distance_squared(vec<T, N> a, vec<T, N> b) { return length_squared(a - b); }
template <class T, int N> SHIM vec<T, N> normalize(vec<T, N> a) { return a * rsqrt(dot(a, a)); }
template <class T> SHIM vec<T, 3> cross(vec<T, 3> a, vec<T, 3> b) { return {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x}; }

// --- small matrices, column by column
template <class T, int C, int R> struct matrix {
  vec<T, R> columns[C];
  METHOD matrix() : columns{} {}
  METHOD explicit matrix(T diagonal) : columns{} { for (int i = 0; i < C && i < R; i++) columns[i][i] = diagonal; }
  template <class... V, class = enable_if_t<sizeof...(V) + 1 == C && (C > 1)>> METHOD matrix(vec<T, R> first, V... rest) : columns{first, rest...} {}
  METHOD vec<T, R>& operator[](int i) { return columns[i]; }
  METHOD const vec<T, R>& operator[](int i) const { return columns[i]; }
};
template <class T, int C, int R> SHIM vec<T, R> operator*(const matrix<T, C, R>& m, vec<T, C> v) { vec<T, R> r = m[0] * v[0]; for (int i = 1; i < C; i++) r += m[i] * v[i]; return r; }
template <class T, int C, int R> SHIM vec<T, C> operator*(vec<T, R> v, const matrix<T, C, R>& m) { vec<T, C> r; for (int i = 0; i < C; i++) r[i] = dot(v, m[i]); return r; }
template <class T, int C, int R, int K> SHIM matrix<T, K, R> operator*(const matrix<T, C, R>& a, const matrix<T, K, C>& b) { matrix<T, K, R> r; for (int i = 0; i < K; i++) r[i] = a * b[i]; return r; }
template <class T, int C, int R> SHIM matrix<T, C, R> operator*(const matrix<T, C, R>& a, T b) { matrix<T, C, R> r; for (int i = 0; i < C; i++) r[i] = a[i] * b; return r; }
template <class T, int C, int R> SHIM matrix<T, C, R> operator+(const matrix<T, C, R>& a, const matrix<T, C, R>& b) { matrix<T, C, R> r; for (int i = 0; i < C; i++) r[i] = a[i] + b[i]; return r; }
template <class T, int C, int R> SHIM matrix<T, R, C> transpose(const matrix<T, C, R>& a) { matrix<T, R, C> r; for (int i = 0; i < C; i++) for (int j = 0; j < R; j++) r[j][i] = a[i][j]; return r; }
#define TRIVET_MATRICES(T) \
  typedef matrix<T, 2, 2> T##2x2; typedef matrix<T, 2, 3> T##2x3; typedef matrix<T, 2, 4> T##2x4; typedef matrix<T, 3, 2> T##3x2; \
  typedef matrix<T, 3, 3> T##3x3; typedef matrix<T, 3, 4> T##3x4; typedef matrix<T, 4, 2> T##4x2; typedef matrix<T, 4, 3> T##4x3; typedef matrix<T, 4, 4> T##4x4;
TRIVET_MATRICES(float)
TRIVET_MATRICES(half)
}  // namespace metal
