// Checks and entry point of attention: dense keys and values, given to the tiles of paged_attention
// as a cache of one block a sequence.
#pragma once
#include <numeric>

#include "attention_op.h"

namespace trivet_cpu {

inline void check_dense(const Arg& q, const Arg& k, const Arg& v, const char* op) {
  activation_type(q, op);
  require(q.dtype == k.dtype && q.dtype == v.dtype, op, "q, k and v must have one dtype");
  require(q.dim == 4, op, "q must have the dims batch, queries, heads, head_dim");
  require(k.dim == 4 && v.dim == 4, op, "k and v must have the dims batch, keys, kv_heads, width");
  require(same_sizes(k, v, 3) && k.size(0) == q.size(0), op,
          "batch, keys and kv_heads of q, k and v must agree");
  require(k.size(3) == q.size(3) && v.size(3) == q.size(3), op,
          "q, k and v must have one width");
  require(k.size(2) > 0 && q.size(2) % k.size(2) == 0, op, "kv_heads must divide heads");
  require(q.dense_last() && k.dense_last() && v.dense_last(), op, "the last dims must be dense");
}

// Stack: q, k, v, scale, causal, window, soft_cap
inline void dense_attention(StableIValue* stack, uint64_t, uint64_t) {
  const char* op = "attention";
  Arg q(stack[0]), k(stack[1]), v(stack[2]);
  for (Arg* a : {&q, &k, &v}) a->read();
  check_dense(q, k, v, op);
  AttentionArgs a = attention_args(q, k, v, op);
  a.scale = (float)as_double(stack[3]);
  a.causal = as_bool(stack[4]);
  a.window = as_int(stack[5]);
  a.soft_cap = (float)as_double(stack[6]);
  require(a.window >= 0 && a.soft_cap >= 0.0f, op, "window and soft_cap must not be negative");
  a.seqs = q.size(0);
  const int64_t queries = q.size(1), keys = k.size(1);
  require(q.numel() / (q.size(3) ? q.size(3) : 1) < INT32_MAX && keys < INT32_MAX, op,
          "the call has more rows than an int32 counts");
  std::vector<int32_t> start(a.seqs + 1), table(a.seqs), lens(a.seqs, (int32_t)keys);
  std::iota(table.begin(), table.end(), 0);
  for (int64_t s = 0; s <= a.seqs; s++) start[s] = (int32_t)(s * queries);
  a.table = table.data(), a.query_start = start.data(), a.seq_lens = lens.data();
  a.table_stride = a.max_blocks = 1;
  Arg out(fresh(q, q.size(3), op));
  out.read();
  a.out = out.inout();
  if (out.numel() > 0) run_tiles(a, activation_type(q, op), op);
  stack[0] = out.give();
}

}  // namespace trivet_cpu
