// qk_rms_norm: the rows of rms_norm are the heads of each token; q and k in one pass over tokens.
#pragma once
#include <optional>

#include "norm_op.h"

namespace trivet_cpu {

// q or k of one call: how its heads lie, and how a row of them is normalised.
struct HeadNorm {
  NormArgs a{};  // of the first token; its rows are the heads
  int64_t heads = 0, x_token = 0, y_token = 0, itemsize = 4;
  NormKernel kernel = nullptr;
  std::vector<float> floats;  // the weight, where no kernel reads it as it is

  HeadNorm(const Arg& x, const Arg& weight, const Operand& w, const NormScalars& s, const Arg& y,
           bool in_place, const Arg& q, const char* op) {
    require(x.dim >= 2, op, "q and k must have at least the dims heads and head_dim");
    const NormTypes types = norm_common(x, weight, s, a, op);
    require(x.dtype == q.dtype, op, "q and k must have one dtype");
    require(x.dim == q.dim && same_sizes(x, q, q.dim - 2) && x.size(-1) == q.size(-1), op,
            "k must have the tokens and head_dim of q");
    require(x.dense_last(), op, "head_dim must be dense");
    const char* what = "the token dims must collapse into one";
    const Tokens in = collapse(x, 2, op, what), out = collapse(y, 2, op, what);
    require_distinct(out, y, op);
    heads = x.size(-2);
    itemsize = x.dtype == dtypes().f32 ? 4 : 2;
    x_token = in.stride * itemsize;
    y_token = out.stride * itemsize;
    a.x_stride = x.stride(-2);
    a.y_stride = y.stride(-2);
    a.weight = w.data<char>();
    a.y = y.inout();
    a.x = in_place ? a.y : x.in();
    kernel = norm_kernel(current().table->rms_norm, types, a, floats);
  }
  Heads written() const { return {a.y, heads, y_token / itemsize, a.y_stride}; }
  void apart_from(const Arg& weight, const Operand& w, int64_t tokens, const char* op) const {
    require(heads_outside(written(), span_of(w.data<char>(), weight), tokens, a.hidden, itemsize),
            op, "q or k overlaps a weight");
  }
  void token(int64_t i) const {
    NormArgs one = a;
    one.x = (const char*)a.x + i * x_token;
    one.y = (char*)a.y + i * y_token;
    kernel(one, 0, heads);
  }
};

inline int64_t tokens_of(const Arg& q) {
  int64_t count = 1;
  for (int64_t i = 0; i < q.dim - 2; i++) count *= q.sizes[i];
  return count;
}

// `k`, its weight and `k_out` may be null; `in_place` means that each output is its input.
inline void run_qk_norm(const Arg& q, const Arg* k, const Arg& q_weight, const Arg* k_weight,
                        const NormScalars& s, const Arg& q_out, const Arg* k_out, bool in_place,
                        const char* op) {
  require(q_weight.dim == 1 && (!k || k_weight->dim == 1), op,
          "weight must be one dim as long as the last dim of x");
  const Operand wq(q_weight, 1);
  const HeadNorm first(q, q_weight, wq, s, q_out, in_place, q, op);
  std::optional<Operand> wk;
  std::optional<HeadNorm> second;
  if (k) {
    wk.emplace(*k_weight, 1);
    second.emplace(*k, *k_weight, *wk, s, *k_out, in_place, q, op);
  }
  const int64_t tokens = tokens_of(q), heads = first.heads + (k ? second->heads : 0);
  if (tokens == 0 || first.a.hidden == 0) return;
  if (in_place) {
    require(!k || heads_apart(first.written(), second->written(), tokens, first.a.hidden,
                              first.itemsize),
            op, "q and k overlap, and both are written");
    first.apart_from(q_weight, wq, tokens, op);
    if (k) {
      first.apart_from(*k_weight, *wk, tokens, op);
      second->apart_from(q_weight, wq, tokens, op);
      second->apart_from(*k_weight, *wk, tokens, op);
    }
  }
  over_rows(tokens, 2 * heads * first.a.hidden * first.itemsize, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      first.token(i);
      if (k) second->token(i);
    }
  });
}

inline void q_norm(StableIValue* stack, uint64_t, uint64_t) {
  const char* op = "qk_rms_norm";
  Arg q(stack[0]), weight(stack[1]);
  for (Arg* a : {&q, &weight}) a->read();
  const NormScalars s(stack + 2, false);
  activation_type(q, op);
  require(q.dim >= 2, op, "q and k must have at least the dims heads and head_dim");
  Arg out(fresh(q, q.size(-1), op));
  out.read();
  run_qk_norm(q, nullptr, weight, nullptr, s, out, nullptr, false, op);
  stack[0] = out.give();
}
inline void qk_norm(StableIValue* stack, uint64_t, uint64_t) {
  const char* op = "qk_rms_norm";
  Arg q(stack[0]), k(stack[1]), q_weight(stack[2]), k_weight(stack[3]);
  for (Arg* a : {&q, &k, &q_weight, &k_weight}) a->read();
  const NormScalars s(stack + 4, false);
  activation_type(q, op);
  require(q.dim >= 2 && k.dim >= 2, op, "q and k must have at least the dims heads and head_dim");
  Arg q_out(fresh(q, q.size(-1), op)), k_out(fresh(k, k.size(-1), op));
  q_out.read();
  k_out.read();
  run_qk_norm(q, &k, q_weight, &k_weight, s, q_out, &k_out, false, op);
  stack[0] = q_out.give();
  stack[1] = k_out.give();
}
inline void q_norm_inplace(StableIValue* stack, uint64_t, uint64_t) {
  Arg q(stack[0]), weight(stack[1]);
  for (Arg* a : {&q, &weight}) a->read();
  run_qk_norm(q, nullptr, weight, nullptr, NormScalars(stack + 2, false), q, nullptr, true,
              "qk_rms_norm_");
}
inline void qk_norm_inplace(StableIValue* stack, uint64_t, uint64_t) {
  Arg q(stack[0]), k(stack[1]), q_weight(stack[2]), k_weight(stack[3]);
  for (Arg* a : {&q, &k, &q_weight, &k_weight}) a->read();
  run_qk_norm(q, &k, q_weight, &k_weight, NormScalars(stack + 4, false), q, &k, true,
              "qk_rms_norm_");
}

}  // namespace trivet_cpu
