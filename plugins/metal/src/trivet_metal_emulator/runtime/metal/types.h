// Scalars, vectors and how Metal makes one from another. The vectors are clang's, as in Apple's compiler.
#pragma once
#pragma clang system_header
#include "../core.h"

#define SHIM static inline __attribute__((always_inline, nodebug))  // its memory accesses belong to the caller's line
#define METHOD __attribute__((always_inline, nodebug))
#define QUIET __attribute__((noinline, no_sanitize("thread")))  // reads what belongs to the emulator
#define SITE const char* site_file = __builtin_FILE(), trivet_msl::u32 site_line = __builtin_LINE(), \
             trivet_msl::u32 site_column = __builtin_COLUMN()
#define PASS_SITE site_file, site_line, site_column

typedef _Float16 half;
typedef __bf16 bfloat;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef unsigned long size_t;
typedef long ptrdiff_t;
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;

#define TRIVET_VECTORS(T)                                \
  typedef T T##2 __attribute__((ext_vector_type(2)));    \
  typedef T T##3 __attribute__((ext_vector_type(3)));    \
  typedef T T##4 __attribute__((ext_vector_type(4)));
#define TRIVET_SCALARS(M) M(float) M(half) M(bfloat) M(int) M(uint) M(short) M(ushort) M(char) M(uchar) M(long) M(ulong)
TRIVET_SCALARS(TRIVET_VECTORS)
TRIVET_VECTORS(bool)

namespace metal {
template <class T, int N> using vec = T __attribute__((ext_vector_type(N)));
}

