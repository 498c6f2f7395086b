// Checks and entry point of rotary_kv_cache_write: q in place, k and v into their slots, one pass.
#pragma once
#include "kv_cache_op.h"
#include "rotary_op.h"

namespace trivet_cpu {

inline void cached_part(const Arg& cache, RotaryPart& part, int64_t head_dim) {
  part.out = cache.inout();
  part.out_stride = part.heads * head_dim;  // a cache is contiguous
  part.out_head_stride = head_dim;
}

// What is written is apart from everything else.
inline void cache_apart(const RotaryCacheArgs& a, const Arg& k_cache, const Arg& v_cache,
                        int64_t tokens, int64_t itemsize, const char* op) {
  const int64_t width = a.rotary.head_dim;
  const Heads q = written_heads(a.rotary.part[0]);
  const Heads k = read_heads(a.rotary.part[1]), v = read_heads(a.v);
  require(heads_apart(q, k, tokens, width, itemsize) && heads_apart(q, v, tokens, width, itemsize),
          op, "q overlaps k or v, and is written");
  const Span keys = span_of(a.rotary.part[1].out, k_cache), values = span_of(a.v.out, v_cache);
  require(apart(keys, values), op, "k_cache and v_cache overlap: they are two tensors");
  for (const Heads& t : {q, k, v})
    require(heads_outside(t, keys, tokens, width, itemsize) &&
                heads_outside(t, values, tokens, width, itemsize),
            op, "a cache overlaps q, k or v");
}

inline void rotary_kv_cache_write(StableIValue* stack, uint64_t, uint64_t) {
  const char* op = "rotary_kv_cache_write";
  Arg q(stack[0]), k(stack[1]), v(stack[2]), cos(stack[3]), sin(stack[4]);
  Arg k_cache(stack[5]), v_cache(stack[6]), slots(stack[7]);
  for (Arg* a : {&q, &k, &v, &cos, &sin, &k_cache, &v_cache, &slots}) a->read();
  const RotaryCall call(q, cos, sin, op);
  check_caches(k, v, k_cache, v_cache, slots, op);
  require(v.dtype == q.dtype && same_sizes(v_cache, k_cache, 4), op,
          "v must have the dtype of q and the heads of k");
  RotaryCacheArgs a{};
  a.rotary = call.args(q, cos, as_bool(stack[8]));
  a.rotary.parts = 2;
  RotaryPart &query = a.rotary.part[0], &key = a.rotary.part[1];
  rotary_part(q, q, q, query, call.tokens, op);
  rotary_input(k, q, key, call.tokens, op);
  rotary_input(v, q, a.v, call.tokens, op);
  if (call.tokens == 0) return;
  const Slots slot(slots, k_cache, op);
  a.slots = slot.at;
  a.slot_step = slot.step;
  query.in = query.out = q.inout();
  key.in = k.in();
  a.v.in = v.in();
  cached_part(k_cache, key, a.rotary.head_dim);
  cached_part(v_cache, a.v, a.rotary.head_dim);
  cache_apart(a, k_cache, v_cache, call.tokens, call.itemsize(), op);
  auto kernel = current().table->rotary_cache[call.type];
  const int64_t values = (query.heads + 2 * key.heads) * a.rotary.head_dim;
  over_rows(call.tokens, 2 * values * call.itemsize(),
            [&](int64_t begin, int64_t end) { kernel(a, begin, end); });
}

}  // namespace trivet_cpu
