// The library's operators, over torch's stable interface: one file runs on many versions of torch.
#include "library.h"

#include "activation_op.h"
#include "attention_op.h"
#include "grid_op.h"
#include "dense_attention_op.h"
#include "kv_cache_op.h"
#include "layer_norm_op.h"
#include "norm_op.h"
#include "qk_norm_op.h"
#include "rotary_cache_op.h"
#include "rotary_op.h"
#include "sampling_op.h"

namespace trivet_cpu {

// The level in use: 0 baseline, 1 AVX2, 2 AVX-512, 3 NEON.
static void isa(StableIValue* stack, uint64_t, uint64_t) {
  stack[0] = torch::stable::detail::from((int64_t)current().level);
}
// A bit for each level that is compiled and that this machine can run.
static void isa_levels(StableIValue* stack, uint64_t, uint64_t) {
  int64_t bits = 0;
  for (int i = 0; i < LEVELS; i++)
    if (table_of(i)) bits |= (int64_t)1 << i;
  stack[0] = torch::stable::detail::from(bits);
}
// For tests: uses another level from the next call on. Not meant for use while kernels run.
static void set_isa(StableIValue* stack, uint64_t, uint64_t) {
  int64_t level = as_int(stack[0]);
  const Table* table = level >= 0 && level < LEVELS ? table_of((int)level) : nullptr;
  require(table != nullptr, "set_isa", "this level is not compiled or cannot run here");
  current().level = (int)level;
  current().table = table;
}

}  // namespace trivet_cpu

#define NORM_SCALARS "float eps, float weight_offset, bool weight_in_float32"
// The norms, and the same ones with a mean square over a prefix of the row: they have names of
// their own since an argument more costs each call as much as a short row.
#define DEFINE_NORMS(NAME, SCALARS)                                                            \
  m.def("rms_norm" NAME "(Tensor x, Tensor weight, " SCALARS ") -> Tensor");                   \
  m.def("rms_norm" NAME "_out(Tensor x, Tensor weight, " SCALARS ", Tensor(a!) out) -> ()");   \
  m.def("rms_norm" NAME "_(Tensor(a!) x, Tensor weight, " SCALARS ") -> ()");                  \
  m.def("fused_add_rms_norm" NAME "(Tensor x, Tensor residual, Tensor weight, " SCALARS        \
        ") -> (Tensor, Tensor)");                                                              \
  m.def("fused_add_rms_norm" NAME "_out(Tensor x, Tensor residual, Tensor weight, " SCALARS    \
        ", Tensor(a!) y, Tensor(b!) sum) -> ()");                                              \
  m.def("fused_add_rms_norm" NAME                                                              \
        "_(Tensor(a!) x, Tensor(b!) residual, Tensor weight, " SCALARS ") -> ()")
#define IMPLEMENT_NORMS(NAME, PREFIX)                                                          \
  m.impl("rms_norm" NAME, &trivet_cpu::rms_norm<PREFIX>);                                      \
  m.impl("rms_norm" NAME "_out", &trivet_cpu::rms_norm_out<PREFIX>);                           \
  m.impl("rms_norm" NAME "_", &trivet_cpu::rms_norm_inplace<PREFIX>);                          \
  m.impl("fused_add_rms_norm" NAME, &trivet_cpu::fused_add_rms_norm<PREFIX>);                  \
  m.impl("fused_add_rms_norm" NAME "_out", &trivet_cpu::fused_add_rms_norm_out<PREFIX>);       \
  m.impl("fused_add_rms_norm" NAME "_", &trivet_cpu::fused_add_rms_norm_inplace<PREFIX>)
#define LAYER_NORM "Tensor x, Tensor? weight, Tensor? bias, float eps"
#define PENALTIES                                                                           \
  "Tensor tokens, Tensor prompt_lens, Tensor repetition, Tensor presence, Tensor frequency"
#define PAGES                                                                               \
  "Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor query_start, "      \
  "Tensor seq_lens, float scale, int window, float soft_cap"

