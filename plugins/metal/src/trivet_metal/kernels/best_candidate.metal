// The best candidate of each row where nothing limits it: one pass, several threadgroups a row
// where rows are few. Maxima alone decide, so that no split of a row changes a choice.
#include "instances.h"
#include "order.h"

// Stores a row's choice: by its noise where it has a temperature and a finite maximum.
inline void choose(Candidate greedy, Candidate noisy, float heat, long first, device long* id,
                   device float* score, bool scored) {
  const bool sampled = heat > 0.0f && is_finite(greedy.number);
  const Candidate best = {sampled ? noisy.number : greedy.number, sampled ? noisy.id : greedy.id};
  *id = first + best.id;
  if (scored) *score = value_of(best.number);
}

template <typename T>
[[kernel]] void best_candidate(
    device const T* logits [[buffer(0)]], device const float* temperature [[buffer(1)]],
    device const long* seed [[buffer(2)]], device const long* position [[buffer(3)]],
    device int* parts [[buffer(4)]], device long* ids [[buffer(5)]],
    device float* scores [[buffer(6)]], constant long& row_stride [[buffer(7)]],
    constant long& first [[buffer(8)]], constant int& vocab [[buffer(9)]],
    constant int& blocks [[buffer(10)]], constant int& sampled [[buffer(11)]],
    constant int& scored [[buffer(12)]], uint3 at [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]], uint3 size [[threads_per_threadgroup]],
    uint thread_ [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup int greedy_space[64], noisy_space[64];
  device const T* row = logits + at.y * row_stride;
  const float heat = sampled != 0 ? temperature[at.y] : 0.0f;
  const long key = sampled != 0 ? seed[at.y] : 0, place = sampled != 0 ? position[at.y] : 0;
  // A thread takes the four tokens of a block of noise; the first block may start before the row.
  const int shift = int(first & 3), all = (vocab + shift + 3) / 4;
  const int begin = int(at.x) * blocks, end = min(begin + blocks, all);
  Candidate greedy = nobody(), noisy = nobody();
  float reached = -3.402823466e38f;
  for (int block = begin + int(thread_); block < end; block += int(size.x)) {
    const int start = 4 * block - shift;
    float x[4];
    float warmest = -3.402823466e38f;
    for (int n = 0; n < 4; n++) {
      const int i = start + n;
      if (i < 0 || i >= vocab) continue;
      x[n] = float(row[i]);
      greedy.take(number_of(x[n]), i);
      if (heat > 0.0f) warmest = max(warmest, precise::divide(x[n], heat));
    }
    if (!(heat > 0.0f) || warmest + MOST_NOISE < reached) continue;
    const uint4 words = random_words(key, place, uint((first >> 2) + block));
    for (int n = 0; n < 4; n++) {
      const int i = start + n;
      if (i < 0 || i >= vocab) continue;
      const float score = precise::divide(x[n], heat) + noise_of(words[n]);
      reached = max(reached, score);
      noisy.take(number_of(score), i);
    }
  }
  greedy = best_of_threadgroup(greedy, greedy_space, lane, simdgroup, simdgroups);
  noisy = best_of_threadgroup(noisy, noisy_space, lane, simdgroup, simdgroups);
  if (thread_ != 0) return;
  if (groups.x == 1) {
    choose(greedy, noisy, heat, first, ids + at.y, scores + at.y, scored != 0);
  } else {
    device int* part = parts + (long(at.y) * groups.x + at.x) * 4;
    part[0] = greedy.number;
    part[1] = greedy.id;
    part[2] = noisy.number;
    part[3] = noisy.id;
  }
}

// A simdgroup takes a row, a lane a part of it.
[[kernel]] void best_of_parts(
    device const int* parts [[buffer(0)]], device const float* temperature [[buffer(1)]],
    device long* ids [[buffer(2)]], device float* scores [[buffer(3)]],
    constant long& first [[buffer(4)]], constant int& count [[buffer(5)]],
    constant int& sampled [[buffer(6)]], constant int& scored [[buffer(7)]],
    uint row [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
  Candidate greedy = nobody(), noisy = nobody();
  if (int(lane) < count) {
    device const int* part = parts + (long(row) * count + lane) * 4;
    greedy = {part[0], part[1]};
    noisy = {part[2], part[3]};
  }
  greedy = best_of_simdgroup(greedy);
  noisy = best_of_simdgroup(noisy);
  const float heat = sampled != 0 ? temperature[row] : 0.0f;
  if (lane == 0) choose(greedy, noisy, heat, first, ids + row, scores + row, scored != 0);
}

#define INSTANCE(T)                                       \
  template [[host_name("best_candidate_" #T)]] [[kernel]] \
  decltype(best_candidate<T>) best_candidate<T>;
FOR_ALL(INSTANCE)
