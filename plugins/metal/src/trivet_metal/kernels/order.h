// What the sampling kernels share: logits in an order of integers, the best of a threadgroup, and
// the noise of each token. Integers hold NaN, infinities and ties under any arithmetic mode.
#include <metal_stdlib>
using namespace metal;

constant constexpr int NOTHING = -2147483647 - 1;  // below the number of -inf
constant constexpr int NAN_NUMBER = 2147483647;
constant constexpr int INF_NUMBER = 0x7f800000;
constant constexpr float MOST_NOISE = 17.0f;  // the noise of the largest u, 1 - 2^-24, is 16.64

// Order-preserving; 0 and -0 are equal, each NaN is the largest.
inline int number_of(float x) {
  const uint bits = as_type<uint>(x), size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) return NAN_NUMBER;
  if (size == 0) return 0;
  return int(bits >> 31 ? bits ^ 0x7fffffffu : bits);
}

inline float value_of(int number) {
  return as_type<float>(number < 0 ? uint(number) ^ 0x7fffffffu : uint(number));
}

inline bool is_finite(int number) { return number < INF_NUMBER && number > -INF_NUMBER - 1; }

// A candidate; the better one has the larger number, then the lower id.
struct Candidate {
  int number;
  int id;

  void take(int other, int token) {
    if (other > number || (other == number && token < id)) {
      number = other;
      id = token;
    }
  }
};

inline Candidate nobody() { return {NOTHING, NAN_NUMBER}; }

// The best of a simdgroup, in every thread of it.
inline Candidate best_of_simdgroup(Candidate own) {
  const int number = simd_max(own.number);
  return {number, simd_min(own.number == number ? own.id : NAN_NUMBER)};
}

// The best of a threadgroup, in every thread of it; all of them call it. ``space`` has two
// integers a simdgroup, and may be written again behind the next barrier.
inline Candidate best_of_threadgroup(Candidate own, threadgroup int* space, uint lane,
                                     uint simdgroup, uint simdgroups) {
  own = best_of_simdgroup(own);
  if (lane == 0) {
    space[2 * simdgroup] = own.number;
    space[2 * simdgroup + 1] = own.id;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  Candidate other = nobody();
  if (lane < simdgroups) other = {space[2 * lane], space[2 * lane + 1]};
  return best_of_simdgroup(other);
}

// Philox4x32-10: the words of the four tokens of a block.
inline uint4 random_words(long seed, long position, uint block) {
  uint4 x = uint4(block, 0, uint(position), uint(position >> 32));
  uint2 key = uint2(uint(seed), uint(seed >> 32));
  for (int r = 0; r < 10; r++) {
    x = uint4(mulhi(x.z, 0xCD9E8D57u) ^ x.y ^ key.x, x.z * 0xCD9E8D57u,
              mulhi(x.x, 0xD2511F53u) ^ x.w ^ key.y, x.x * 0xD2511F53u);
    key += uint2(0x9E3779B9u, 0xBB67AE85u);
  }
  return x;
}

// Gumbel noise of a word; a logarithm that is only nearly right would lose all of the large ones.
inline float noise_of(uint word) {
  const float u = (float(word >> 9) + 0.5f) * 1.1920928955078125e-07f;
  return -precise::log(-precise::log(u));
}
