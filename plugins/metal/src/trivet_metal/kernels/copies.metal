// What moves rows: embedding, and the write into a paged cache. A thread takes one element.
#include <metal_stdlib>
using namespace metal;
#include "instances.h"

// An id that is no row of the table reads nothing; its result is NaN.
template <typename T>
[[kernel]] void embedding(
    device const T* weight [[buffer(0)]], device const long* ids [[buffer(1)]],
    device T* y [[buffer(2)]], constant long& vocab [[buffer(3)]],
    constant long& stride [[buffer(4)]], constant int& hidden [[buffer(5)]],
    uint2 at [[thread_position_in_grid]]) {
  const long id = ids[at.y];
  const bool inside = id >= 0 && id < vocab;
  y[long(at.y) * hidden + at.x] = inside ? weight[id * stride + at.x] : T(NAN);
}

// A slot below zero, or behind the cache, is left out.
template <typename T, typename C>
[[kernel]] void kv_cache_write(
    device const T* k [[buffer(0)]], device const T* v [[buffer(1)]],
    device C* k_cache [[buffer(2)]], device C* v_cache [[buffer(3)]],
    device const long* slots [[buffer(4)]], constant long& k_stride [[buffer(5)]],
    constant long& v_stride [[buffer(6)]], constant long& capacity [[buffer(7)]],
    constant int& features [[buffer(8)]], uint2 at [[thread_position_in_grid]]) {
  const long token = at.y, slot = slots[token];
  if (slot < 0 || slot >= capacity) return;
  k_cache[slot * features + at.x] = C(float(k[token * k_stride + at.x]));
  v_cache[slot * features + at.x] = C(float(v[token * v_stride + at.x]));
}

#define EMBEDDING(T) \
  template [[host_name("embedding_" #T)]] [[kernel]] decltype(embedding<T>) embedding<T>;
#define KV_CACHE(T, C)                                                                  \
  template [[host_name("kv_cache_write_" #T "_" #C)]]                                   \
      [[kernel]] decltype(kv_cache_write<T, C>) kv_cache_write<T, C>;

FOR_ALL(EMBEDDING)
FOR_ALL_PAIRS(KV_CACHE)
