// rms_norm, with and without a residual, and of heads: a threadgroup takes a row.
#include "rows.h"
#include "instances.h"

template <typename T, typename W>
[[kernel]] void rms_norm(
    device const T* x [[buffer(0)]], device const W* weight [[buffer(1)]],
    device T* y [[buffer(2)]], constant long& x_stride [[buffer(3)]],
    constant long& y_stride [[buffer(4)]], constant int& width [[buffer(5)]],
    constant int& variance [[buffer(6)]], constant float& eps [[buffer(7)]],
    constant float& offset [[buffer(8)]], constant int& in_float32 [[buffer(9)]], PLACE) {
  threadgroup float part[32];
  normalise<T, W>(x + long(row) * x_stride, weight, y + long(row) * y_stride, width, variance, eps,
                  offset, in_float32, part, HERE);
}

// The sum, rounded, goes where it stays; it is then normalised from there.
template <typename T, typename W>
[[kernel]] void fused_add_rms_norm(
    device const T* x [[buffer(0)]], device const T* residual [[buffer(1)]],
    device const W* weight [[buffer(2)]], device T* y [[buffer(3)]],
    device T* total [[buffer(4)]], constant long& x_stride [[buffer(5)]],
    constant long& residual_stride [[buffer(6)]], constant long& y_stride [[buffer(7)]],
    constant long& total_stride [[buffer(8)]], constant int& width [[buffer(9)]],
    constant int& variance [[buffer(10)]], constant float& eps [[buffer(11)]],
    constant float& offset [[buffer(12)]], constant int& in_float32 [[buffer(13)]], PLACE) {
  threadgroup float part[32];
  device const T* left = x + long(row) * x_stride;
  device const T* right = residual + long(row) * residual_stride;
  device T* sum = total + long(row) * total_stride;
  for (uint i = thread_; i < uint(width); i += threads) {
    sum[i] = T(float(left[i]) + float(right[i]));
  }
  normalise<T, W>(sum, weight, y + long(row) * y_stride, width, variance, eps, offset, in_float32,
                  part, HERE);
}

// Heads of q, then those of k, token by token; no heads of k where there is none.
template <typename T, typename W>
[[kernel]] void qk_rms_norm(
    device const T* q [[buffer(0)]], device const T* k [[buffer(1)]],
    device const W* q_weight [[buffer(2)]], device const W* k_weight [[buffer(3)]],
    device T* q_out [[buffer(4)]], device T* k_out [[buffer(5)]],
    constant long& q_stride [[buffer(6)]], constant long& k_stride [[buffer(7)]],
    constant long& q_out_stride [[buffer(8)]], constant long& k_out_stride [[buffer(9)]],
    constant int& heads [[buffer(10)]], constant int& kv_heads [[buffer(11)]],
    constant int& dim [[buffer(12)]], constant float& eps [[buffer(13)]],
    constant float& offset [[buffer(14)]], constant int& in_float32 [[buffer(15)]], PLACE) {
  threadgroup float part[32];
  const long token = row / uint(heads + kv_heads);
  const int head = int(row % uint(heads + kv_heads));
  const bool of_q = head < heads;
  const long at = long(of_q ? head : head - heads) * dim;
  device const T* from = of_q ? q + token * q_stride + at : k + token * k_stride + at;
  device T* to = of_q ? q_out + token * q_out_stride + at : k_out + token * k_out_stride + at;
  normalise<T, W>(from, of_q ? q_weight : k_weight, to, dim, dim, eps, offset, in_float32, part,
                  HERE);
}

#define RMS_NORM(T, W)                                                                 \
  template [[host_name("rms_norm_" #T "_" #W)]] [[kernel]] decltype(rms_norm<T, W>)    \
      rms_norm<T, W>;
#define FUSED(T, W)                                                                    \
  template [[host_name("fused_add_rms_norm_" #T "_" #W)]]                              \
      [[kernel]] decltype(fused_add_rms_norm<T, W>) fused_add_rms_norm<T, W>;
#define QK(T, W)                                                                       \
  template [[host_name("qk_rms_norm_" #T "_" #W)]] [[kernel]] decltype(qk_rms_norm<T, W>) \
      qk_rms_norm<T, W>;

FOR_ALL_PAIRS(RMS_NORM)
FOR_ALL_PAIRS(FUSED)
FOR_ALL_PAIRS(QK)
