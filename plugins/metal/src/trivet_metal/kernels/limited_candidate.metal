// The best candidate of each row under top-k, top-p and min-p: a threadgroup a row, no sort.
//
// What limits keep is a prefix of the row in its order: a number (the cut), and how many tokens
// with just that number stay, lowest ids first. A cut is found digit by digit, four bits a pass:
// the sums of 16 digits, counts for top-k and weights for top-p, say in which one it lies.
#include "instances.h"
#include "order.h"

constant constexpr int MOST_SIMDGROUPS = 32;

// The number of a logit whose low bits are all that a narrower type lacks.
template <typename T>
struct Digits {
  static constant constexpr int PASSES = 8;
};
template <>
struct Digits<half> {
  static constant constexpr int PASSES = 5;  // 19 bits
};
#if __METAL_VERSION__ >= 310
template <>
struct Digits<bfloat> {
  static constant constexpr int PASSES = 4;  // 16 bits
};
#endif

// A row as a threadgroup reads it: a run of tokens a simdgroup, a token a lane in turn.
template <typename T>
struct Row {
  device const T* logits;
  int begin;
  int end;
  int lane;
  float likeliest;
  float heat;

  int number(int token) const {
    return token < end ? number_of(float(logits[token])) : NOTHING;
  }
  float weight(int number) const {
    return precise::exp(precise::divide(value_of(number) - likeliest, heat));
  }
};

struct Cut {
  int number;
  float above;  // what lies above it: a count or a sum of weights
};

// The sum of a threadgroup, in every thread of it; all of them call it. The barrier in front
// keeps what others may still read of ``space``.
inline float total_of(float own, threadgroup float* space, uint lane, uint simdgroup,
                      uint simdgroups) {
  own = simd_sum(own);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (lane == 0) space[simdgroup] = own;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return simd_sum(lane < simdgroups ? space[lane] : 0.0f);
}

