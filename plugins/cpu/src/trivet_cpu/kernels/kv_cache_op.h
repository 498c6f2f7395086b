// kv_cache_write: copies rows of k and v into the slots of their caches. Bytes only, any dtype.
#pragma once
#include "overlap.h"

namespace trivet_cpu {

struct CacheCopy {
  const char* from;
  char* to;
  int64_t token, head;              // strides of the source, in bytes
  int64_t block, slot, cache_head;  // strides of the cache, in bytes
  int64_t heads, row;               // row: bytes of one head

  CacheCopy(const Arg& x, const Arg& cache, const Tokens& tokens, int64_t itemsize)
      : from(x.in<char>()),
        to(cache.inout<char>()),
        token(tokens.stride * itemsize),
        head(x.stride(-2) * itemsize),
        block(cache.stride(0) * itemsize),
        slot(cache.stride(1) * itemsize),
        cache_head(cache.stride(2) * itemsize),
        heads(x.size(-2)),
        row(x.size(-1) * itemsize) {
    if (heads <= 1 || (head == row && cache_head == row)) {  // one run of bytes a token
      row *= heads;
      heads = 1;
    }
  }
  void copy(int64_t i, int64_t page, int64_t place) const {
    const char* source = from + i * token;
    char* target = to + page * block + place * slot;
    for (int64_t h = 0; h < heads; h++)
      std::memcpy(target + h * cache_head, source + h * head, row);
  }
};

inline void check_cache(const Arg& x, const Arg& cache, const char* op) {
  require(cache.dim == 4, op, "a cache must have the dims blocks, block_size, kv_heads, head_dim");
  require(x.dtype == cache.dtype, op, "a cache must have the dtype of what is written to it");
  require(x.dim >= 2 && x.size(-1) == cache.size(3) && x.size(-2) == cache.size(2), op,
          "kv_heads and head_dim of k, v and the caches must agree");
  require(x.dense_last(), op, "head_dim must be dense");
  require(cache.contiguous(), op, "the caches must be contiguous");
}

inline void check_caches(const Arg& k, const Arg& v, const Arg& k_cache, const Arg& v_cache,
                         const Arg& slots, const char* op) {
  check_cache(k, k_cache, op);
  check_cache(v, v_cache, op);
  require(same_sizes(k_cache, v_cache, 2), op, "the caches must have the same blocks");
  require(slots.dtype == dtypes().i64, op, "slots must be int64");
  require(k.dim == v.dim && same_sizes(k, v, k.dim - 2) && slots.dim == k.dim - 2 &&
              same_sizes(slots, k, slots.dim),
          op, "k, v and slots must have the same tokens");
}

// Where each token goes, below 0 nowhere; every slot is checked before anything is written.
struct Slots {
  const Operand held;
  const int64_t* at;
  int64_t step;
  Slots(const Arg& slots, const Arg& cache, const char* op)
      : held(slots, 0), at(held.data<int64_t>()), step(held.rows.stride) {
    const int64_t places = cache.size(0) * cache.size(1);
    for (int64_t i = 0; i < held.rows.count; i++)
      require(at[i * step] < places, op, "a slot lies behind the end of the cache");
  }
};

inline void kv_cache_write(StableIValue* stack, uint64_t, uint64_t) {
  const char* op = "kv_cache_write";
  Arg k(stack[0]), v(stack[1]), k_cache(stack[2]), v_cache(stack[3]), slots(stack[4]);
  for (Arg* a : {&k, &v, &k_cache, &v_cache, &slots}) a->read();
  check_caches(k, v, k_cache, v_cache, slots, op);
  Tokens tk = collapse(k, 2, op, "the token dims of k must collapse into one");
  Tokens tv = collapse(v, 2, op, "the token dims of v must collapse into one");
  if (tk.count == 0) return;
  const int64_t block_size = k_cache.size(1);
  const Slots slot(slots, k_cache, op);
  const int64_t itemsize = (int64_t)aoti_torch_dtype_element_size(k.dtype);
  CacheCopy keys(k, k_cache, tk, itemsize), values(v, v_cache, tv, itemsize);
  require(apart(span_of(keys.to, k_cache), span_of(values.to, v_cache)), op,
          "k_cache and v_cache overlap: they are two tensors");
  const int64_t bytes = 2 * (keys.row * keys.heads + values.row * values.heads);
  over_rows(tk.count, bytes, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      int64_t at = slot.at[i * slot.step];
      if (at < 0) continue;
      keys.copy(i, at / block_size, at % block_size);
      values.copy(i, at / block_size, at % block_size);
    }
  });
}

}  // namespace trivet_cpu
