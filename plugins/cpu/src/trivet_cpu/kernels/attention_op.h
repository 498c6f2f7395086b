// Checks, tiles and entry points of paged_attention.
#pragma once
#include <atomic>
#include <cstdlib>
#include <memory>
#include <vector>

#include "overlap.h"

namespace trivet_cpu {

struct FreeMemory {
  void operator()(float* p) const { std::free(p); }
};

// Working memory of a thread; kept, because the system would map and clear it at every call.
inline float* scratch_of_thread(int64_t floats) {
  static thread_local std::unique_ptr<float, FreeMemory> memory;
  static thread_local int64_t size = 0;
  if (size < floats) {
    void* p = nullptr;
    if (posix_memalign(&p, 64, floats * sizeof(float)) != 0) throw std::bad_alloc();
    memory.reset((float*)p);
    size = floats;
  }
  return memory.get();
}

inline void check_attention(const Arg& q, const Arg& k, const Arg& v, const Arg& table,
                            const Arg& query_start, const Arg& seq_lens, const char* op) {
  activation_type(q, op);
  require(q.dtype == k.dtype && q.dtype == v.dtype, op, "q and the caches must have one dtype");
  require(q.dim >= 2, op, "q must have at least the dims heads and head_dim");
  require(k.dim == 4 && v.dim == 4 && same_sizes(k, v, 4), op,
          "both caches must have the dims blocks, block_size, kv_heads, head_dim");
  require(q.size(-1) == k.size(3), op, "head_dim of q and the caches must agree");
  require(k.size(2) > 0 && q.size(-2) % k.size(2) == 0, op, "kv_heads must divide heads");
  require(q.dense_last(), op, "head_dim must be dense");
  require(k.contiguous() && v.contiguous(), op, "the caches must be contiguous");
  require(table.dtype == dtypes().i32 && query_start.dtype == dtypes().i32 &&
              seq_lens.dtype == dtypes().i32,
          op, "block_table, query_start and seq_lens must be int32");
  require(table.dim == 2 && query_start.dim == 1 && seq_lens.dim == 1 &&
              table.size(0) == seq_lens.size(0) && query_start.size(0) == seq_lens.size(0) + 1,
          op, "block_table, query_start and seq_lens must have seqs, seqs + 1 and seqs rows");
}

inline AttentionArgs attention_args(const Arg& q, const Arg& k, const Arg& v, const char* op) {
  AttentionArgs a{};
  Tokens tokens = collapse(q, 2, op, "the token dims of q must collapse into one");
  a.tokens = tokens.count;
  a.q_stride = tokens.stride;
  a.q_head_stride = q.stride(-2);
  a.heads = q.size(-2);
  a.head_dim = q.size(-1);
  a.blocks = k.size(0);
  a.block_size = k.size(1);
  a.kv_heads = k.size(2);
  a.k_block = k.stride(0), a.k_slot = k.stride(1), a.k_head = k.stride(2);
  a.v_block = v.stride(0), a.v_slot = v.stride(1), a.v_head = v.stride(2);
  a.q = q.in();
  a.k = k.in();
  a.v = v.in();
  return a;
}

// Tiles of every sequence with queries; `work` is the number of scores, for the serial cut-off.
inline std::vector<AttentionTile> attention_tiles(const AttentionArgs& a, double& work,
                                                  const char* op) {
  std::vector<AttentionTile> tiles;
  const int64_t group = a.heads / a.kv_heads;
  require(a.query_start[0] >= 0 && a.query_start[a.seqs] <= a.tokens, op,
          "query_start must lie within the tokens of q");
  work = 0;
  for (int64_t s = 0; s < a.seqs; s++) {
    int64_t queries = (int64_t)a.query_start[s + 1] - a.query_start[s], length = a.seq_lens[s];
    require(queries >= 0, op, "query_start must not decrease");
    require(length >= 0 && length <= a.max_blocks * a.block_size, op,
            "a sequence is longer than its row of block_table");
    work += (double)queries * a.heads * length;
    for (int64_t h = 0; h < a.kv_heads; h++)
      for (int64_t row = 0; row < queries * group; row += TILE_ROWS)
        tiles.push_back({(int32_t)s, (int32_t)h, row});
  }
  return tiles;
}

inline void run_tiles(const AttentionArgs& a, Type type, const char* op) {
  double work = 0;
  std::vector<AttentionTile> tiles = attention_tiles(a, work, op);
  auto kernel = current().table->attention[type];
  const int64_t floats = current().table->attention_scratch(a.head_dim);
  const int64_t count = (int64_t)tiles.size();
  std::atomic<int64_t> next{0};
  std::atomic<bool> found{true};
  // Tiles differ in length, so threads take the next one instead of a fixed share.
  auto worker = [&](int64_t, int64_t) {
    float* scratch = scratch_of_thread(floats);
    for (int64_t i = next++; i < count && found; i = next++)
      if (!kernel(a, tiles[i], scratch)) found = false;
  };
  constexpr double SERIAL_WORK = 64 * 1024;  // multiply-adds
  int64_t threads = work * a.head_dim < SERIAL_WORK ? 1 : thread_count();
  threads = threads < count ? threads : count;
  if (threads <= 1)
    worker(0, 1);
  else
    in_parallel(threads, 1, worker);
  require(found, op, "block_table names a block outside of the cache");
}

inline void require_attention_apart(const AttentionArgs& a, const Arg* args, const Arg& out,
                                    const char* op) {
  const Span written = span_of(a.out, out);
  const int64_t heads = (a.heads - 1) * a.q_head_stride;  // from the first head to the last
  const int64_t itemsize = (int64_t)aoti_torch_dtype_element_size(args[0].dtype);
  const Span q(a.q, {a.tokens, a.q_stride}, heads + a.head_dim, itemsize);
  require(apart(written, q) && apart(written, span_of(a.k, args[1])) &&
              apart(written, span_of(a.v, args[2])),
          op, "out overlaps q or a cache");
}

// Stack: q, k_cache, v_cache, block_table, query_start, seq_lens, scale, window, soft_cap, out?
inline void run_attention(Arg* args, const StableIValue* scalars, const Arg& out, const char* op) {
  AttentionArgs a = attention_args(args[0], args[1], args[2], op);
  const Operand table(args[3], 1), query_start(args[4], 1), seq_lens(args[5], 1);
  a.seqs = args[5].size(0);
  a.max_blocks = args[3].size(1);
  a.table_stride = table.rows.stride;
  a.table = table.data<int32_t>();
  a.query_start = query_start.data<int32_t>();
  a.seq_lens = seq_lens.data<int32_t>();
  a.scale = (float)as_double(scalars[0]);
  a.window = as_int(scalars[1]);
  a.soft_cap = (float)as_double(scalars[2]);
  a.causal = true;
  require(a.window >= 0 && a.soft_cap >= 0.0f, op, "window and soft_cap must not be negative");
  if (a.tokens == 0 || a.heads == 0 || a.head_dim == 0) return;
  a.out = out.inout();
  require_attention_apart(a, args, out, op);
  Type type = activation_type(args[0], op);
  const int64_t token = a.heads * a.head_dim * (type == F32 ? 4 : 2);
  run_tiles(a, type, op);
  const int64_t covered = a.query_start[0], until = a.query_start[a.seqs];
  std::memset((char*)a.out, 0, covered * token);
  std::memset((char*)a.out + until * token, 0, (a.tokens - until) * token);
}

inline void paged_attention(StableIValue* stack, uint64_t, uint64_t) {
  const char* op = "paged_attention";
  Arg args[6] = {Arg(stack[0]), Arg(stack[1]), Arg(stack[2]),
                 Arg(stack[3]), Arg(stack[4]), Arg(stack[5])};
  for (Arg& a : args) a.read();
  check_attention(args[0], args[1], args[2], args[3], args[4], args[5], op);
  Arg out(fresh(args[0], args[0].size(-1), op));
  out.read();
  run_attention(args, stack + 6, out, op);
  stack[0] = out.give();
}
inline void paged_attention_out(StableIValue* stack, uint64_t, uint64_t) {
  const char* op = "paged_attention_out";
  Arg args[6] = {Arg(stack[0]), Arg(stack[1]), Arg(stack[2]),
                 Arg(stack[3]), Arg(stack[4]), Arg(stack[5])};
  Arg out(stack[9]);
  for (Arg& a : args) a.read();
  out.read();
  check_attention(args[0], args[1], args[2], args[3], args[4], args[5], op);
  require(out.dtype == args[0].dtype && out.dim == args[0].dim &&
              same_sizes(out, args[0], out.dim),
          op, "out must have the shape and dtype of q");
  require(out.contiguous(), op, "out must be contiguous");
  run_attention(args, stack + 6, out, op);
}

}  // namespace trivet_cpu