TRIVET_CPU_DEFINITIONS(m) {
  m.def("isa() -> int");
  m.def("isa_levels() -> int");
  m.def("set_isa(int level) -> ()");
  DEFINE_NORMS("", NORM_SCALARS);
  DEFINE_NORMS("_prefix", NORM_SCALARS ", int variance_size");
  m.def("q_norm(Tensor q, Tensor weight, " NORM_SCALARS ") -> Tensor");
  m.def("qk_norm(Tensor q, Tensor k, Tensor q_weight, Tensor k_weight, " NORM_SCALARS
        ") -> (Tensor, Tensor)");
  m.def("q_norm_(Tensor(a!) q, Tensor weight, " NORM_SCALARS ") -> ()");
  m.def("qk_norm_(Tensor(a!) q, Tensor(b!) k, Tensor q_weight, Tensor k_weight, " NORM_SCALARS
        ") -> ()");
  m.def("silu_and_mul(Tensor x) -> Tensor");
  m.def("silu_and_mul_out(Tensor x, Tensor(a!) out) -> ()");
  m.def("gelu_and_mul(Tensor x, bool tanh) -> Tensor");
  m.def("gelu_and_mul_out(Tensor x, bool tanh, Tensor(a!) out) -> ()");
  m.def("silu(Tensor x) -> Tensor");
  m.def("silu_(Tensor(a!) x) -> ()");
  m.def("silu_out(Tensor x, Tensor(a!) out) -> ()");
  m.def("gelu(Tensor x, bool tanh) -> Tensor");
  m.def("gelu_(Tensor(a!) x, bool tanh) -> ()");
  m.def("gelu_out(Tensor x, bool tanh, Tensor(a!) out) -> ()");
  m.def("layer_norm(" LAYER_NORM ") -> Tensor");
  m.def("layer_norm_(Tensor(a!) x, Tensor? weight, Tensor? bias, float eps) -> ()");
  m.def("layer_norm_out(" LAYER_NORM ", Tensor(a!) out) -> ()");
  m.def("rotary_q(Tensor q, Tensor cos, Tensor sin, bool interleaved) -> Tensor");
  m.def("rotary_qk(Tensor q, Tensor k, Tensor cos, Tensor sin, bool interleaved)"
        " -> (Tensor, Tensor)");
  m.def("rotary_q_(Tensor(a!) q, Tensor cos, Tensor sin, bool interleaved) -> ()");
  m.def("rotary_qk_(Tensor(a!) q, Tensor(b!) k, Tensor cos, Tensor sin, bool interleaved) -> ()");
  m.def("kv_cache_write(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor slots)"
        " -> ()");
  m.def("grid_linear(Tensor x, Tensor q, Tensor scales, Tensor bias, bool biased) -> Tensor");
  m.def("rotary_kv_cache_write(Tensor(a!) q, Tensor k, Tensor v, Tensor cos, Tensor sin, "
        "Tensor(b!) k_cache, Tensor(c!) v_cache, Tensor slots, bool interleaved) -> ()");
  m.def("sample_token(Tensor logits, int first, Tensor temperature, Tensor top_k, Tensor top_p, "
        "Tensor min_p, Tensor seed, Tensor position, Tensor(a!) ids, Tensor(b!) scores) -> ()");
  m.def("penalize_logits(Tensor logits, " PENALTIES ", Tensor(a!) out) -> ()");
  m.def("penalize_logits_(Tensor(a!) logits, " PENALTIES ") -> ()");
  m.def("paged_attention(" PAGES ") -> Tensor");
  m.def("paged_attention_out(" PAGES ", Tensor(a!) out) -> ()");
  m.def("attention(Tensor q, Tensor k, Tensor v, float scale, bool causal, int window, "
        "float soft_cap) -> Tensor");
}

TRIVET_CPU_IMPLEMENTATIONS(CompositeExplicitAutograd, m) {
  m.impl("isa", &trivet_cpu::isa);
  m.impl("isa_levels", &trivet_cpu::isa_levels);
  m.impl("set_isa", &trivet_cpu::set_isa);
}

TRIVET_CPU_IMPLEMENTATIONS(CPU, m) {
  IMPLEMENT_NORMS("", false);
  IMPLEMENT_NORMS("_prefix", true);
  m.impl("q_norm", &trivet_cpu::q_norm);
  m.impl("qk_norm", &trivet_cpu::qk_norm);
  m.impl("q_norm_", &trivet_cpu::q_norm_inplace);
  m.impl("qk_norm_", &trivet_cpu::qk_norm_inplace);
  m.impl("silu_and_mul", &trivet_cpu::silu_and_mul);
  m.impl("silu_and_mul_out", &trivet_cpu::silu_and_mul_out);
  m.impl("gelu_and_mul", &trivet_cpu::gelu_and_mul);
  m.impl("gelu_and_mul_out", &trivet_cpu::gelu_and_mul_out);
  m.impl("silu", &trivet_cpu::silu);
  m.impl("silu_", &trivet_cpu::silu_inplace);
  m.impl("silu_out", &trivet_cpu::silu_out);
  m.impl("gelu", &trivet_cpu::gelu);
  m.impl("gelu_", &trivet_cpu::gelu_inplace);
  m.impl("gelu_out", &trivet_cpu::gelu_out);
  m.impl("layer_norm", &trivet_cpu::layer_norm);
  m.impl("layer_norm_", &trivet_cpu::layer_norm_inplace);
  m.impl("layer_norm_out", &trivet_cpu::layer_norm_out);
  m.impl("rotary_q", &trivet_cpu::rotary_q);
  m.impl("rotary_qk", &trivet_cpu::rotary_qk);
  m.impl("rotary_q_", &trivet_cpu::rotary_q_inplace);
  m.impl("rotary_qk_", &trivet_cpu::rotary_qk_inplace);
  m.impl("kv_cache_write", &trivet_cpu::kv_cache_write);
  m.impl("grid_linear", &trivet_cpu::grid_linear);
  m.impl("rotary_kv_cache_write", &trivet_cpu::rotary_kv_cache_write);
  m.impl("sample_token", &trivet_cpu::sample_token);
  m.impl("penalize_logits", &trivet_cpu::penalize_logits);
  m.impl("penalize_logits_", &trivet_cpu::penalize_logits_inplace);
  m.impl("paged_attention", &trivet_cpu::paged_attention);
  m.impl("paged_attention_out", &trivet_cpu::paged_attention_out);
  m.impl("attention", &trivet_cpu::dense_attention);
}
