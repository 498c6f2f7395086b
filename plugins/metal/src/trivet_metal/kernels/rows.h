// What kernels over rows share: one threadgroup a row, sums over all its threads.
#include <metal_stdlib>
using namespace metal;

// Where a thread is in its threadgroup, and the threadgroup in the grid.
struct Place {
  uint row, thread_, threads, lane, simdgroup, simdgroups;
};

#define PLACE                                               \
  uint row [[threadgroup_position_in_grid]],                \
      uint thread_ [[thread_position_in_threadgroup]],      \
      uint threads [[threads_per_threadgroup]],             \
      uint lane [[thread_index_in_simdgroup]],              \
      uint simdgroup [[simdgroup_index_in_threadgroup]],    \
      uint simdgroups [[simdgroups_per_threadgroup]]
#define HERE Place{row, thread_, threads, lane, simdgroup, simdgroups}

// The sum over a threadgroup, in every thread of it. `part` holds one number a simdgroup. All
// threads call it; a second call needs a barrier before it.
static inline float group_sum(float value, threadgroup float* part, Place at) {
  value = simd_sum(value);
  if (at.lane == 0) part[at.simdgroup] = value;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return simd_sum(at.lane < at.simdgroups ? part[at.lane] : 0.0f);
}

// A normalised element times its weight, rounded where the operators declare it.
template <typename T, typename W>
static inline T scaled(float normed, W weight, float offset, int in_float32) {
  if (in_float32 != 0) return T(normed * (float(weight) + offset));
  return T(float(T(normed)) * float(W(float(weight) + offset)));
}

// One row by its root mean square; `from` may be `to`: each element belongs to one thread.
template <typename T, typename W>
static inline void normalise(device const T* from, device const W* weight, device T* to, int width,
                             int variance, float eps, float offset, int in_float32,
                             threadgroup float* part, Place at) {
  float sum = 0.0f;
  for (uint i = at.thread_; i < uint(variance); i += at.threads) {
    const float f = float(from[i]);
    sum += f * f;
  }
  sum = group_sum(sum, part, at);
  const float inverse = precise::rsqrt(sum / float(variance) + eps);
  for (uint i = at.thread_; i < uint(width); i += at.threads) {
    to[i] = scaled<T, W>(float(from[i]) * inverse, weight[i], offset, in_float32);
  }
}
