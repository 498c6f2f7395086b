// metal_type_traits, metal_limits, metal_array and what else Metal took from the C++ library.
#pragma once
#pragma clang system_header
#include "types.h"

namespace metal {
template <class T, T V> struct integral_constant {
  static constexpr T value = V;
  typedef T value_type;
  typedef integral_constant type;
  METHOD constexpr operator T() const { return V; }
  METHOD constexpr T operator()() const { return V; }
};
template <bool B> using bool_constant = integral_constant<bool, B>;
typedef bool_constant<true> true_type;
typedef bool_constant<false> false_type;

template <bool B, class T = void> using enable_if = trivet_msl::when<B, T>;
template <bool B, class T = void> using enable_if_t = typename enable_if<B, T>::type;
template <bool B, class T, class F> struct conditional { typedef T type; };
template <class T, class F> struct conditional<false, T, F> { typedef F type; };
template <bool B, class T, class F> using conditional_t = typename conditional<B, T, F>::type;

template <class T> struct remove_reference { typedef T type; };
template <class T> struct remove_reference<T&> { typedef T type; };
template <class T> struct remove_reference<T&&> { typedef T type; };
template <class T> using remove_reference_t = typename remove_reference<T>::type;
template <class T> struct remove_const { typedef T type; };
template <class T> struct remove_const<const T> { typedef T type; };
template <class T> using remove_const_t = typename remove_const<T>::type;
template <class T> struct remove_volatile { typedef T type; };
template <class T> struct remove_volatile<volatile T> { typedef T type; };
template <class T> using remove_volatile_t = typename remove_volatile<T>::type;
template <class T> struct remove_cv { typedef remove_const_t<remove_volatile_t<T>> type; };
template <class T> using remove_cv_t = typename remove_cv<T>::type;
template <class T> struct remove_pointer { typedef T type; };
template <class T> struct remove_pointer<T*> { typedef T type; };
template <class T> using remove_pointer_t = typename remove_pointer<T>::type;
template <class T> struct add_const { typedef const T type; };
template <class T> using add_const_t = const T;
template <class T> struct decay { typedef trivet_msl::bare_t<T> type; };
template <class T> using decay_t = typename decay<T>::type;
template <class T> remove_reference_t<T>&& declval() noexcept;
template <class T> METHOD constexpr T&& forward(remove_reference_t<T>& t) { return static_cast<T&&>(t); }
template <class T> METHOD constexpr remove_reference_t<T>&& move(T&& t) { return static_cast<remove_reference_t<T>&&>(t); }
template <class T> SHIM void swap(T& a, T& b) { T kept = a; a = b; b = kept; }

template <class A, class B> constexpr bool is_same_v = __is_same(A, B);
template <class A, class B> struct is_same : bool_constant<is_same_v<A, B>> {};
template <class A, class B> constexpr bool is_convertible_v = __is_convertible_to(A, B);
template <class A, class B> struct is_convertible : bool_constant<is_convertible_v<A, B>> {};
template <class A, class B> constexpr bool is_base_of_v = __is_base_of(A, B);
template <class A, class B> struct is_base_of : bool_constant<is_base_of_v<A, B>> {};
template <class T, class... A> constexpr bool is_constructible_v = __is_constructible(T, A...);
template <class T, class... A> struct is_constructible : bool_constant<is_constructible_v<T, A...>> {};
template <class A, class B> constexpr bool is_assignable_v = __is_assignable(A, B);

#define TRIVET_TRAIT(name, ...)                            \
  template <class T> constexpr bool name##_v = __VA_ARGS__; \
  template <class T> struct name : bool_constant<name##_v<T>> {};
TRIVET_TRAIT(is_void, __is_void(T))
TRIVET_TRAIT(is_integral, __is_integral(T))
TRIVET_TRAIT(is_floating_point, __is_same(remove_cv_t<T>, float) || __is_same(remove_cv_t<T>, half) || __is_same(remove_cv_t<T>, bfloat))
TRIVET_TRAIT(is_arithmetic, is_integral_v<T> || is_floating_point_v<T>)
TRIVET_TRAIT(is_signed, (is_floating_point_v<T> || (is_integral_v<T> && __is_signed(T))))
TRIVET_TRAIT(is_unsigned, (is_integral_v<T> && __is_unsigned(T)))
TRIVET_TRAIT(is_pointer, __is_pointer(T))
TRIVET_TRAIT(is_reference, __is_reference(T))
TRIVET_TRAIT(is_lvalue_reference, __is_lvalue_reference(T))
TRIVET_TRAIT(is_array, __is_array(T))
TRIVET_TRAIT(is_enum, __is_enum(T))
TRIVET_TRAIT(is_class, __is_class(T))
TRIVET_TRAIT(is_union, __is_union(T))
TRIVET_TRAIT(is_const, __is_const(T))
TRIVET_TRAIT(is_trivial, __is_trivial(T))
TRIVET_TRAIT(is_trivially_copyable, __is_trivially_copyable(T))
TRIVET_TRAIT(is_scalar, is_arithmetic_v<T> || __is_enum(T) || __is_pointer(T))
#undef TRIVET_TRAIT

template <class T> struct underlying_type { typedef __underlying_type(T) type; };
template <class T> struct make_unsigned { typedef T type; };
template <> struct make_unsigned<char> { typedef unsigned char type; };
template <> struct make_unsigned<signed char> { typedef unsigned char type; };
template <> struct make_unsigned<short> { typedef unsigned short type; };
template <> struct make_unsigned<int> { typedef unsigned int type; };
template <> struct make_unsigned<long> { typedef unsigned long type; };
template <class T> using make_unsigned_t = typename make_unsigned<T>::type;
template <class T> struct make_signed { typedef T type; };
template <> struct make_signed<unsigned char> { typedef signed char type; };
template <> struct make_signed<unsigned short> { typedef short type; };
template <> struct make_signed<unsigned int> { typedef int type; };
template <> struct make_signed<unsigned long> { typedef long type; };
template <class T> using make_signed_t = typename make_signed<T>::type;

template <class... T> struct common_type;
template <class T> struct common_type<T> { typedef T type; };
template <class A, class B> struct common_type<A, B> { typedef decay_t<decltype(false ? declval<A>() : declval<B>())> type; };
template <class A, class B, class C, class... D> struct common_type<A, B, C, D...> {
  typedef typename common_type<typename common_type<A, B>::type, C, D...>::type type;
};
template <class... T> using common_type_t = typename common_type<T...>::type;

template <class... T> constexpr bool conjunction_v = true;
template <class T, class... R> constexpr bool conjunction_v<T, R...> = bool(T::value) && conjunction_v<R...>;
template <class... T> struct conjunction : bool_constant<conjunction_v<T...>> {};
template <class... T> constexpr bool disjunction_v = false;
template <class T, class... R> constexpr bool disjunction_v<T, R...> = bool(T::value) || disjunction_v<R...>;
template <class... T> struct disjunction : bool_constant<disjunction_v<T...>> {};
template <class T> struct negation : bool_constant<!bool(T::value)> {};

template <class T, T... I> struct integer_sequence { static constexpr size_t size() { return sizeof...(I); } };
template <size_t... I> using index_sequence = integer_sequence<size_t, I...>;
template <class T, T N> using make_integer_sequence = __make_integer_seq<integer_sequence, T, N>;
template <size_t N> using make_index_sequence = make_integer_sequence<size_t, N>;

template <class F, class... A> struct result_of;
template <class F, class... A> struct result_of<F(A...)> { typedef decltype(declval<F>()(declval<A>()...)) type; };
template <class F> using result_of_t = typename result_of<F>::type;

}  // namespace metal

