// penalize_logits: one launch counts what a row has, one changes the logits of those tokens.
#include "instances.h"
#include <metal_stdlib>
using namespace metal;

// Of each token: whether the row has it (bit 0), and how many times its answer does (the rest).
[[kernel]] void count_tokens(
    device const int* tokens [[buffer(0)]], device const int* prompt_lens [[buffer(1)]],
    device atomic_int* counts [[buffer(2)]], constant int& history [[buffer(3)]],
    constant int& vocab [[buffer(4)]], uint2 at [[thread_position_in_grid]]) {
  const int token = tokens[long(at.y) * history + at.x];
  if (token < 0 || token >= vocab) return;
  device atomic_int* count = counts + long(at.y) * vocab + token;
  atomic_fetch_or_explicit(count, 1, memory_order_relaxed);
  if (int(at.x) >= prompt_lens[at.y]) atomic_fetch_add_explicit(count, 2, memory_order_relaxed);
}

template <typename T>
[[kernel]] void penalize(
    device const int* counts [[buffer(0)]], device const float* repetition [[buffer(1)]],
    device const float* presence [[buffer(2)]], device const float* frequency [[buffer(3)]],
    device const T* logits [[buffer(4)]], device T* out [[buffer(5)]],
    constant long& row_stride [[buffer(6)]], constant int& vocab [[buffer(7)]],
    constant int& in_place [[buffer(8)]], uint2 at [[thread_position_in_grid]]) {
  const long place = long(at.y) * vocab + at.x;
  const int count = counts[place];
  if (in_place != 0 && count == 0) return;
  const T logit = logits[at.y * row_stride + at.x];
  if (count == 0) {
    out[place] = logit;
    return;
  }
  float x = float(logit);
  const float r = repetition[at.y];
  x = x > 0.0f ? precise::divide(x, r) : x * r;
  const int times = count >> 1;
  if (times > 0) x = x - float(times) * frequency[at.y] - presence[at.y];
  out[place] = T(x);
}

#define INSTANCE(T) \
  template [[host_name("penalize_" #T)]] [[kernel]] decltype(penalize<T>) penalize<T>;
FOR_ALL(INSTANCE)
