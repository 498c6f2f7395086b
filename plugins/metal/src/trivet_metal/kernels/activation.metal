// silu and gelu, alone and as the gate of a row: a thread takes an element; in float32, rounded
// once. What is computed is chosen by a number: 0 silu, 1 gelu, 2 gelu with a tanh.
#include <metal_stdlib>
using namespace metal;
#include "instances.h"

// x times the normal distribution function. 1 + erf(x / sqrt(2)) would cancel for negative x, so
// the tail beyond m = |x| is computed: exp(-m^2/2) s q(s - 1/2), s = 1 / (1 + 0.26 m), where q (of
// degree 8, fitted for the smallest relative error) is within 4e-8 up to m = 15. Where m is larger
// the tail is zero in float32. A NaN is no number on either side of the last line.
static inline float gelu(float x) {
  const float m = fabs(x) < 15.0f ? fabs(x) : 15.0f;
  const float s = 1.0f / fma(m, 0.26f, 1.0f);
  const float t = s - 0.5f;
  float q = 2.9960284e-2f;
  q = fma(q, t, -3.0346733e-2f);
  q = fma(q, t, -6.9889560e-2f);
  q = fma(q, t, 1.4645085e-2f);
  q = fma(q, t, 1.91507638e-1f);
  q = fma(q, t, 3.43352258e-1f);
  q = fma(q, t, 3.81132185e-1f);
  q = fma(q, t, 3.09965640e-1f);
  q = fma(q, t, 1.95600286e-1f) * s;
  const float tail = precise::exp(m * m * -0.5f) * q;
  return x * (x < 0.0f ? tail : 1.0f - tail);
}

static inline float act(float x, int which) {
  if (which == 1) return gelu(x);
  // x/2 (1 + tanh(u)) = x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3): nothing cancels
  const float minus = which == 0 ? -x : x * fma(x * x, -0.071354814f, -1.5957691f);
  return x / (1.0f + precise::exp(minus));
}

template <typename T>
[[kernel]] void activation(
    device const T* x [[buffer(0)]], device T* y [[buffer(1)]],
    constant long& x_stride [[buffer(2)]], constant long& y_stride [[buffer(3)]],
    constant int& which [[buffer(4)]], uint2 at [[thread_position_in_grid]]) {
  y[long(at.y) * y_stride + at.x] = T(act(float(x[long(at.y) * x_stride + at.x]), which));
}

template <typename T>
[[kernel]] void gate(
    device const T* x [[buffer(0)]], device T* y [[buffer(1)]],
    constant long& x_stride [[buffer(2)]], constant long& y_stride [[buffer(3)]],
    constant int& which [[buffer(4)]], constant int& inter [[buffer(5)]],
    uint2 at [[thread_position_in_grid]]) {
  device const T* from = x + long(at.y) * x_stride + at.x;
  y[long(at.y) * y_stride + at.x] = T(act(float(from[0]), which) * float(from[inter]));
}

#define ACTIVATION(T)                                                                  \
  template [[host_name("activation_" #T)]] [[kernel]] decltype(activation<T>) activation<T>; \
  template [[host_name("gate_" #T)]] [[kernel]] decltype(gate<T>) gate<T>;

FOR_ALL(ACTIVATION)