namespace trivet_msl {
// Metal's functions take no bfloat: it becomes float by itself, and float is what comes back.
template <class T> struct widened { typedef T type; };
template <> struct widened<bfloat> { typedef float type; };
template <int N> struct widened<bfloat __attribute__((ext_vector_type(N)))> { typedef metal::vec<float, N> type; };
template <class T> using wide_t = typename widened<bare_t<T>>::type;
template <class T> SHIM constexpr wide_t<T> wide(T x) {
  if constexpr (size_of_vector<T> != 0 && !metal::is_same_v<T, wide_t<T>>) return convert<wide_t<T>>(x);
  else return x;
}
}  // namespace trivet_msl

namespace metal {
template <class T> struct is_vector : bool_constant<trivet_msl::vector_of<T>::size != 0> {};
template <class T> constexpr bool is_vector_v = is_vector<T>::value;
template <class T> struct make_scalar { typedef trivet_msl::element_t<T> type; };
template <class T> using make_scalar_t = typename make_scalar<T>::type;
template <class T> struct vec_elements : integral_constant<int, trivet_msl::vector_of<T>::size> {};

template <class T> struct numeric_limits;
#define TRIVET_FLOATING(T, bits, digits10_, lo, hi, eps, minimum, maximum, denorm)        \
  template <> struct numeric_limits<T> {                                                  \
    static constexpr bool is_specialized = true, is_signed = true, is_integer = false, is_exact = false; \
    static constexpr bool has_infinity = true, has_quiet_NaN = true, is_iec559 = true;    \
    static constexpr int digits = bits, digits10 = digits10_, radix = 2, min_exponent = lo, max_exponent = hi; \
    static constexpr T min() { return T(minimum); }                                       \
    static constexpr T max() { return T(maximum); }                                       \
    static constexpr T lowest() { return T(-maximum); }                                   \
    static constexpr T epsilon() { return T(eps); }                                       \
    static constexpr T round_error() { return T(0.5f); }                                  \
    static constexpr T infinity() { return T(__builtin_inff()); }                         \
    static constexpr T quiet_NaN() { return T(__builtin_nanf("")); }                      \
    static constexpr T denorm_min() { return T(denorm); }                                 \
  };
TRIVET_FLOATING(float, 24, 6, -125, 128, 0x1p-23f, 0x1p-126f, 0x1.fffffep127f, 0x1p-149f)
TRIVET_FLOATING(half, 11, 3, -13, 16, 0x1p-10f, 0x1p-14f, 65504.0f, 0x1p-24f)
TRIVET_FLOATING(bfloat, 8, 2, -125, 128, 0x1p-7f, 0x1p-126f, 0x1.fep127f, 0x1p-133f)
#define TRIVET_INTEGRAL(T, minimum, maximum, signed_)                                     \
  template <> struct numeric_limits<T> {                                                  \
    static constexpr bool is_specialized = true, is_signed = signed_, is_integer = true, is_exact = true; \
    static constexpr bool has_infinity = false, has_quiet_NaN = false;                    \
    static constexpr int digits = sizeof(T) * 8 - signed_, radix = 2;                     \
    static constexpr T min() { return minimum; }                                          \
    static constexpr T max() { return maximum; }                                          \
    static constexpr T lowest() { return minimum; }                                       \
    static constexpr T epsilon() { return T(0); }                                         \
    static constexpr T infinity() { return T(0); }                                        \
  };
TRIVET_INTEGRAL(bool, false, true, 0)
TRIVET_INTEGRAL(char, -128, 127, 1)
TRIVET_INTEGRAL(int8_t, -128, 127, 1)
TRIVET_INTEGRAL(uchar, 0, 255, 0)
TRIVET_INTEGRAL(short, -32768, 32767, 1)
TRIVET_INTEGRAL(ushort, 0, 65535, 0)
TRIVET_INTEGRAL(int, -2147483647 - 1, 2147483647, 1)
TRIVET_INTEGRAL(uint, 0, 4294967295u, 0)
TRIVET_INTEGRAL(long, -9223372036854775807l - 1, 9223372036854775807l, 1)
TRIVET_INTEGRAL(ulong, 0, 18446744073709551615ul, 0)
template <class T> struct numeric_limits<const T> : numeric_limits<T> {};

template <class T, size_t N> struct array {
  T __elems_[N];
  METHOD constexpr T& operator[](size_t i) { return __elems_[i]; }
  METHOD constexpr const T& operator[](size_t i) const { return __elems_[i]; }
  METHOD constexpr size_t size() const { return N; }
  METHOD constexpr T* data() { return __elems_; }
  METHOD constexpr const T* data() const { return __elems_; }
  METHOD constexpr T* begin() { return __elems_; }
  METHOD constexpr T* end() { return __elems_ + N; }
};
template <class T> struct remove_addrspace { typedef T type; };
template <class T> using remove_addrspace_t = T;
template <class T> using uniform = T;
template <class T> METHOD constexpr T make_uniform(T x) { return x; }
template <class A, class B> struct pair { A first; B second; };
}  // namespace metal
