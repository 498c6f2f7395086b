// Checks and entry points of rotary_embedding.
#pragma once
#include "overlap.h"

namespace trivet_cpu {

inline void rotary_part(const Arg& in, const Arg& out, const Arg& q, RotaryPart& part,
                        int64_t tokens, const char* op) {
  require(in.dtype == q.dtype && out.dtype == q.dtype, op, "q, k and out must have one dtype");
  require(in.dim == q.dim && same_sizes(in, q, q.dim - 2) && in.size(-1) == q.size(-1), op,
          "k must have the tokens and head_dim of q");
  require(out.dim == in.dim && same_sizes(in, out, in.dim), op,
          "out must have the shapes of q and k");
  require(in.dense_last() && out.dense_last(), op, "head_dim must be dense");
  Tokens ti = collapse(in, 2, op, "the token dims must collapse into one");
  Tokens to = collapse(out, 2, op, "the token dims must collapse into one");
  require(ti.count == tokens, op, "k must have the tokens of q");
  require_distinct(to, out, op);
  part.heads = in.size(-2);
  part.in_stride = ti.stride;
  part.out_stride = to.stride;
  part.in_head_stride = in.stride(-2);
  part.out_head_stride = out.stride(-2);
}

// q and k are often views of one projection; heads that are not dense may lie between each other.
inline void rotary_apart(const RotaryArgs& a, int64_t tokens, int64_t itemsize, const char* op) {
  const char* what = "q and k overlap, and both are written";
  const RotaryPart &q = a.part[0], &k = a.part[1];
  if (q.heads == 0 || k.heads == 0 || a.head_dim == 0) return;
  require(q.out != k.out, op, what);
  for (const RotaryPart* p : {&q, &k})
    if (p->heads > 1 && p->out_head_stride != a.head_dim) return;
  const Span first(q.out, {tokens, q.out_stride}, q.heads * a.head_dim, itemsize);
  const Span second(k.out, {tokens, k.out_stride}, k.heads * a.head_dim, itemsize);
  require(apart(first, second), op, what);
}

// `k` and `k_out` may be null; `in_place` means that each output is its input.
inline void run_rotary(const Arg& q, const Arg* k, const Arg& cos, const Arg& sin, bool interleaved,
                       const Arg& q_out, const Arg* k_out, bool in_place, const char* op) {
  Type type = activation_type(q, op);
  require(q.dim >= 2, op, "q must have at least the dims heads and head_dim");
  require(cos.dtype == dtypes().f32 && sin.dtype == dtypes().f32, op,
          "cos and sin must be float32");
  require(cos.dim == q.dim - 1 && sin.dim == cos.dim && same_sizes(cos, sin, cos.dim) &&
              same_sizes(cos, q, cos.dim - 1),
          op, "cos and sin must have the tokens of q and one dim of rotary_half");
  RotaryArgs a{};
  a.head_dim = q.size(-1);
  a.half = cos.size(-1);
  require(2 * a.half <= a.head_dim, op, "twice rotary_half must not exceed head_dim");
  a.interleaved = interleaved;
  const Operand cosines(cos, 1), sines(sin, 1);
  const int64_t tokens = cosines.rows.count;
  a.cos = cosines.data<float>();
  a.sin = sines.data<float>();
  a.cos_stride = cosines.rows.stride;
  a.sin_stride = sines.rows.stride;
  a.parts = k ? 2 : 1;
  rotary_part(q, q_out, q, a.part[0], tokens, op);
  if (k) rotary_part(*k, *k_out, q, a.part[1], tokens, op);
  if (tokens == 0) return;
  a.part[0].out = q_out.inout();
  a.part[0].in = in_place ? a.part[0].out : q.in();
  if (k) {
    a.part[1].out = k_out->inout();
    a.part[1].in = in_place ? a.part[1].out : k->in();
  }
  if (k && in_place) rotary_apart(a, tokens, type == F32 ? 4 : 2, op);
  auto kernel = current().table->rotary[type];
  int64_t values = (a.part[0].heads + a.part[1].heads) * a.head_dim;
  over_rows(tokens, values * (type == F32 ? 8 : 4),
            [&](int64_t begin, int64_t end) { kernel(a, begin, end); });
}

inline void rotary_q(StableIValue* stack, uint64_t, uint64_t) {
  const char* op = "rotary_embedding";
  Arg q(stack[0]), cos(stack[1]), sin(stack[2]);
  for (Arg* a : {&q, &cos, &sin}) a->read();
  activation_type(q, op);
  require(q.dim >= 2, op, "q must have at least the dims heads and head_dim");
  Arg q_out(fresh(q, q.size(-1), op));
  q_out.read();
  run_rotary(q, nullptr, cos, sin, as_bool(stack[3]), q_out, nullptr, false, op);
  stack[0] = q_out.give();
}
inline void rotary_qk(StableIValue* stack, uint64_t, uint64_t) {
  const char* op = "rotary_embedding";
  Arg q(stack[0]), k(stack[1]), cos(stack[2]), sin(stack[3]);
  for (Arg* a : {&q, &k, &cos, &sin}) a->read();
  activation_type(q, op);
  require(q.dim >= 2 && k.dim >= 2, op, "q and k must have at least the dims heads and head_dim");
  Arg q_out(fresh(q, q.size(-1), op)), k_out(fresh(k, k.size(-1), op));
  q_out.read();
  k_out.read();
  run_rotary(q, &k, cos, sin, as_bool(stack[4]), q_out, &k_out, false, op);
  stack[0] = q_out.give();
  stack[1] = k_out.give();
}
inline void rotary_q_inplace(StableIValue* stack, uint64_t, uint64_t) {
  Arg q(stack[0]), cos(stack[1]), sin(stack[2]);
  for (Arg* a : {&q, &cos, &sin}) a->read();
  run_rotary(q, nullptr, cos, sin, as_bool(stack[3]), q, nullptr, true, "rotary_embedding_");
}
inline void rotary_qk_inplace(StableIValue* stack, uint64_t, uint64_t) {
  Arg q(stack[0]), k(stack[1]), cos(stack[2]), sin(stack[3]);
  for (Arg* a : {&q, &k, &cos, &sin}) a->read();
  run_rotary(q, &k, cos, sin, as_bool(stack[4]), q, &k, true, "rotary_embedding_");
}

}  // namespace trivet_cpu
