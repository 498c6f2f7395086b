// Runs one kernel of one level without torch: operands from standard input, results to standard
// output. It is linked with level.cpp alone, for this machine or for one that is emulated.
//
//   level_program KERNEL TYPE NUMBER...
//
// TYPE is a digit of table.h's enumerations. Operands and results are dense, in the order in which
// the functions below name them. Nothing of the C++ library is used: a C linker is enough.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "table.h"

using namespace trivet_cpu;

namespace {

const Table& table = TRIVET_CPU_LEVEL;

[[noreturn]] void fail(const char* why) {
  std::fprintf(stderr, "level_program: %s\n", why);
  std::exit(2);
}

// Memory of `count` elements; its end lies at the end of what was asked for.
void* memory(int64_t count, int64_t size) {
  void* p = std::calloc((size_t)count + 1, (size_t)size);
  if (!p) fail("no memory");
  return p;
}
void* read(int64_t count, int64_t size) {
  void* p = memory(count, size);
  if (std::fread(p, (size_t)size, (size_t)count, stdin) != (size_t)count) fail("input is short");
  return p;
}
void write(const void* p, int64_t count, int64_t size) {
  if (std::fwrite(p, (size_t)size, (size_t)count, stdout) != (size_t)count) fail("cannot write");
}
int64_t bytes(int type) { return type == F32 ? 4 : 2; }

struct Numbers {
  char** next;
  int64_t whole() { return (int64_t)real(); }
  double real() {
    if (!*next) fail("a number is missing");
    return std::strtod(*next++, nullptr);
  }
};

// x, [residual,] weight -> y[, sum]
void norm(int type, Numbers n, bool add) {
  NormArgs a{};
  const int64_t rows = n.whole(), size = bytes(type / TYPES);
  a.hidden = a.x_stride = a.y_stride = a.residual_stride = a.sum_stride = n.whole();
  a.seen = a.hidden;
  a.eps = (float)n.real();
  a.offset = (float)n.real();
  a.weight_in_float32 = n.whole() != 0;
  const int64_t count = rows * a.hidden;
  a.x = read(count, size);
  if (add) a.residual = read(count, size);
  a.weight = read(a.hidden, bytes(type % TYPES));
  a.y = memory(count, size);
  if (add) a.sum = memory(count, size);
  const auto& kernels = add ? table.fused_add_rms_norm : table.rms_norm;
  kernels[type / TYPES][type % TYPES](a, 0, rows);
  write(a.y, count, size);
  if (add) write(a.sum, count, size);
}

// x -> y
void gate(int type, Numbers n) {
  ActivationArgs a{};
  const int64_t rows = n.whole();
  a.width = a.y_stride = n.whole();
  a.x_stride = 2 * a.width;
  a.x = read(rows * a.x_stride, bytes(type));
  a.y = memory(rows * a.width, bytes(type));
  table.activation_and_mul[SILU][type](a, 0, rows);
  write(a.y, rows * a.width, bytes(type));
}

// q, cos, sin -> q
void rotary(int type, Numbers n) {
  RotaryArgs a{};
  const int64_t tokens = n.whole(), heads = n.whole();
  a.head_dim = n.whole();
  a.half = a.cos_stride = a.sin_stride = n.whole();
  a.interleaved = n.whole() != 0;
  const int64_t row = heads * a.head_dim;
  a.parts = 1;
  a.part[0] = {read(tokens * row, bytes(type)), memory(tokens * row, bytes(type)),
               heads, row, row, a.head_dim, a.head_dim};
  a.cos = (const float*)read(tokens * a.half, 4);
  a.sin = (const float*)read(tokens * a.half, 4);
  table.rotary[type](a, 0, tokens);
  write(a.part[0].out, tokens * row, bytes(type));
}

// q, k_cache, v_cache, block_table, query_start, seq_lens -> out
void attention(int type, Numbers n) {
  AttentionArgs a{};
  a.tokens = n.whole(), a.heads = n.whole(), a.kv_heads = n.whole(), a.head_dim = n.whole();
  a.seqs = n.whole(), a.blocks = n.whole(), a.block_size = n.whole();
  a.table_stride = a.max_blocks = n.whole();
  a.window = n.whole(), a.scale = (float)n.real(), a.soft_cap = (float)n.real();
  a.causal = true;
  a.q_head_stride = a.k_head = a.v_head = a.head_dim;
  a.q_stride = a.heads * a.head_dim;
  a.k_slot = a.v_slot = a.kv_heads * a.head_dim;
  a.k_block = a.v_block = a.block_size * a.k_slot;
  a.q = read(a.tokens * a.q_stride, bytes(type));
  a.k = read(a.blocks * a.k_block, bytes(type));
  a.v = read(a.blocks * a.v_block, bytes(type));
  a.table = (const int32_t*)read(a.seqs * a.max_blocks, 4);
  a.query_start = (const int32_t*)read(a.seqs + 1, 4);
  a.seq_lens = (const int32_t*)read(a.seqs, 4);
  a.out = memory(a.tokens * a.q_stride, bytes(type));
  float* scratch = (float*)memory(table.attention_scratch(a.head_dim), 4);
  for (int32_t s = 0; s < a.seqs; s++) {
    const int64_t queries = a.query_start[s + 1] - a.query_start[s];
    const int64_t rows = queries * (a.heads / a.kv_heads);
    for (int32_t h = 0; h < a.kv_heads; h++)
      for (int64_t row = 0; row < rows; row += TILE_ROWS)
        if (!table.attention[type](a, {s, h, row}, scratch)) fail("a block does not exist");
  }
  write(a.out, a.tokens * a.q_stride, bytes(type));
}

}  // namespace

int main(int count, char** words) {
  if (count < 3) fail("name a kernel and a type");
  const char* name = words[1];
  const int type = std::atoi(words[2]);
  const Numbers n{words + 3};
  if (!std::strcmp(name, "rms_norm"))
    norm(type, n, false);
  else if (!std::strcmp(name, "fused_add_rms_norm"))
    norm(type, n, true);
  else if (!std::strcmp(name, "silu_and_mul"))
    gate(type, n);
  else if (!std::strcmp(name, "rotary"))
    rotary(type, n);
  else if (!std::strcmp(name, "attention"))
    attention(type, n);
  else
    fail("no such kernel");
  return 0;
}
