// Checks and entry points of silu, gelu and their gates.
#pragma once
#include "overlap.h"

namespace trivet_cpu {

inline Activation gelu_of(StableIValue tanh) { return as_bool(tanh) ? GELU_TANH : GELU; }

// With a gate y is half as wide as x. In place y is x.
inline void run_activation(const Arg& x, const Arg& y, Activation activation, bool gate,
                           const char* op) {
  const Type type = activation_type(x, op);
  const int64_t parts = gate ? 2 : 1;
  require(x.dim >= 1, op, "x must have at least one dim");
  require(x.size(-1) % parts == 0, op, "the last dim must be even");
  require(x.dense_last() && y.dense_last(), op, "the last dim must be dense");
  require(y.dtype == x.dtype, op, "out must have the dtype of x");
  require(y.dim == x.dim && same_sizes(x, y, x.dim - 1) && y.size(-1) * parts == x.size(-1), op,
          gate ? "out must have the shape of x with half of its last dim"
               : "out must have the shape of x");
  ActivationArgs a{};
  a.width = y.size(-1);
  Tokens in = collapse(x, 1, op, "the leading dims must collapse into one");
  Tokens out = collapse(y, 1, op, "the leading dims must collapse into one");
  require_distinct(out, a.width, op);
  if (in.count == 0 || a.width == 0) return;
  a.y = y.inout();
  a.x = &x == &y ? a.y : x.in();
  a.x_stride = in.stride;
  a.y_stride = out.stride;
  const int64_t itemsize = type == F32 ? 4 : 2;
  const Span written(a.y, out, a.width, itemsize);
  for (int part = 0; part < parts; part++) {
    const Span read((const char*)a.x + part * a.width * itemsize, in, a.width, itemsize);
    require(same_rows(written, read) || apart(written, read), op,
            gate ? "out overlaps x without being one of its halves"
                 : "out overlaps x without being it");
  }
  const Table& table = *current().table;
  auto kernel = (gate ? table.activation_and_mul : table.activation)[activation][type];
  over_rows(in.count, a.width * itemsize * (parts + 1),
            [&](int64_t begin, int64_t end) { kernel(a, begin, end); });
}

inline void fresh_activation(StableIValue* stack, const Arg& x, Activation activation, bool gate,
                             const char* op) {
  activation_type(x, op);
  require(x.dim >= 1, op, "x must have at least one dim");
  Arg y(fresh(x, x.size(-1) / (gate ? 2 : 1), op));
  y.read();
  run_activation(x, y, activation, gate, op);
  stack[0] = y.give();
}

inline void silu_and_mul(StableIValue* stack, uint64_t, uint64_t) {
  Arg x(stack[0]);
  x.read();
  fresh_activation(stack, x, SILU, true, "silu_and_mul");
}
inline void silu_and_mul_out(StableIValue* stack, uint64_t, uint64_t) {
  Arg x(stack[0]), out(stack[1]);
  x.read();
  out.read();
  run_activation(x, out, SILU, true, "silu_and_mul_out");
}
inline void gelu_and_mul(StableIValue* stack, uint64_t, uint64_t) {
  Arg x(stack[0]);
  x.read();
  fresh_activation(stack, x, gelu_of(stack[1]), true, "gelu_and_mul");
}
inline void gelu_and_mul_out(StableIValue* stack, uint64_t, uint64_t) {
  Arg x(stack[0]), out(stack[2]);
  x.read();
  out.read();
  run_activation(x, out, gelu_of(stack[1]), true, "gelu_and_mul_out");
}

inline void silu(StableIValue* stack, uint64_t, uint64_t) {
  Arg x(stack[0]);
  x.read();
  fresh_activation(stack, x, SILU, false, "silu");
}
inline void silu_inplace(StableIValue* stack, uint64_t, uint64_t) {
  Arg x(stack[0]);
  x.read();
  run_activation(x, x, SILU, false, "silu_");
}
inline void silu_out(StableIValue* stack, uint64_t, uint64_t) {
  Arg x(stack[0]), out(stack[1]);
  x.read();
  out.read();
  run_activation(x, out, SILU, false, "silu_out");
}
inline void gelu(StableIValue* stack, uint64_t, uint64_t) {
  Arg x(stack[0]);
  x.read();
  fresh_activation(stack, x, gelu_of(stack[1]), false, "gelu");
}
inline void gelu_inplace(StableIValue* stack, uint64_t, uint64_t) {
  Arg x(stack[0]);
  x.read();
  run_activation(x, x, gelu_of(stack[1]), false, "gelu_");
}
inline void gelu_out(StableIValue* stack, uint64_t, uint64_t) {
  Arg x(stack[0]), out(stack[2]);
  x.read();
  out.read();
  run_activation(x, out, gelu_of(stack[1]), false, "gelu_out");
}

}  // namespace trivet_cpu
