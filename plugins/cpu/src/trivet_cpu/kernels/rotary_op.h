// Checks and entry points of rotary_embedding.
#pragma once
#include "overlap.h"

namespace trivet_cpu {

inline void rotary_input(const Arg& in, const Arg& q, RotaryPart& part, int64_t tokens,
                         const char* op) {
  require(in.dtype == q.dtype, op, "q, k and out must have one dtype");
  require(in.dim == q.dim && same_sizes(in, q, q.dim - 2) && in.size(-1) == q.size(-1), op,
          "k must have the tokens and head_dim of q");
  require(in.dense_last(), op, "head_dim must be dense");
  Tokens rows = collapse(in, 2, op, "the token dims must collapse into one");
  require(rows.count == tokens, op, "k must have the tokens of q");
  part.heads = in.size(-2);
  part.in_stride = rows.stride;
  part.in_head_stride = in.stride(-2);
}
inline void rotary_part(const Arg& in, const Arg& out, const Arg& q, RotaryPart& part,
                        int64_t tokens, const char* op) {
  rotary_input(in, q, part, tokens, op);
  require(out.dtype == q.dtype, op, "q, k and out must have one dtype");
  require(out.dim == in.dim && same_sizes(in, out, in.dim), op,
          "out must have the shapes of q and k");
  require(out.dense_last(), op, "head_dim must be dense");
  Tokens rows = collapse(out, 2, op, "the token dims must collapse into one");
  require_distinct(rows, out, op);
  part.out_stride = rows.stride;
  part.out_head_stride = out.stride(-2);
}

inline Heads written_heads(const RotaryPart& p) {
  return {p.out, p.heads, p.out_stride, p.out_head_stride};
}
inline Heads read_heads(const RotaryPart& p) {
  return {p.in, p.heads, p.in_stride, p.in_head_stride};
}

// What the angles and q say of a call; keeps the angles where they had to be copied.
struct RotaryCall {
  const Type type;
  const Operand cosines, sines;
  const int64_t tokens;
  RotaryCall(const Arg& q, const Arg& cos, const Arg& sin, const char* op)
      : type(checked(q, cos, sin, op)),
        cosines(cos, 1),
        sines(sin, 1),
        tokens(cosines.rows.count) {}
  RotaryArgs args(const Arg& q, const Arg& cos, bool interleaved) const {
    RotaryArgs a{};
    a.head_dim = q.size(-1);
    a.half = cos.size(-1);
    a.interleaved = interleaved;
    a.cos = cosines.data<float>();
    a.sin = sines.data<float>();
    a.cos_stride = cosines.rows.stride;
    a.sin_stride = sines.rows.stride;
    return a;
  }
  int64_t itemsize() const { return type == F32 ? 4 : 2; }

 private:
  static Type checked(const Arg& q, const Arg& cos, const Arg& sin, const char* op) {
    Type type = activation_type(q, op);
    require(q.dim >= 2, op, "q must have at least the dims heads and head_dim");
    require(cos.dtype == dtypes().f32 && sin.dtype == dtypes().f32, op,
            "cos and sin must be float32");
    require(cos.dim == q.dim - 1 && sin.dim == cos.dim && same_sizes(cos, sin, cos.dim) &&
                same_sizes(cos, q, cos.dim - 1),
            op, "cos and sin must have the tokens of q and one dim of rotary_half");
    require(2 * cos.size(-1) <= q.size(-1), op, "twice rotary_half must not exceed head_dim");
    return type;
  }
};

// `k` and `k_out` may be null; `in_place` means that each output is its input.
inline void run_rotary(const Arg& q, const Arg* k, const Arg& cos, const Arg& sin, bool interleaved,
                       const Arg& q_out, const Arg* k_out, bool in_place, const char* op) {
  const RotaryCall call(q, cos, sin, op);
  const int64_t tokens = call.tokens;
  RotaryArgs a = call.args(q, cos, interleaved);
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
  if (k && in_place)
    require(heads_apart(written_heads(a.part[0]), written_heads(a.part[1]), tokens, a.head_dim,
                        call.itemsize()),
            op, "q and k overlap, and both are written");
  auto kernel = current().table->rotary[call.type];
  int64_t values = (a.part[0].heads + a.part[1].heads) * a.head_dim;
  over_rows(tokens, 2 * values * call.itemsize(),
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
