// metal_simdgroup_matrix: 8x8, two elements a lane, laid out as kernels in use assume.
#pragma once
#pragma clang system_header
#include "atomics.h"

namespace metal {
template <class T, int Cols = 8, int Rows = 8> struct simdgroup_matrix {
  static_assert(Cols == 8 && Rows == 8, "matrices of a simdgroup are 8x8");
  vec<T, 2> elements;
  METHOD simdgroup_matrix() = default;
  METHOD explicit simdgroup_matrix(T diagonal);
  METHOD vec<T, 2>& thread_elements() { return elements; }
  METHOD const vec<T, 2>& thread_elements() const { return elements; }
};
typedef simdgroup_matrix<float> simdgroup_float8x8;
typedef simdgroup_matrix<half> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat> simdgroup_bfloat8x8;
}  // namespace metal

namespace trivet_msl {
SHIM u32 row_of(u32 lane) { return (lane / 4 & 4) + lane / 2 % 4; }
SHIM u32 column_of(u32 lane) { return (lane / 4 & 2) * 2 + lane % 2 * 2; }

static inline QUIET void whole_simdgroup(SITE) {
  u32 mask = exchanged<u8>(u8(0), PASS_SITE).mask;
  if (mask != ALL) trivet_msl_report(INACTIVE_LANE, -1, site_file, site_line);
}

typedef float quadruple __attribute__((ext_vector_type(4)));

template <class D, class A, class B, class C>
static inline QUIET metal::vec<D, 2> multiplied(metal::vec<A, 2> a, metal::vec<B, 2> b, metal::vec<C, 2> c, SITE) {
  quadruple mine = {float(a.x), float(a.y), float(b.x), float(b.y)};
  Snapshot& s = exchanged<quadruple>(mine, PASS_SITE);
  if (s.mask != ALL) trivet_msl_report(INACTIVE_LANE, -1, site_file, site_line);
  float* product = (float*)s.shared;
  if (!s.shared_ready) {
    float left[8][8], right[8][8];
    for (u32 i = 0; i < WIDTH; i++) {
      quadruple q = value_of<quadruple>(s, i);
      u32 r = row_of(i), k = column_of(i);
      left[r][k] = q.x;
      left[r][k + 1] = q.y;
      right[r][k] = q.z;
      right[r][k + 1] = q.w;
    }
    for (int r = 0; r < 8; r++)
      for (int k = 0; k < 8; k++) {
        float sum = 0;
        for (int j = 0; j < 8; j++) sum += left[r][j] * right[j][k];
        product[r * 8 + k] = sum;
      }
    s.shared_ready = true;
  }
  u32 at = row_of(lane()) * 8 + column_of(lane());
  return metal::vec<D, 2>{D(float(c.x) + product[at]), D(float(c.y) + product[at + 1])};
}
}  // namespace trivet_msl

namespace metal {
template <class T, int Cols, int Rows> METHOD inline simdgroup_matrix<T, Cols, Rows>::simdgroup_matrix(T diagonal) {
  uint r = trivet_msl::row_of(trivet_msl::lane()), c = trivet_msl::column_of(trivet_msl::lane());
  elements = vec<T, 2>{r == c ? diagonal : T(0), r == c + 1 ? diagonal : T(0)};
}
template <class T, int C, int R> SHIM simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(T x) {
  simdgroup_matrix<T, C, R> m;
  m.elements = vec<T, 2>{x, x};
  return m;
}
template <class T, int C, int R, class P>
SHIM void simdgroup_load(simdgroup_matrix<T, C, R>& m, P p, ulong row = 8, ulong2 origin = 0, bool transpose = false, SITE) {
  trivet_msl::whole_simdgroup(PASS_SITE);
  ulong r = trivet_msl::row_of(trivet_msl::lane()), c = trivet_msl::column_of(trivet_msl::lane());
  if (transpose) m.elements = vec<T, 2>{p[(c + origin.y) * row + r + origin.x], p[(c + 1 + origin.y) * row + r + origin.x]};
  else m.elements = vec<T, 2>{p[(r + origin.y) * row + c + origin.x], p[(r + origin.y) * row + c + 1 + origin.x]};
}
template <class T, int C, int R, class P>
SHIM void simdgroup_store(simdgroup_matrix<T, C, R> m, P p, ulong row = 8, ulong2 origin = 0, bool transpose = false, SITE) {
  trivet_msl::whole_simdgroup(PASS_SITE);
  ulong r = trivet_msl::row_of(trivet_msl::lane()), c = trivet_msl::column_of(trivet_msl::lane());
  for (ulong k = 0; k < 2; k++)
    if (transpose) p[(c + k + origin.y) * row + r + origin.x] = m.elements[k];
    else p[(r + origin.y) * row + c + k + origin.x] = m.elements[k];
}
template <class D, class A, class B, class E>
SHIM void simdgroup_multiply_accumulate(simdgroup_matrix<D>& d, simdgroup_matrix<A> a, simdgroup_matrix<B> b, simdgroup_matrix<E> c, SITE) {
  d.elements = trivet_msl::multiplied<D>(a.elements, b.elements, c.elements, PASS_SITE);
}
template <class D, class A, class B>
SHIM void simdgroup_multiply(simdgroup_matrix<D>& d, simdgroup_matrix<A> a, simdgroup_matrix<B> b, SITE) {
  d.elements = trivet_msl::multiplied<D>(a.elements, b.elements, vec<D, 2>{D(0), D(0)}, PASS_SITE);
}
}  // namespace metal
