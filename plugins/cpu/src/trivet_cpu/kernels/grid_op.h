// Checks and entry point of products with a weight on a grid.
#pragma once
#include "overlap.h"

namespace trivet_cpu {

inline void grid_linear(StableIValue* stack, uint64_t, uint64_t) {
  const char* op = "linear_packed";
  Arg x(stack[0]), q(stack[1]), scales(stack[2]), bias(stack[3]);
  const bool biased = as_bool(stack[4]);
  x.read();
  q.read();
  scales.read();
  bias.read();
  require(x.dtype == dtypes().f32, op, "x must be float32");
  require(x.dim >= 1, op, "x must have at least one dim");
  require(q.dim == 2 && q.contiguous() && q.dtype == aoti_torch_dtype_uint8(), op,
          "the pack is damaged: its numbers");
  const int64_t in = x.size(-1), out = q.size(0), groups = in / 32;
  require(in % 32 == 0 && (q.size(1) == groups * 16 || q.size(1) == groups * 32), op,
          "the pack holds a weight of another width than x");
  GridArgs a{};
  a.bits = q.size(1) == groups * 16 ? 4 : 8;
  require(scales.dim == 2 && scales.contiguous() && scales.dtype == dtypes().f32 &&
              scales.size(0) == out && scales.size(1) == groups * (a.bits == 4 ? 2 : 1),
          op, "the pack is damaged: its scales");
  const Operand rows_of_x(x, 1), b(bias, 1);
  const Tokens rows = rows_of_x.rows;
  if (biased)
    require(bias.dim == 1 && bias.size(0) == out && bias.dtype == dtypes().f32, op,
            "bias must be float32 and one number for each output feature");
  Arg y(fresh(x, out, op));
  y.read();
  if (rows.count > 0 && out > 0) {
    a.x = rows_of_x.data<float>();
    a.y = y.inout<float>();
    a.q = q.in<uint8_t>();
    a.scales = scales.in<float>();
    a.bias = biased ? b.data<float>() : nullptr;
    a.rows = rows.count;
    a.x_stride = rows.stride;
    a.y_stride = out;
    a.in_features = in;
    a.out_features = out;
    const Table* table = current().table;
    const int64_t block = table->grid_block, blocks = (out + block - 1) / block;
    over_rows(blocks, block * (q.size(1) + scales.size(1) * 4),
              [&](int64_t begin, int64_t end) { table->grid(a, begin, end); });
  }
  stack[0] = y.give();
}

}  // namespace trivet_cpu