namespace trivet_msl {
template <class T> struct vector_of { static constexpr int size = 0; typedef T element; };
template <class T, int N> struct vector_of<T __attribute__((ext_vector_type(N)))> {
  static constexpr int size = N;
  typedef T element;
};
template <class T> struct bare { typedef T type; };
template <class T> struct bare<const T> { typedef T type; };
template <class T> struct bare<volatile T> { typedef T type; };
template <class T> struct bare<const volatile T> { typedef T type; };
template <class T> struct bare<T&> { typedef typename bare<T>::type type; };
template <class T> struct bare<T&&> { typedef typename bare<T>::type type; };
template <class T> using bare_t = typename bare<T>::type;
template <class T> using element_t = typename vector_of<bare_t<T>>::element;
template <class T> constexpr int size_of_vector = vector_of<bare_t<T>>::size;
template <bool B, class T = void> struct when {};
template <class T> struct when<true, T> { typedef T type; };
template <bool B, class T = void> using when_t = typename when<B, T>::type;

// clang turns no half into bfloat; float holds both
template <class E, class A> SHIM constexpr E scalar(A a) {
  if constexpr ((__is_same(E, bfloat) && __is_same(A, half)) || (__is_same(E, half) && __is_same(A, bfloat))) return E(float(a));
  else return E(a);
}

template <class V, class A, int N> SHIM constexpr V widen(A a) {
  typedef element_t<V> E;
  E e = scalar<E>(a);
  if constexpr (N == 2) return V{e, e};
  else if constexpr (N == 3) return V{e, e, e};
  else return V{e, e, e, e};
}

template <class V, class A> SHIM constexpr V convert(A a) {
  typedef element_t<V> E;
  constexpr int n = size_of_vector<V>;
  static_assert(size_of_vector<A> >= n, "a vector is made from one of as many elements");
  typedef element_t<A> F;
  if constexpr (n == 2) return V{scalar<E, F>(a[0]), scalar<E, F>(a[1])};
  else if constexpr (n == 3) return V{scalar<E, F>(a[0]), scalar<E, F>(a[1]), scalar<E, F>(a[2])};
  else return V{scalar<E, F>(a[0]), scalar<E, F>(a[1]), scalar<E, F>(a[2]), scalar<E, F>(a[3])};
}

template <class V> SHIM void fill(V&, int&) {}
template <class V, class A, class... B> SHIM void fill(V& v, int& k, A a, B... b) {
  if constexpr (size_of_vector<A> != 0) for (int i = 0; i < size_of_vector<A>; i++) v[k++] = scalar<element_t<V>, element_t<A>>(a[i]);
  else v[k++] = scalar<element_t<V>>(a);
  fill(v, k, b...);
}

template <class... A> struct counted { static constexpr int elements = 0; static constexpr bool vectors = false; };
template <class A, class... B> struct counted<A, B...> {
  static constexpr int elements = (size_of_vector<A> ? size_of_vector<A> : 1) + counted<B...>::elements;
  static constexpr bool vectors = size_of_vector<A> != 0 || counted<B...>::vectors;
};

template <class T> struct packed_of { static constexpr int size = 0; };
template <class A> SHIM constexpr auto unpacked(const A& a) {
  if constexpr (packed_of<A>::size != 0) return a.loose();
  else return a;
}

template <class V, class... A> SHIM constexpr V join(A... a) {
  typedef element_t<V> E;
  static_assert(counted<A...>::elements == size_of_vector<V>, "a vector is made from exactly its elements");
  if constexpr (!counted<A...>::vectors) return V{scalar<E>(a)...};
  else {
    V v{};
    int k = 0;
    fill(v, k, a...);
    return v;
  }
}

template <class V, class A> SHIM constexpr V single(A a) {
  if constexpr (size_of_vector<A> != 0) return convert<V>(a);
  else return widen<V, A, size_of_vector<V>>(a);
}

template <class T> SHIM constexpr T half_word() { return T(0); }
template <class T, class A> SHIM constexpr T half_word(const A& a) { return scalar<T, A>(a); }

// What `T(a, b)` and `(T)a` mean in Metal: vectors are converted element by element, the rest is C++.
// By value: no reference is bound to an element of a vector.
template <class T, class... A> SHIM constexpr T make(A... a) {
  if constexpr (__is_same(T, half) || __is_same(T, bfloat)) return half_word<T>(a...);
  else if constexpr (size_of_vector<T> == 0) return T(a...);
  else if constexpr (sizeof...(A) == 0) return T{};
  else if constexpr (sizeof...(A) == 1) return single<T>(unpacked(a)...);
  else return join<T>(unpacked(a)...);
}

template <class T> struct Cast {
  template <class A> METHOD constexpr T operator->*(A a) const { return make<T>(a); }
  struct Minus {
    template <class A> METHOD constexpr auto operator->*(A a) const { return -make<T>(a); }
  };
  struct Not {
    template <class A> METHOD constexpr bool operator->*(A a) const { return !make<T>(a); }
  };
  struct Complement {
    template <class A> METHOD constexpr auto operator->*(A a) const { return ~make<T>(a); }
  };
  // signs before a cast bind to what is cast
  METHOD constexpr Minus operator-() const { return {}; }
  METHOD constexpr Not operator!() const { return {}; }
  METHOD constexpr Complement operator~() const { return {}; }
  METHOD constexpr Cast operator+() const { return {}; }
};

template <class T, int N> struct packed_vector;
template <class T> struct packed_vector<T, 2> {
  T x, y;
  METHOD packed_vector() = default;
  METHOD packed_vector(T a, T b) : x(a), y(b) {}
  METHOD packed_vector(metal::vec<T, 2> v) : x(v.x), y(v.y) {}
  METHOD explicit packed_vector(T a) : x(a), y(a) {}
  METHOD metal::vec<T, 2> loose() const { return {x, y}; }
  METHOD operator metal::vec<T, 2>() const { return loose(); }
  METHOD T& operator[](int i) { return (&x)[i]; }
  METHOD const T& operator[](int i) const { return (&x)[i]; }
};
template <class T> struct packed_vector<T, 3> {
  T x, y, z;
  METHOD packed_vector() = default;
  METHOD packed_vector(T a, T b, T c) : x(a), y(b), z(c) {}
  METHOD packed_vector(metal::vec<T, 3> v) : x(v.x), y(v.y), z(v.z) {}
  METHOD explicit packed_vector(T a) : x(a), y(a), z(a) {}
  METHOD metal::vec<T, 3> loose() const { return {x, y, z}; }
  METHOD operator metal::vec<T, 3>() const { return loose(); }
  METHOD T& operator[](int i) { return (&x)[i]; }
  METHOD const T& operator[](int i) const { return (&x)[i]; }
};
template <class T> struct packed_vector<T, 4> {
  T x, y, z, w;
  METHOD packed_vector() = default;
  METHOD packed_vector(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
  METHOD packed_vector(metal::vec<T, 4> v) : x(v.x), y(v.y), z(v.z), w(v.w) {}
  METHOD explicit packed_vector(T a) : x(a), y(a), z(a), w(a) {}
  METHOD metal::vec<T, 4> loose() const { return {x, y, z, w}; }
  METHOD operator metal::vec<T, 4>() const { return loose(); }
  METHOD T& operator[](int i) { return (&x)[i]; }
  METHOD const T& operator[](int i) const { return (&x)[i]; }
};
template <class T, int N> struct packed_of<packed_vector<T, N>> { static constexpr int size = N; };

template <class T, int N> struct packed_of<const packed_vector<T, N>> { static constexpr int size = N; };

// Arithmetic on packed vectors gives vectors.
template <class T, class B> SHIM auto operand(const B& b) {
  if constexpr (packed_of<B>::size != 0) return b.loose();
  else if constexpr (size_of_vector<B> != 0) return b;
  else return T(b);
}
#define TRIVET_OPERATOR(op)                                                                                     \
  template <class T, int N, class B> SHIM metal::vec<T, N> operator op(const packed_vector<T, N>& a, const B& b) { return a.loose() op operand<T>(b); } \
  template <class T, int N, class A, class = when_t<packed_of<A>::size == 0>>                                   \
  SHIM metal::vec<T, N> operator op(const A& a, const packed_vector<T, N>& b) { return operand<T>(a) op b.loose(); } \
  template <class T, int N, class B> SHIM packed_vector<T, N>& operator op##=(packed_vector<T, N>& a, const B& b) { return a = a.loose() op operand<T>(b); }
TRIVET_OPERATOR(+)
TRIVET_OPERATOR(-)
TRIVET_OPERATOR(*)
TRIVET_OPERATOR(/)
#undef TRIVET_OPERATOR
template <class T, int N> SHIM metal::vec<T, N> operator-(const packed_vector<T, N>& a) { return -a.loose(); }
}  // namespace trivet_msl

#define TRIVET_PACKED(T)                                 \
  typedef trivet_msl::packed_vector<T, 2> packed_##T##2; \
  typedef trivet_msl::packed_vector<T, 3> packed_##T##3; \
  typedef trivet_msl::packed_vector<T, 4> packed_##T##4;
TRIVET_SCALARS(TRIVET_PACKED)

#define TRIVET_IN_METAL(T) using ::T; using ::T##2; using ::T##3; using ::T##4; using ::packed_##T##2; \
  using ::packed_##T##3; using ::packed_##T##4;
#define TRIVET_NAMED(M) M(half) M(bfloat) M(uint) M(ushort) M(uchar) M(ulong)
namespace metal {
TRIVET_NAMED(TRIVET_IN_METAL)
using ::float2; using ::float3; using ::float4; using ::int2; using ::int3; using ::int4; using ::short2; using ::short3;
using ::short4; using ::char2; using ::char3; using ::char4; using ::long2; using ::long3; using ::long4; using ::bool2;
using ::bool3; using ::bool4; using ::size_t; using ::ptrdiff_t; using ::int8_t; using ::uint8_t; using ::int16_t;
using ::uint16_t; using ::int32_t; using ::uint32_t; using ::int64_t; using ::uint64_t;
using ::packed_float2; using ::packed_float3; using ::packed_float4;

template <class T, class U> SHIM constexpr T as_type(U u) {
  static_assert(sizeof(T) == sizeof(U), "as_type keeps the size");
  return __builtin_bit_cast(T, u);
}
}  // namespace metal