// The least number above which less than ``target`` lies, in every thread of the threadgroup.
template <typename T>
inline Cut cut_at(Row<T> row, bool weighted, float target, threadgroup float* space, uint lane,
                  uint simdgroup, uint simdgroups) {
  uint found = 0;  // the digits so far; their order is that of numbers without a sign
  float above = 0.0f;
  for (int pass = 0; pass < Digits<T>::PASSES; pass++) {
    const int low = 28 - 4 * pass;
    float sums[16];
    for (int d = 0; d < 16; d++) sums[d] = 0.0f;
    for (int token = row.begin + row.lane; token < row.end; token += 32) {
      const int number = row.number(token);
      const uint key = uint(number) ^ 0x80000000u;
      if (pass > 0 && key >> (low + 4) != found) continue;
      const float share = weighted ? row.weight(number) : 1.0f;
      const uint digit = (key >> low) & 15u;
      for (uint d = 0; d < 16; d++) sums[d] += d == digit ? share : 0.0f;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int d = 0; d < 16; d++) {
      const float sum = simd_sum(sums[d]);
      if (lane == 0) space[simdgroup * 16 + d] = sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float column = 0.0f;
    for (uint s = 0; s < simdgroups; s++) column += space[s * 16 + lane % 16];
    uint digit = 0, last = 0;
    float over = above, last_over = above;
    bool inside = false;
    for (int d = 15; d >= 0; d--) {
      const float sum = simd_shuffle(column, ushort(d));
      if (inside) continue;
      if (sum > 0.0f) {
        last = d;
        last_over = over;
      }
      inside = over + sum >= target;
      if (inside) digit = d;
      else over += sum;
    }
    if (!inside) {  // rounding: the sums of digits are less than that of all
      digit = last;
      over = last_over;
    }
    found = found << 4 | digit;
    above = over;
  }
  // Bits that the type lacks are zeros of positive numbers and ones of negative ones.
  const int missing = 32 - 4 * Digits<T>::PASSES;
  uint key = missing > 0 ? found << missing : found;
  if (!(key >> 31) && missing > 0) key |= (1u << missing) - 1u;
  return {int(key ^ 0x80000000u), above};
}

template <typename T>
[[kernel]] void limited_candidate(
    device const T* logits [[buffer(0)]], device const float* temperature [[buffer(1)]],
    device const int* top_k [[buffer(2)]], device const float* top_p [[buffer(3)]],
    device const float* min_p [[buffer(4)]], device const long* seed [[buffer(5)]],
    device const long* position [[buffer(6)]], device long* ids [[buffer(7)]],
    constant long& row_stride [[buffer(8)]], constant int& vocab [[buffer(9)]],
    constant int& limits [[buffer(10)]], uint at [[threadgroup_position_in_grid]],
    uint thread_ [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float space[MOST_SIMDGROUPS * 16];
  threadgroup int candidates[MOST_SIMDGROUPS * 2], counts[MOST_SIMDGROUPS];
  const int run = (vocab + 32 * int(simdgroups) - 1) / (32 * int(simdgroups)) * 32;
  Row<T> row = {logits + at * row_stride, int(simdgroup) * run, 0, int(lane), 0.0f, 1.0f};
  row.end = min(row.begin + run, vocab);
  Candidate best = nobody();
  for (int token = row.begin + int(lane); token < row.end; token += 32)
    best.take(row.number(token), token);
  best = best_of_threadgroup(best, candidates, lane, simdgroup, simdgroups);
  const float heat = temperature[at];
  if (!(heat > 0.0f) || !is_finite(best.number)) {  // the same for the whole threadgroup
    if (thread_ == 0) ids[at] = best.id;
    return;
  }
  row.likeliest = value_of(best.number);
  row.heat = heat;
  const int k = limits & 1 ? top_k[at] : 0;
  const float p = limits & 2 ? top_p[at] : 1.0f, least = limits & 4 ? min_p[at] : 0.0f;
  int cut = NOTHING + 1, stay = NAN_NUMBER;
  if (k > 0 && k < vocab) {
    const Cut found = cut_at<T>(row, false, float(k), space, lane, simdgroup, simdgroups);
    cut = found.number;
    stay = k - int(found.above);
  }
  if (p < 1.0f) {
    float mass = 0.0f, equal = 0.0f;
    for (int token = row.begin + int(lane); token < row.end; token += 32) {
      const int number = row.number(token);
      if (number > cut) mass += row.weight(number);
      if (number == cut) equal += 1.0f;
    }
    mass = total_of(mass, space, lane, simdgroup, simdgroups);
    equal = total_of(equal, space, lane, simdgroup, simdgroups);
    if (equal > 0.0f) mass += min(equal, float(stay)) * row.weight(cut);
    const Cut found = cut_at<T>(row, true, p * mass, space, lane, simdgroup, simdgroups);
    const float weight = row.weight(found.number), missing = p * mass - found.above;
    int few = 1;
    if (missing >= 1.0e9f * weight) few = NAN_NUMBER;
    else if (missing > weight) few = int(ceil(precise::divide(missing, weight)));
    if (found.number > cut) {
      cut = found.number;
      stay = few;
    } else if (found.number == cut) {
      stay = min(stay, few);
    }
  }
  int own = 0;
  for (int token = row.begin + int(lane); token < row.end; token += 32)
    own += row.number(token) == cut ? 1 : 0;
  own = simd_sum(own);
  if (lane == 0) counts[simdgroup] = own;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  int before = 0;
  for (uint s = 0; s < simdgroup; s++) before += counts[s];
  const long key = seed[at], place = position[at];
  best = nobody();
  for (int start = row.begin; start < row.end; start += 32) {  // all lanes go through all of it
    const int token = start + int(lane), number = row.number(token);
    const int equal = number == cut ? 1 : 0;
    const int rank = before + simd_prefix_exclusive_sum(equal);
    before += simd_sum(equal);
    const bool kept = number > cut || (equal != 0 && rank < stay);
    if (!kept || row.weight(number) < least) continue;
    const uint4 words = random_words(key, place, uint(token) / 4);
    const float score = precise::divide(value_of(number), heat) + noise_of(words[token % 4]);
    best.take(number_of(score), token);
  }
  best = best_of_threadgroup(best, candidates, lane, simdgroup, simdgroups);
  if (thread_ == 0) ids[at] = best.id;
}

#define INSTANCE(T)                                       \
  template [[host_name("limited_candidate_" #T)]] [[kernel]] \
  decltype(limited_candidate<T>) limited_candidate<T>;
FOR_ALL(INSTANCE)
