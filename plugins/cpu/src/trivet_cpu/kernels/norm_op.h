// Checks and entry points of rms_norm and fused_add_rms_norm.
#pragma once
#include "overlap.h"
#include "simd.h"

namespace trivet_cpu {

struct NormScalars {
  float eps, offset;
  bool weight_in_float32;
  int64_t variance_size;  // 0: the whole row
  NormScalars(const StableIValue* s, bool prefix)
      : eps((float)as_double(s[0])),
        offset((float)as_double(s[1])),
        weight_in_float32(as_bool(s[2])),
        variance_size(prefix ? as_int(s[3]) : 0) {}
};

// A narrow weight as floats, plus an offset; the sum is rounded to the weight's type where asked.
template <class W>
std::vector<float> as_floats(const void* weight, int64_t n, float offset, bool rounded) {
  std::vector<float> out((size_t)n);
  for (int64_t i = 0; i < n; i++) {
    out[i] = widen(((const W*)weight)[i]) + offset;
    if (!rounded) continue;
    W narrow;
    store_one(&narrow, out[i]);
    out[i] = widen(narrow);
  }
  return out;
}
inline std::vector<float> as_floats(Type type, const void* weight, int64_t n, float offset,
                                    bool rounded) {
  return type == BF16 ? as_floats<bf16>(weight, n, offset, rounded)
                      : as_floats<f16>(weight, n, offset, rounded);
}

inline Tokens norm_rows_of(const Arg& t, const Arg& x, const char* op) {
  require(t.dtype == x.dtype, op, "every activation must have one dtype");
  require(t.dim == x.dim && same_sizes(t, x, x.dim), op, "every activation must have one shape");
  require(t.dense_last(), op, "the last dim must be dense");
  return collapse(t, 1, op, "the leading dims must collapse into one");
}

inline Tokens norm_written(const Arg& t, const Arg& x, const char* op) {
  Tokens rows = norm_rows_of(t, x, op);
  require_distinct(rows, x.size(-1), op);
  return rows;
}
// A written tensor is each activation row by row, or apart from it; from the weight it is apart.
inline void norm_apart(const Span& written, const Span& read, const char* op) {
  require(same_rows(written, read) || apart(written, read), op,
          "out overlaps an input without being it");
}

struct NormTypes {
  Type x, weight;
};
inline NormTypes norm_common(const Arg& x, const Arg& weight, const NormScalars& s, NormArgs& a,
                             const char* op) {
  require(x.dim >= 1, op, "x must have at least one dim");
  require(weight.dim == 1 && weight.size(0) == x.size(-1), op,
          "weight must be one dim as long as the last dim of x");
  a.hidden = x.size(-1);
  require(s.variance_size >= 0 && s.variance_size <= a.hidden, op,
          "variance_size must be from 0 to the last dim of x");
  a.seen = s.variance_size ? s.variance_size : a.hidden;
  a.eps = s.eps;
  a.offset = s.offset;
  a.weight_in_float32 = s.weight_in_float32;
  return {activation_type(x, op),
          type_of(weight, op, "weight must be float32, bfloat16 or float16")};
}

using NormKernel = void (*)(const NormArgs&, int64_t, int64_t);
// The kernel for these types, of one row of the table; one for floats gets the weight as floats.
inline NormKernel norm_kernel(const NormKernel (&kernels)[TYPES][TYPES], NormTypes types,
                              NormArgs& a, std::vector<float>& floats) {
  if (NormKernel found = kernels[types.x][types.weight]) return found;
  floats = as_floats(types.weight, a.weight, a.hidden, a.offset, !a.weight_in_float32);
  a.weight = floats.data();
  a.offset = 0.0f;
  return kernels[types.x][F32];
}

inline void run_rms_norm(const Arg& x, const Arg& weight, const NormScalars& s, const Arg& y,
                         bool y_is_x, const char* op) {
  NormArgs a{};
  NormTypes types = norm_common(x, weight, s, a, op);
  Tokens in = norm_rows_of(x, x, op), out = norm_written(y, x, op);
  if (in.count == 0 || a.hidden == 0) return;
  const Operand w(weight, 1);
  a.weight = w.data<char>();
  a.y = y.inout();
  a.x = y_is_x ? a.y : x.in();
  a.x_stride = in.stride;
  a.y_stride = out.stride;
  const int64_t itemsize = x.dtype == dtypes().f32 ? 4 : 2;
  const Span written(a.y, out, a.hidden, itemsize);
  norm_apart(written, Span(a.x, in, a.hidden, itemsize), op);
  require(apart(written, span_of(a.weight, weight)), op, "out overlaps the weight");
  std::vector<float> floats;
  const NormKernel kernel = norm_kernel(current().table->rms_norm, types, a, floats);
  over_rows(in.count, a.hidden * (x.dtype == dtypes().f32 ? 8 : 4),
            [&](int64_t begin, int64_t end) { kernel(a, begin, end); });
}

template <bool PREFIX>
inline void rms_norm(StableIValue* stack, uint64_t, uint64_t) {
  Arg x(stack[0]), weight(stack[1]);
  x.read();
  weight.read();
  NormScalars s(stack + 2, PREFIX);
  require(x.dim >= 1, "rms_norm", "x must have at least one dim");
  activation_type(x, "rms_norm");
  Arg y(fresh(x, x.size(-1), "rms_norm"));
  y.read();
  run_rms_norm(x, weight, s, y, false, "rms_norm");
  stack[0] = y.give();
}
template <bool PREFIX>
inline void rms_norm_out(StableIValue* stack, uint64_t, uint64_t) {
  Arg x(stack[0]), weight(stack[1]), out(stack[5 + PREFIX]);
  x.read();
  weight.read();
  out.read();
  run_rms_norm(x, weight, NormScalars(stack + 2, PREFIX), out, false, "rms_norm_out");
}
template <bool PREFIX>
inline void rms_norm_inplace(StableIValue* stack, uint64_t, uint64_t) {
  Arg x(stack[0]), weight(stack[1]);
  x.read();
  weight.read();
  run_rms_norm(x, weight, NormScalars(stack + 2, PREFIX), x, true, "rms_norm_");
}

inline void run_fused_add(const Arg& x, const Arg& residual, const Arg& weight,
                          const NormScalars& s, const Arg& y, const Arg& sum, bool in_place,
                          const char* op) {
  NormArgs a{};
  NormTypes types = norm_common(x, weight, s, a, op);
  Tokens tx = norm_rows_of(x, x, op), tr = norm_rows_of(residual, x, op);
  Tokens ty = norm_written(y, x, op), ts = norm_written(sum, x, op);
  if (tx.count == 0 || a.hidden == 0) return;
  const Operand w(weight, 1);
  a.weight = w.data<char>();
  a.y = y.inout();
  a.sum = sum.inout();
  a.x = in_place ? a.y : x.in();
  a.residual = in_place ? a.sum : residual.in();
  a.x_stride = tx.stride;
  a.residual_stride = tr.stride;
  a.y_stride = ty.stride;
  a.sum_stride = ts.stride;
  const int64_t itemsize = x.dtype == dtypes().f32 ? 4 : 2;
  const Span written[2] = {{a.y, ty, a.hidden, itemsize}, {a.sum, ts, a.hidden, itemsize}};
  require(apart(written[0], written[1]), op, "the two written tensors overlap");
  for (const Span& s : written) {
    norm_apart(s, Span(a.x, tx, a.hidden, itemsize), op);
    norm_apart(s, Span(a.residual, tr, a.hidden, itemsize), op);
    require(apart(s, span_of(a.weight, weight)), op, "out overlaps the weight");
  }
  std::vector<float> floats;
  const NormKernel kernel = norm_kernel(current().table->fused_add_rms_norm, types, a, floats);
  over_rows(tx.count, a.hidden * (x.dtype == dtypes().f32 ? 16 : 8),
            [&](int64_t begin, int64_t end) { kernel(a, begin, end); });
}

template <bool PREFIX>
inline void fused_add_rms_norm(StableIValue* stack, uint64_t, uint64_t) {
  const char* op = "fused_add_rms_norm";
  Arg x(stack[0]), residual(stack[1]), weight(stack[2]);
  x.read();
  residual.read();
  weight.read();
  NormScalars s(stack + 3, PREFIX);
  require(x.dim >= 1, op, "x must have at least one dim");
  activation_type(x, op);
  Arg y(fresh(x, x.size(-1), op)), sum(fresh(x, x.size(-1), op));
  y.read();
  sum.read();
  run_fused_add(x, residual, weight, s, y, sum, false, op);
  stack[0] = y.give();
  stack[1] = sum.give();
}
template <bool PREFIX>
inline void fused_add_rms_norm_out(StableIValue* stack, uint64_t, uint64_t) {
  Arg x(stack[0]), residual(stack[1]), weight(stack[2]);
  Arg y(stack[6 + PREFIX]), sum(stack[7 + PREFIX]);
  for (Arg* a : {&x, &residual, &weight, &y, &sum}) a->read();
  run_fused_add(x, residual, weight, NormScalars(stack + 3, PREFIX), y, sum, false,
                "fused_add_rms_norm_out");
}
template <bool PREFIX>
inline void fused_add_rms_norm_inplace(StableIValue* stack, uint64_t, uint64_t) {
  Arg x(stack[0]), residual(stack[1]), weight(stack[2]);
  x.read();
  residual.read();
  weight.read();
  run_fused_add(x, residual, weight, NormScalars(stack + 3, PREFIX), x, residual, true,
                "fused_add_rms_norm_");
}

}  // namespace trivet_cpu
