// Attention with an online softmax in float32, over pages or over dense keys and values.
//
// "vector": a threadgroup is one row (a query of a head); its simdgroups share the keys out, four
// at a time, and merge what they found at the end. No barrier lies in the loop, and a row's bits
// depend on nothing but its own keys.
// "tile": a threadgroup is a tile of rows of one key head; each simdgroup has eight of them as
// fragments of 8 x 8, and all read a tile of keys, then of values, from threadgroup memory.
//
// Scores that are hidden are never -inf: a finite lowest number and weights of 0 hold under any
// arithmetic mode. Offsets into tensors are 64 bits wide.
#include <metal_stdlib>
using namespace metal;

constant constexpr float LOWEST = -2.0e38f;  // finite, too, where an exponent is scaled

// Fragments stay in registers only where the compiler knows each index of theirs.
#define UNROLL _Pragma("clang loop unroll(full)")

constant constexpr int SPLITS = 8;  // simdgroups of a row
constant constexpr int AT_ONCE = 4;  // keys of a step of one of them

template <typename T>
inline float weight_of(float x) {
  return fast::exp(x);
}
template <>
inline float weight_of<float>(float x) {
  return precise::exp(x);
}

// Keys or values of one head in blocks of a cache.
template <typename T>
struct Pages {
  device const T* head;
  device const int* table;
  int page;
  long token_step;

  device const T* at(int key) const {
    int block = key / page;
    return head + (long(table[block]) * page + (key - block * page)) * token_step;
  }
};

// Keys or values of one head, a step apart.
template <typename T>
struct Dense {
  device const T* head;
  long token_step;

  device const T* at(int key) const { return head + key * token_step; }
};

// Which keys a query sees: a range by position, and what a mask hides of it.
struct Sight {
  int keys;
  int queries;
  int window;  // 0: all
  bool causal;
  int mask_kind;  // 0: none, 1: bool, 2: float, 3: half, 4: bfloat
  device const uchar* mask;
  long mask_row;
  long mask_key;

  int first(int query) const {
    int own = keys - queries + query;
    return window > 0 ? max(0, own - window + 1) : 0;
  }
  int last(int query) const {
    int own = keys - queries + query;
    int end = window > 0 ? own + window - 1 : keys - 1;
    return min(causal ? own : end, keys - 1);
  }
  // The number that a mask adds to a score; false where it hides the key.
  bool sees(int key, thread float& bias) const {
    bias = 0.0f;
    if (mask_kind == 0) return true;
    long at = mask_row + key * mask_key;
    if (mask_kind == 1) return mask[at] != 0;
    if (mask_kind == 2) bias = ((device const float*)mask)[at];
    if (mask_kind == 3) bias = float(((device const half*)mask)[at]);
#if __METAL_VERSION__ >= 310
    if (mask_kind == 4) bias = float(((device const bfloat*)mask)[at]);
#endif
    return as_type<uint>(bias) != 0xff800000u;
  }
};

inline float capped(float product, float scale, float cap) {
  float score = product * scale;
  return cap > 0.0f ? cap * precise::tanh(score / cap) : score;
}

