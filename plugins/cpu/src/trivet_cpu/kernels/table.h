// What a level offers: one table of functions, filled by level.cpp, read by the operators.
#pragma once
#include <cstdint>

namespace trivet_cpu {

enum Type : int { F32 = 0, BF16 = 1, F16 = 2, TYPES = 3 };
// Of reductions over ranks; a boolean is a U8, a complex number two floats.
enum Number : int {
  N_F32, N_BF16, N_F16, N_E4M3, N_E5M2, N_F64,
  N_I8, N_I16, N_I32, N_I64, N_U8, N_U16, N_U32, N_U64, NUMBERS
};
enum Reduction : int { R_SUM, R_PRODUCT, R_MAX, R_MIN, R_AND, R_OR, R_XOR, REDUCTIONS };
enum Activation : int { SILU = 0, GELU = 1, GELU_TANH = 2, ACTIVATIONS = 3 };

// Strides are counted in elements; rows are dense.
struct NormArgs {
  const void* x;
  const void* residual;  // fused_add_rms_norm only, as are the next two
  void* sum;
  int64_t residual_stride, sum_stride;
  const void* weight;
  void* y;
  int64_t x_stride, y_stride;
  int64_t hidden;
  int64_t seen;  // elements of a row that its mean square is taken over, from the first one
  float eps, offset;
  bool weight_in_float32;
};

struct LayerNormArgs {
  const void* x;
  const void *weight, *bias;  // null: absent
  void* y;
  int64_t x_stride, y_stride;
  int64_t hidden;
  float eps;
};

struct ActivationArgs {
  const void* x;
  void* y;
  int64_t x_stride, y_stride;
  int64_t width;  // of y; with a gate x is twice as wide
};

struct GridArgs {
  const float* x;
  float* y;
  const uint8_t* q;      // [out_features][in_features / 32][16 or 32]
  const float* scales;   // [out_features][in_features / 32][2 or 1]: d and m, or d
  const float* bias;     // may be null
  int64_t rows, x_stride, y_stride, in_features, out_features;
  int bits;  // 4 or 8
};

struct RotaryPart {  // q or k
  const void* in;
  void* out;
  int64_t heads;
  int64_t in_stride, out_stride;            // from token to token
  int64_t in_head_stride, out_head_stride;  // from head to head
};
struct RotaryArgs {
  RotaryPart part[2];
  int parts;
  const float *cos, *sin;
  int64_t cos_stride, sin_stride;
  int64_t head_dim, half;
  bool interleaved;
};

// Rotates q in place and k into the cache: part[1].out is the cache, its out_stride from slot to
// slot. v lies as a part does, and has the heads of k.
struct RotaryCacheArgs {
  RotaryArgs rotary;
  RotaryPart v;
  const int64_t* slots;
  int64_t slot_step;
};

struct AttentionArgs {
  const void *q, *k, *v;
  void* out;
  const int32_t *table, *query_start, *seq_lens;
  int64_t table_stride;
  int64_t tokens, heads, kv_heads, head_dim, seqs;
  int64_t q_stride, q_head_stride;                // out is contiguous
  int64_t k_block, k_slot, k_head;                // strides of the key cache
  int64_t v_block, v_slot, v_head;                // strides of the value cache
  int64_t blocks, block_size, max_blocks, window;  // window 0: no window
  float scale, soft_cap;                          // soft_cap 0: none
  bool causal;
};
// One query tile: rows of (token, head of the group), at most TILE_ROWS, of one sequence and kv head.
struct AttentionTile {
  int32_t seq, kv_head;
  int64_t first_row;
};
constexpr int TILE_ROWS = 32;

// Absent tensors are null; strides are counted in elements.
struct SampleArgs {
  const void* logits;
  int64_t stride, n, first;
  const float *temperature, *top_p;
  const int32_t* top_k;
  const int64_t *seed, *position;
  int64_t temperature_stride, top_k_stride, top_p_stride, seed_stride, position_stride;
  const double* min_log;  // log(min_p), dense
  int64_t* ids;
  float* scores;  // sample_token_part only
};
struct SampleEntry {  // a token: its place in the order of the logits, and its weight
  uint64_t place;
  float weight;
};

struct Table {
  // Of the norms: the types of the activation and of the weight; null where two narrow types meet
  // that no model mixes, which then get their weight as floats.
  void (*rms_norm[TYPES][TYPES])(const NormArgs&, int64_t begin, int64_t end);
  void (*fused_add_rms_norm[TYPES][TYPES])(const NormArgs&, int64_t begin, int64_t end);
  void (*layer_norm[TYPES][TYPES])(const LayerNormArgs&, int64_t begin, int64_t end);
  void (*activation[ACTIVATIONS][TYPES])(const ActivationArgs&, int64_t begin, int64_t end);
  void (*activation_and_mul[ACTIVATIONS][TYPES])(const ActivationArgs&, int64_t begin,
                                                 int64_t end);
  void (*rotary[TYPES])(const RotaryArgs&, int64_t begin, int64_t end);
  void (*rotary_cache[TYPES])(const RotaryCacheArgs&, int64_t begin, int64_t end);
  // False when the block table names a block that does not exist.
  bool (*attention[TYPES])(const AttentionArgs&, const AttentionTile&, float* scratch);
  int64_t (*attention_scratch)(int64_t head_dim);  // floats
  void (*grid)(const GridArgs&, int64_t begin, int64_t end);  // blocks of outputs
  int64_t grid_block;                                         // outputs of a block
  void (*sample[TYPES])(const SampleArgs&, int64_t begin, int64_t end, SampleEntry* entries);
  // Null where an operation means nothing. out may be one of the inputs.
  void (*reduce[REDUCTIONS][NUMBERS])(void* out, const void* const* in, int ranks, int64_t n);
};

#if defined(TRIVET_CPU_HAS_BASELINE)
extern "C" const Table trivet_cpu_baseline;
#endif
#if defined(TRIVET_CPU_HAS_AVX2)
extern "C" const Table trivet_cpu_avx2;
#endif
#if defined(TRIVET_CPU_HAS_AVX512)
extern "C" const Table trivet_cpu_avx512;
#endif
#if defined(TRIVET_CPU_HAS_NEON)
extern "C" const Table trivet_cpu_neon;
#endif

}  // namespace trivet_cpu
