// Rotary embedding, alone and with the write into a paged cache. A thread takes one pair of
// features of a head, or one that passes through; heads are counted through q, k and v.
#include <metal_stdlib>
using namespace metal;
#include "instances.h"

// One pair of a head, or what lies behind the pairs; `from` may be `to`.
template <typename T, typename C>
static inline void turn(device const T* from, device C* to, device const float* cos_,
                        device const float* sin_, int rotary_half, int interleaved, uint i) {
  if (i >= uint(rotary_half)) {
    to[i + rotary_half] = C(float(from[i + rotary_half]));
    return;
  }
  const uint first = interleaved != 0 ? 2 * i : i;
  const uint second = interleaved != 0 ? 2 * i + 1 : i + rotary_half;
  const float a = float(from[first]), b = float(from[second]);
  const float c = cos_[i], s = sin_[i];
  to[first] = C(float(T(a * c - b * s)));
  to[second] = C(float(T(b * c + a * s)));
}

template <typename T>
[[kernel]] void rotary(
    device const T* q [[buffer(0)]], device const T* k [[buffer(1)]],
    device const float* cos_ [[buffer(2)]], device const float* sin_ [[buffer(3)]],
    device T* q_out [[buffer(4)]], device T* k_out [[buffer(5)]],
    constant long& q_stride [[buffer(6)]], constant long& k_stride [[buffer(7)]],
    constant long& cos_stride [[buffer(8)]], constant long& sin_stride [[buffer(9)]],
    constant long& q_out_stride [[buffer(10)]], constant long& k_out_stride [[buffer(11)]],
    constant int& heads [[buffer(12)]], constant int& dim [[buffer(13)]],
    constant int& rotary_half [[buffer(14)]], constant int& interleaved [[buffer(15)]],
    uint3 at [[thread_position_in_grid]]) {
  const long token = at.z;
  const bool of_q = at.y < uint(heads);
  const long head = long(of_q ? at.y : at.y - heads) * dim;
  device const T* from = of_q ? q + token * q_stride + head : k + token * k_stride + head;
  device T* to = of_q ? q_out + token * q_out_stride + head : k_out + token * k_out_stride + head;
  turn<T, T>(from, to, cos_ + token * cos_stride, sin_ + token * sin_stride, rotary_half,
             interleaved, at.x);
}

// A slot below zero, or behind the cache, is left out; the query of its token is rotated.
template <typename T, typename C>
[[kernel]] void rotary_kv_cache(
    device T* q [[buffer(0)]], device const T* k [[buffer(1)]], device const T* v [[buffer(2)]],
    device const float* cos_ [[buffer(3)]], device const float* sin_ [[buffer(4)]],
    device C* k_cache [[buffer(5)]], device C* v_cache [[buffer(6)]],
    device const long* slots [[buffer(7)]], constant long& q_stride [[buffer(8)]],
    constant long& k_stride [[buffer(9)]], constant long& v_stride [[buffer(10)]],
    constant long& cos_stride [[buffer(11)]], constant long& sin_stride [[buffer(12)]],
    constant long& capacity [[buffer(13)]], constant int& heads [[buffer(14)]],
    constant int& kv_heads [[buffer(15)]], constant int& dim [[buffer(16)]],
    constant int& rotary_half [[buffer(17)]], constant int& interleaved [[buffer(18)]],
    uint3 at [[thread_position_in_grid]]) {
  const long token = at.z, slot = slots[token];
  device const float* c = cos_ + token * cos_stride;
  device const float* s = sin_ + token * sin_stride;
  if (at.y < uint(heads)) {
    device T* head = q + token * q_stride + long(at.y) * dim;
    turn<T, T>(head, head, c, s, rotary_half, interleaved, at.x);
    return;
  }
  if (slot < 0 || slot >= capacity) return;
  const uint of_kv = at.y - heads;
  if (of_kv < uint(kv_heads)) {
    device C* to = k_cache + (slot * kv_heads + of_kv) * dim;
    turn<T, C>(k + token * k_stride + long(of_kv) * dim, to, c, s, rotary_half, interleaved, at.x);
    return;
  }
  const uint head = of_kv - kv_heads;
  device const T* from = v + token * v_stride + long(head) * dim;
  device C* to = v_cache + (slot * kv_heads + head) * dim;
  if (at.x < uint(rotary_half)) to[at.x] = C(float(from[at.x]));
  to[at.x + rotary_half] = C(float(from[at.x + rotary_half]));
}

#define ROTARY(T) template [[host_name("rotary_" #T)]] [[kernel]] decltype(rotary<T>) rotary<T>;
#define ROTARY_CACHE(T, C)                                                              \
  template [[host_name("rotary_kv_cache_" #T "_" #C)]]                                  \
      [[kernel]] decltype(rotary_kv_cache<T, C>) rotary_kv_cache<T, C>;

FOR_ALL(ROTARY)
FOR_ALL_PAIRS(ROTARY_CACHE)