// One row; see the head of the file.
template <typename T, int E, typename Keys>
inline void attend_row(device const T* q, Keys keys, Keys values, device T* out, Sight sight,
                       int query, int head_dim, int value_dim, float scale, float cap,
                       threadgroup float* sums, threadgroup float* tops,
                       threadgroup float* totals, threadgroup int* counts, uint lane, uint split,
                       uint thread_index) {
  const int first = sight.first(query), last = sight.last(query);
  if (last < first) {  // the same for the whole threadgroup
    for (int d = thread_index; d < value_dim; d += SPLITS * 32) out[d] = T(0.0f);
    return;
  }
  const int start = lane * E;
  const int mine = min(E, head_dim - start), mine_out = min(E, value_dim - start);
  float own[E], sum[E];
  for (int e = 0; e < E; e++) {
    own[e] = e < mine ? float(q[start + e]) : 0.0f;
    sum[e] = 0.0f;
  }
  float top = LOWEST, total = 0.0f;
  int count = 0;
  for (int j = first + int(split) * AT_ONCE; j <= last; j += SPLITS * AT_ONCE) {
    float score[AT_ONCE];
    bool seen[AT_ONCE];
    float best = top;
    for (int u = 0; u < AT_ONCE; u++) {
      const int key = min(j + u, last);
      device const T* row = keys.at(key) + start;
      float part = 0.0f;
      for (int e = 0; e < E; e++)
        if (e < mine) part += own[e] * float(row[e]);
      float bias;
      seen[u] = sight.sees(key, bias) && j + u <= last;
      score[u] = capped(simd_sum(part), scale, cap) + bias;
      best = seen[u] ? max(best, score[u]) : best;
      count += seen[u] ? 1 : 0;
    }
    const float shrink = weight_of<T>(top - best);
    top = best;
    total *= shrink;
    for (int e = 0; e < E; e++) sum[e] *= shrink;
    for (int u = 0; u < AT_ONCE; u++) {
      if (!seen[u]) continue;
      const float weight = weight_of<T>(score[u] - top);
      total += weight;
      device const T* row = values.at(j + u) + start;
      for (int e = 0; e < E; e++)
        if (e < mine_out) sum[e] += weight * float(row[e]);
    }
  }
  for (int e = 0; e < E; e++) sums[split * (32 * E) + start + e] = sum[e];
  if (lane == 0) {
    tops[split] = top;
    totals[split] = total;
    counts[split] = count;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float highest = LOWEST, whole = 0.0f;
  int some = 0;
  for (int s = 0; s < SPLITS; s++) {
    highest = max(highest, tops[s]);
    some += counts[s];
  }
  float shares[SPLITS];
  for (int s = 0; s < SPLITS; s++) {
    shares[s] = counts[s] > 0 ? weight_of<T>(tops[s] - highest) : 0.0f;
    whole += shares[s] * totals[s];
  }
  for (int d = thread_index; d < value_dim; d += SPLITS * 32) {
    float merged = 0.0f;
    for (int s = 0; s < SPLITS; s++) merged += shares[s] * sums[s * (32 * E) + d];
    out[d] = some > 0 ? T(merged / whole) : T(0.0f);
  }
}

// Rows of a tile: ``rows`` of them, head by head within a query.
struct Rows {
  int first;
  int count;
  int group;
};

// Copies keys or values into threadgroup memory; what lies behind the last is 0.
template <typename T, int WIDTH, int KEYS, int THREADS, typename Keys>
inline void fill_keys(threadgroup T* tile, Keys keys, int from, int last, int dims,
                      uint thread_index) {
  constexpr int SHARE = THREADS / KEYS;  // threads of a key
  const int n = int(thread_index) / SHARE, key = from + n;
  const bool there = key <= last;
  device const T* row = keys.at(there ? key : last);
  for (int d = (int(thread_index) % SHARE) * 4; d < WIDTH; d += SHARE * 4)
    for (int e = d; e < d + 4; e++) tile[n * WIDTH + e] = there && e < dims ? row[e] : T(0.0f);
}

// One tile of rows; see the head of the file.
template <typename T, int WIDTH, int GROUPS, int KEYS, typename Keys>
inline void attend_tile(device const T* q, long q_token, long q_head, Keys keys, Keys values,
                        device T* out, long out_token, Sight sight, long mask_query,
                        long mask_head, Rows rows, int head_dim, int value_dim, float scale,
                        float cap, threadgroup T* queries, threadgroup T* tile,
                        threadgroup float* scores, threadgroup float* scratch,
                        threadgroup float* factors, uint lane, uint simdgroup,
                        uint thread_index) {
  constexpr int THREADS = GROUPS * 32, ROWS = GROUPS * 8, PARTS = WIDTH / 8;
  for (int n = thread_index; n < ROWS * WIDTH; n += THREADS) {
    const int row = rows.first + n / WIDTH, d = n % WIDTH, query = row / rows.group;
    const bool there = row < rows.count && d < head_dim;
    queries[n] = there ? q[query * q_token + (row - query * rows.group) * q_head + d] : T(0.0f);
  }
  scores += simdgroup * (8 * KEYS);
  scratch += simdgroup * 64;
  factors += simdgroup * 8;
  queries += simdgroup * (8 * WIDTH);
  const int place = int(lane) / 4, row = rows.first + int(simdgroup) * 8 + place;
  const bool real = row < rows.count;
  const int query = (real ? row : rows.first) / rows.group;
  const int head = (real ? row : rows.first) - query * rows.group;
  const int own_first = sight.first(query), own_last = real ? sight.last(query) : -1;
  const int end = min(rows.first + ROWS, rows.count) - 1;
  const int first = sight.first(rows.first / rows.group), last = sight.last(end / rows.group);
  sight.mask_row += query * mask_query + head * mask_head;

  simdgroup_matrix<float, 8, 8> sums[PARTS];
  UNROLL for (int d = 0; d < PARTS; d++) sums[d] = simdgroup_matrix<float, 8, 8>(0.0f);
  float top = LOWEST, total = 0.0f;
  int count = 0;
  for (int j = first; j <= last; j += KEYS) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    fill_keys<T, WIDTH, KEYS, THREADS>(tile, keys, j, last, head_dim, thread_index);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int c = 0; c < KEYS; c += 8) {
      simdgroup_matrix<float, 8, 8> product = simdgroup_matrix<float, 8, 8>(0.0f);
      for (int d = 0; d < WIDTH; d += 8) {
        simdgroup_matrix<T, 8, 8> a, b;
        simdgroup_load(a, queries + d, WIDTH);
        simdgroup_load(b, tile + c * WIDTH + d, WIDTH, ulong2(0, 0), true);
        simdgroup_multiply_accumulate(product, a, b, product);
      }
      simdgroup_store(product, scores + c, KEYS);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    float score[KEYS / 4];
    bool seen[KEYS / 4];
    float best = top;
    for (int u = 0; u < KEYS / 4; u++) {
      const int column = int(lane) % 4 + 4 * u, key = j + column;
      float bias = 0.0f;
      seen[u] = key >= own_first && key <= own_last && sight.sees(key, bias);
      score[u] = capped(scores[place * KEYS + column], scale, cap) + bias;
      best = seen[u] ? max(best, score[u]) : best;
      count += seen[u] ? 1 : 0;
    }
    best = max(best, simd_shuffle_xor(best, 1));
    best = max(best, simd_shuffle_xor(best, 2));
    const float shrink = weight_of<T>(top - best);
    top = best;
    total *= shrink;
    for (int u = 0; u < KEYS / 4; u++) {
      const float weight = seen[u] ? weight_of<T>(score[u] - top) : 0.0f;
      total += weight;
      scores[place * KEYS + int(lane) % 4 + 4 * u] = weight;
    }
    if (lane % 4 == 0) factors[place] = shrink;
    const bool moved = simd_any(shrink != 1.0f) && j != first;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    fill_keys<T, WIDTH, KEYS, THREADS>(tile, values, j, last, value_dim, thread_index);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    UNROLL for (int d = 0; d < PARTS; d++) {
      if (moved) {  // the same for the whole simdgroup, and rare once the largest score is seen
        simdgroup_store(sums[d], scratch, 8);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        scratch[2 * lane] *= factors[place];
        scratch[2 * lane + 1] *= factors[place];
        simdgroup_barrier(mem_flags::mem_threadgroup);
        simdgroup_load(sums[d], scratch, 8);
        simdgroup_barrier(mem_flags::mem_threadgroup);
      }
      for (int c = 0; c < KEYS; c += 8) {
        simdgroup_matrix<float, 8, 8> a;
        simdgroup_matrix<T, 8, 8> b;
        simdgroup_load(a, scores + c, KEYS);
        simdgroup_load(b, tile + c * WIDTH + 8 * d, WIDTH);
        simdgroup_multiply_accumulate(sums[d], a, b, sums[d]);
      }
    }
  }
  total += simd_shuffle_xor(total, 1);
  total += simd_shuffle_xor(total, 2);
  count += simd_shuffle_xor(count, 1);
  count += simd_shuffle_xor(count, 2);
  device T* to = out + query * out_token + long(head) * value_dim;
  UNROLL for (int d = 0; d < PARTS; d++) {
    simdgroup_store(sums[d], scratch, 8);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (int e = 0; e < 2; e++) {
      const int column = int(lane) % 4 * 2 + e, at = 8 * d + column;
      const float result = count > 0 ? scratch[place * 8 + column] / total : 0.0f;
      if (real && at < value_dim) to[at] = T(result);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
}
