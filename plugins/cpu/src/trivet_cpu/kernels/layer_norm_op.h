// Checks and entry points of layer_norm.
#pragma once
#include "norm_op.h"

namespace trivet_cpu {

// weight or bias, or neither: absent ones are null.
struct Affine {
  Arg weight, bias;
  Affine(StableIValue w, StableIValue b) : weight(as_optional(w)), bias(as_optional(b)) {}
  void read() {
    if (weight.present()) weight.read();
    if (bias.present()) bias.read();
  }
};

// The type of weight or bias; float32 where it is absent.
inline Type layer_norm_operand(const Arg& t, const Arg& x, const char* op) {
  if (!t.present()) return F32;
  require(t.dim == 1 && t.size(0) == x.size(-1), op,
          "weight and bias must be one dim as long as the last dim of x");
  return type_of(t, op, "weight and bias must be float32, bfloat16 or float16");
}

inline Tokens layer_norm_rows_of(const Arg& t, const char* op) {
  require(t.dense_last(), op, "the last dim must be dense");
  return collapse(t, 1, op, "the leading dims must collapse into one");
}

// In place y is x.
inline void run_layer_norm(const Arg& x, const Affine& affine, float eps, const Arg& y,
                           const char* op) {
  const Arg &weight = affine.weight, &bias = affine.bias;
  const Type type = activation_type(x, op);
  require(x.dim >= 1, op, "x must have at least one dim");
  const Type scale = layer_norm_operand(weight, x, op), shift = layer_norm_operand(bias, x, op);
  require(!weight.present() || !bias.present() || scale == shift, op,
          "weight and bias must have one dtype");
  require(y.dtype == x.dtype, op, "out must have the dtype of x");
  require(y.dim == x.dim && same_sizes(y, x, x.dim), op, "out must have the shape of x");
  LayerNormArgs a{};
  a.hidden = x.size(-1);
  a.eps = eps;
  const Tokens in = layer_norm_rows_of(x, op), out = layer_norm_rows_of(y, op);
  require_distinct(out, a.hidden, op);
  if (in.count == 0 || a.hidden == 0) return;
  a.y = y.inout();
  a.x = &x == &y ? a.y : x.in();
  a.x_stride = in.stride;
  a.y_stride = out.stride;
  const int64_t itemsize = type == F32 ? 4 : 2;
  const Span written(a.y, out, a.hidden, itemsize);
  const Span read(a.x, in, a.hidden, itemsize);
  require(same_rows(written, read) || apart(written, read), op,
          "out overlaps x without being it");
  const Operand w(weight, 1), b(bias, 1);
  a.weight = w.data<char>();
  a.bias = b.data<char>();
  for (const auto& [at, t] : {std::pair{a.weight, &weight}, std::pair{a.bias, &bias}})
    require(!at || apart(written, span_of(at, *t)), op, "out overlaps the weight or the bias");
  const Type narrow = weight.present() ? scale : shift;
  auto kernel = current().table->layer_norm[type][narrow];
  std::vector<float> floats[2];
  if (!kernel) {
    kernel = current().table->layer_norm[type][F32];
    if (a.weight) a.weight = (floats[0] = as_floats(narrow, a.weight, a.hidden, 0, false)).data();
    if (a.bias) a.bias = (floats[1] = as_floats(narrow, a.bias, a.hidden, 0, false)).data();
  }
  over_rows(in.count, a.hidden * itemsize * 2,
            [&](int64_t begin, int64_t end) { kernel(a, begin, end); });
}

inline void layer_norm(StableIValue* stack, uint64_t, uint64_t) {
  const char* op = "layer_norm";
  Arg x(stack[0]);
  Affine affine(stack[1], stack[2]);
  x.read();
  affine.read();
  activation_type(x, op);
  require(x.dim >= 1, op, "x must have at least one dim");
  Arg y(fresh(x, x.size(-1), op));
  y.read();
  run_layer_norm(x, affine, (float)as_double(stack[3]), y, op);
  stack[0] = y.give();
}
inline void layer_norm_inplace(StableIValue* stack, uint64_t, uint64_t) {
  Arg x(stack[0]);
  Affine affine(stack[1], stack[2]);
  x.read();
  affine.read();
  run_layer_norm(x, affine, (float)as_double(stack[3]), x, "layer_norm_");
}
inline void layer_norm_out(StableIValue* stack, uint64_t, uint64_t) {
  Arg x(stack[0]);
  Affine affine(stack[1], stack[2]);
  Arg out(stack[4]);
  x.read();
  affine.read();
  out.read();
  run_layer_norm(x, affine, (float)as_double(stack[3]), out, "layer_norm_out");
}

}  // namespace trivet_cpu
