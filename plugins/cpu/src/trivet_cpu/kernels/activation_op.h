// Checks and entry points of silu_and_mul.
#pragma once
#include "overlap.h"

namespace trivet_cpu {

inline void run_silu_and_mul(const Arg& x, const Arg& y, const char* op) {
  Type type = activation_type(x, op);
  require(x.dim >= 1 && x.size(-1) % 2 == 0, op, "the last dim must be even");
  require(x.dense_last() && y.dense_last(), op, "the last dim must be dense");
  require(y.dtype == x.dtype, op, "out must have the dtype of x");
  require(y.dim == x.dim && same_sizes(x, y, x.dim - 1) && y.size(-1) * 2 == x.size(-1), op,
          "out must have the shape of x with half of its last dim");
  GateArgs a{};
  a.inter = y.size(-1);
  Tokens in = collapse(x, 1, op, "the leading dims must collapse into one");
  Tokens out = collapse(y, 1, op, "the leading dims must collapse into one");
  require_distinct(out, a.inter, op);
  if (in.count == 0 || a.inter == 0) return;
  a.x = x.in();
  a.y = y.inout();
  a.x_stride = in.stride;
  a.y_stride = out.stride;
  const int64_t itemsize = type == F32 ? 4 : 2;
  const Span written(a.y, out, a.inter, itemsize);
  for (int half = 0; half < 2; half++) {
    const Span read((const char*)a.x + half * a.inter * itemsize, in, a.inter, itemsize);
    require(same_rows(written, read) || apart(written, read), op,
            "out overlaps x without being one of its halves");
  }
  auto kernel = current().table->silu_and_mul[type];
  over_rows(in.count, a.inter * (type == F32 ? 12 : 6),
            [&](int64_t begin, int64_t end) { kernel(a, begin, end); });
}

inline void silu_and_mul(StableIValue* stack, uint64_t, uint64_t) {
  Arg x(stack[0]);
  x.read();
  activation_type(x, "silu_and_mul");
  require(x.dim >= 1, "silu_and_mul", "x must have at least one dim");
  Arg y(fresh(x, x.size(-1) / 2, "silu_and_mul"));
  y.read();
  run_silu_and_mul(x, y, "silu_and_mul");
  stack[0] = y.give();
}
inline void silu_and_mul_out(StableIValue* stack, uint64_t, uint64_t) {
  Arg x(stack[0]), out(stack[1]);
  x.read();
  out.read();
  run_silu_and_mul(x, out, "silu_and_mul_out");
}

}  // namespace trivet_cpu
