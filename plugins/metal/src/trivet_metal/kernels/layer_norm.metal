// layer_norm: a threadgroup takes a row; the variance is that of what is left without the mean.
#include "rows.h"
#include "instances.h"

template <typename T, typename W>
[[kernel]] void layer_norm(
    device const T* x [[buffer(0)]], device const W* weight [[buffer(1)]],
    device const W* bias [[buffer(2)]], device T* y [[buffer(3)]],
    constant long& x_stride [[buffer(4)]], constant long& y_stride [[buffer(5)]],
    constant int& width [[buffer(6)]], constant int& weighted [[buffer(7)]],
    constant int& shifted [[buffer(8)]], constant float& eps [[buffer(9)]], PLACE) {
  threadgroup float part[64];
  device const T* from = x + long(row) * x_stride;
  device T* to = y + long(row) * y_stride;
  float sum = 0.0f;
  for (uint i = thread_; i < uint(width); i += threads) sum += float(from[i]);
  const float mean = group_sum(sum, part, HERE) / float(width);
  float squares = 0.0f;
  for (uint i = thread_; i < uint(width); i += threads) {
    const float left = float(from[i]) - mean;
    squares += left * left;
  }
  // places of its own: others may still read the first sums
  const float variance = group_sum(squares, part + 32, HERE) / float(width);
  const float inverse = precise::rsqrt(variance + eps);
  for (uint i = thread_; i < uint(width); i += threads) {
    float f = (float(from[i]) - mean) * inverse;
    if (weighted != 0) f *= float(weight[i]);
    if (shifted != 0) f += float(bias[i]);
    to[i] = T(f);
  }
}

#define LAYER_NORM(T, W)                                                                 \
  template [[host_name("layer_norm_" #T "_" #W)]] [[kernel]] decltype(layer_norm<T, W>)  \
      layer_norm<T, W>;

FOR_ALL_PAIRS(LAYER_NORM)
