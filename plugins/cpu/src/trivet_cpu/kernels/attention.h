// paged_attention: one query tile against the pages of its sequence, softmax computed online.
//
// Keys are taken in chunks of CHUNK that start at multiples of CHUNK of the key position, and every
// score, maximum, sum and accumulation is done in an order that depends on the key position alone.
// A row therefore gives the same bits in any tile, any batch and on any number of threads.
#pragma once
#include "exponential.h"
#include "pair.h"
#include "table.h"

namespace {

using trivet_cpu::AttentionArgs;
using trivet_cpu::AttentionTile;
using trivet_cpu::TILE_ROWS;

constexpr int CHUNK = 64;
constexpr int PACK_FROM_ROWS = 8;  // rows that share a chunk before widening it once pays

INLINE float minus_infinity() { return -__builtin_inff(); }
INLINE int64_t padded(int64_t head_dim) { return (head_dim + 2 * VL - 1) / (2 * VL) * (2 * VL); }
INLINE int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }

// The state of one tile; the arrays live in the caller's scratch memory.
struct Tile {
  int64_t rows, width;           // width: head_dim rounded up to whole pairs of vectors
  float *q, *acc;                // [rows][width]
  float* scores;                 // [rows][CHUNK]
  float *k_packed, *v_packed;    // [CHUNK][width], used when packing
  float top[TILE_ROWS];          // running maximum
  float total[TILE_ROWS];        // running sum of exponentials
  int64_t low[TILE_ROWS];        // visible keys of a row: low <= j < high
  int64_t high[TILE_ROWS];
  int64_t from, to;              // keys that some row of the tile sees
};

int64_t attention_scratch(int64_t head_dim) {
  return padded(head_dim) * (2 * TILE_ROWS + 2 * CHUNK) + TILE_ROWS * CHUNK;
}

// N or more neighbouring vectors of a row in the tile's order: bf16 comes in pairs (see Pair).
template <class E, int N>
struct Columns {
  static constexpr int W = N;
  vf x[W];
  INLINE void load_from(const E* p) {
    for (int i = 0; i < W; i++) x[i] = load(p + i * VL);
  }
};
template <int N>
struct Columns<bf16, N> {
  static constexpr int W = N < 2 ? 2 : N;
  vf x[W];
  INLINE void load_from(const bf16* p) {
    for (int i = 0; i < W; i += 2) {
      Pair pair = load_pair<bf16>(p + i * VL);
      x[i] = pair.a;
      x[i + 1] = pair.b;
    }
  }
};

// --- scores ----------------------------------------------------------------------------------

// R rows times C keys with R * C == VL: each dot product keeps one vector, all are summed at once.
template <int R, class E>
INLINE void score_block(const float* q, const E* const* keys, int64_t width, float* scores) {
  constexpr int C = VL / R;
  vf part[VL] = {};
  constexpr int W = Columns<E, 1>::W;
  for (int64_t d = 0; d < width; d += W * VL) {
    Columns<E, 1> key[C];
    for (int c = 0; c < C; c++) key[c].load_from(keys[c] + d);
    for (int w = 0; w < W; w++)
      for (int r = 0; r < R; r++) {
        vf query = load(q + r * width + d + w * VL);
        for (int c = 0; c < C; c++) part[r * C + c] = fma(query, key[c].x[w], part[r * C + c]);
      }
  }
  vf sums = sums_of_lanes(part);
  float flat[VL];
  store(flat, sums);
  for (int r = 0; r < R; r++) __builtin_memcpy(scores + r * CHUNK, flat + r * C, 4 * C);
}

// Pages lie anywhere in memory, which no processor foresees: while keys are scored their values are
// fetched, and while values are summed the next chunk's keys; as far as the second cache, because
// two chunks of floats are more than the first one holds. `ahead` is null where it cannot pay.
template <class E>
INLINE void fetch(const E* row, int64_t width) {
  for (int64_t d = 0; d < width; d += 64 / (int64_t)sizeof(E)) __builtin_prefetch(row + d, 0, 2);
}

template <int R, class E>
INLINE void score_rows(const Tile& t, int64_t row, const E* const* keys, const E* const* ahead,
                       int64_t begin, int64_t end) {
  constexpr int C = VL / R;
  for (int64_t key = begin / C * C; key < end; key += C) {
    if (ahead)
      for (int c = 0; c < C; c++) fetch(ahead[key + c], t.width);
    score_block<R>(t.q + row * t.width, keys + key, t.width, t.scores + row * CHUNK + key);
  }
}

// --- softmax of one row over one chunk -------------------------------------------------------

INLINE vf capped(vf s, vf cap, vf inverse) {  // cap * tanh(s / cap)
  vf r = s * inverse, z = r * r;
  vf e = exponential(at_most(at_least(r, -40.0f), 40.0f) * 2.0f);
  vf far = splat(1.0f) - splat(2.0f) / (e + 1.0f);
  // Near zero the difference above cancels: a polynomial of tanh(r)/r there, within 1.6 u.
  vf p = splat(-0.0061004600f) * z + 0.0209879763f;
  p = (p * z - 0.0538444817f) * z + 0.1333266050f;
  vf near = r + r * (z * (p * z - 0.3333332539f));
  return cap * select(z < 0.390625f, near, far);
}

// Turns scores into weights, updates maximum and sum, rescales what was accumulated so far.
INLINE void soften(Tile& t, int64_t row, int64_t begin, int64_t end, float soft_cap) {
  float* s = t.scores + row * CHUNK;
  vi lane;
  for (int i = 0; i < VL; i++) lane[i] = i;
  vf largest = splat(minus_infinity());
  for (int i = 0; i < CHUNK; i += VL) {
    vf x = load(s + i);
    if (soft_cap > 0.0f) x = capped(x, splat(soft_cap), splat(1.0f / soft_cap));
    vi at = lane + i;
    x = select((at >= (int32_t)begin) & (at < (int32_t)end), x, splat(minus_infinity()));
    largest = select(x > largest, x, largest);
    store(s + i, x);
  }
  float chunk_top = max_of_lanes(largest);
  float top = chunk_top > t.top[row] ? chunk_top : t.top[row];
  // While all that was seen is -inf, weights are exp(-inf) = 0, and a NaN still shows.
  float base = top == minus_infinity() ? 0.0f : top;
  vf sum = {};
  for (int i = 0; i < CHUNK; i += VL) {
    vf weight = exponential_of_negative(load(s + i) - base);
    store(s + i, weight);
    sum = sum + weight;
  }
  if (top != t.top[row]) {
    float keep = exponential_of_negative(splat(t.top[row] - base))[0];
    t.total[row] *= keep;
    for (int64_t d = 0; d < t.width; d += VL)
      store(t.acc + row * t.width + d, load(t.acc + row * t.width + d) * keep);
  }
  t.total[row] += sum_of_lanes(sum);
  t.top[row] = top;
}

// --- weighted sum of values ------------------------------------------------------------------

template <int R, int N, class E>
INLINE void accumulate_block(float* acc, const float* weights, const E* const* values,
                             const E* const* ahead, int64_t d, int64_t begin, int64_t end,
                             int64_t width) {
  vf sum[R][N];
  for (int r = 0; r < R; r++)
    for (int n = 0; n < N; n++) sum[r][n] = load(acc + r * width + d + n * VL);
  for (int64_t key = begin; key < end; key++) {
    if (ahead) fetch(ahead[key] + d, N * VL);
    Columns<E, N> value;
    value.load_from(values[key] + d);
    for (int r = 0; r < R; r++) {
      vf w = splat(weights[r * CHUNK + key]);
      for (int n = 0; n < N; n++) sum[r][n] = fma(w, value.x[n], sum[r][n]);
    }
  }
  for (int r = 0; r < R; r++)
    for (int n = 0; n < N; n++) store(acc + r * width + d + n * VL, sum[r][n]);
}

template <int R, class E>
INLINE void accumulate(Tile& t, int64_t row, const E* const* values, const E* const* ahead,
                       int64_t begin, int64_t end) {
  constexpr int WIDE = (VL == 16 ? 16 : 8) / R > 8 ? 8 : (VL == 16 ? 16 : 8) / R;
  float* acc = t.acc + row * t.width;
  const float* weights = t.scores + row * CHUNK;
  int64_t d = 0;
  for (; d + WIDE * VL <= t.width; d += WIDE * VL)
    accumulate_block<R, WIDE>(acc, weights, values, ahead, d, begin, end, t.width);
  for (; d + 2 * VL <= t.width; d += 2 * VL)
    accumulate_block<R, 2>(acc, weights, values, ahead, d, begin, end, t.width);
  if constexpr (sizeof(E) == 4)  // the width of bf16 rows is a multiple of 2 * VL
    if (d < t.width) accumulate_block<R, 1>(acc, weights, values, ahead, d, begin, end, t.width);
}

// --- one chunk -------------------------------------------------------------------------------

// Scores, softmax and values of R neighbouring rows; keys outside a row's range are never read.
template <int R, class E>
INLINE void chunk_rows(Tile& t, int64_t row, int64_t start, const E* const* keys,
                       const E* const* values, const E* const* ahead, float soft_cap) {
  int64_t begin[R], end[R], first = CHUNK, last = 0, shared = 0, until = CHUNK;
  bool all = true;
  for (int r = 0; r < R; r++) {
    begin[r] = max(t.low[row + r] - start, 0);
    end[r] = min(t.high[row + r] - start, CHUNK);
    if (begin[r] >= end[r]) {
      all = false;
      continue;
    }
    first = min(first, begin[r]);
    last = max(last, end[r]);
    shared = max(shared, begin[r]);
    until = min(until, end[r]);
  }
  if (first >= last) return;
  score_rows<R>(t, row, keys, ahead ? values : nullptr, first, last);
  for (int r = 0; r < R; r++)
    if (begin[r] < end[r]) soften(t, row + r, begin[r], end[r], soft_cap);
  if (!all || shared >= until) {
    for (int r = 0; r < R; r++)
      if (begin[r] < end[r]) accumulate<1>(t, row + r, values, ahead, begin[r], end[r]);
    return;
  }
  for (int r = 0; r < R; r++)
    if (begin[r] < shared) accumulate<1>(t, row + r, values, ahead, begin[r], shared);
  accumulate<R>(t, row, values, ahead, shared, until);
  for (int r = 0; r < R; r++)
    if (until < end[r]) accumulate<1>(t, row + r, values, ahead, until, end[r]);
}

template <class E>
void chunk(Tile& t, int64_t start, const E* const* keys, const E* const* values,
           const E* const* ahead, float soft_cap) {
  int64_t row = 0;
  for (; row + 4 <= t.rows; row += 4) {
    chunk_rows<4>(t, row, start, keys, values, ahead, soft_cap);
    ahead = nullptr;
  }
  for (; row + 2 <= t.rows; row += 2) {
    chunk_rows<2>(t, row, start, keys, values, ahead, soft_cap);
    ahead = nullptr;
  }
  for (; row < t.rows; row++) chunk_rows<1>(t, row, start, keys, values, ahead, soft_cap);
}

// --- one tile --------------------------------------------------------------------------------

template <class T>
INLINE Pair row_pair(const T* row, int64_t d, int64_t head_dim) {
  if (d + 2 * VL <= head_dim) return load_pair<T>(row + d);
  return load_pair_first<T>(row + d, head_dim - d);
}

template <class T>
void open_tile(const AttentionArgs& a, const AttentionTile& tile, Tile& t, float* scratch) {
  const int64_t group = a.heads / a.kv_heads, start = a.query_start[tile.seq];
  const int64_t queries = a.query_start[tile.seq + 1] - start, length = a.seq_lens[tile.seq];
  t.width = padded(a.head_dim);
  t.rows = min(TILE_ROWS, queries * group - tile.first_row);
  t.q = scratch;
  t.acc = t.q + TILE_ROWS * t.width;
  t.scores = t.acc + TILE_ROWS * t.width;
  t.k_packed = t.scores + TILE_ROWS * CHUNK;
  t.v_packed = t.k_packed + CHUNK * t.width;
  t.from = length;
  t.to = 0;
  for (int64_t r = 0; r < t.rows; r++) {
    int64_t query = (tile.first_row + r) / group, head = (tile.first_row + r) % group;
    const T* in = (const T*)a.q + (start + query) * a.q_stride +
                  (tile.kv_head * group + head) * a.q_head_stride;
    float *q = t.q + r * t.width, *acc = t.acc + r * t.width;
    for (int64_t d = 0; d < t.width; d += 2 * VL) {
      store_pair(q + d, row_pair(in, d, a.head_dim) * splat(a.scale));
      store_pair(acc + d, {splat(0.0f), splat(0.0f)});
    }
    t.top[r] = minus_infinity();
    t.total[r] = 0.0f;
    const int64_t own = length - queries + query;  // the key at the query's position, if >= 0
    const int64_t reach = a.window > 0 ? min(a.window, length - own) : length - own;
    t.high[r] = max(own + (a.causal ? 1 : reach), 0);
    t.low[r] = a.window > 0 ? max(max(own + 1, 0) - a.window, 0) : 0;
    t.from = min(t.from, t.low[r]);
    t.to = max(t.to, t.high[r]);
  }
}

template <class T>
void close_tile(const AttentionArgs& a, const AttentionTile& tile, const Tile& t) {
  const int64_t group = a.heads / a.kv_heads, start = a.query_start[tile.seq];
  for (int64_t r = 0; r < t.rows; r++) {
    int64_t query = (tile.first_row + r) / group, head = (tile.first_row + r) % group;
    T* out = (T*)a.out + ((start + query) * a.heads + tile.kv_head * group + head) * a.head_dim;
    // No visible key: zeros. Visible keys whose weights are all zero: 0 * inf, the NaN of softmax.
    float inverse = t.high[r] > t.low[r] ? 1.0f / t.total[r] : 0.0f;
    for (int64_t d = 0; d < a.head_dim; d += 2 * VL) {
      Pair x = load_pair<float>(t.acc + r * t.width + d) * splat(inverse);
      if (d + 2 * VL <= a.head_dim)
        store_pair(out + d, x);
      else
        store_pair_first(out + d, x, a.head_dim - d);
    }
  }
}

// Rows of keys and values of one chunk; places without a visible key repeat a visible one.
template <class T>
struct Pages {
  const T* k[CHUNK];
  const T* v[CHUNK];

  bool find(const AttentionArgs& a, const AttentionTile& tile, const Tile& t, int64_t start) {
    const int64_t begin = max(t.from, start), end = min(t.to, start + CHUNK);
    const int32_t* table = a.table + tile.seq * a.table_stride;
    int64_t page = begin / a.block_size, slot = begin % a.block_size;
    int64_t block = table[page];
    if (block < 0 || block >= a.blocks) return false;
    for (int64_t key = begin; key < end; key++) {
      if (slot == a.block_size) {
        slot = 0;
        block = table[++page];
        if (block < 0 || block >= a.blocks) return false;
      }
      k[key - start] = (const T*)a.k + block * a.k_block + slot * a.k_slot + tile.kv_head * a.k_head;
      v[key - start] = (const T*)a.v + block * a.v_block + slot * a.v_slot + tile.kv_head * a.v_head;
      slot++;
    }
    for (int64_t i = 0; i < begin - start; i++) k[i] = k[begin - start], v[i] = v[begin - start];
    for (int64_t i = end - start; i < CHUNK; i++)
      k[i] = k[end - start - 1], v[i] = v[end - start - 1];
    return true;
  }
};

template <class T>
INLINE void widen_rows(const T* const* rows, int64_t begin, int64_t end, int64_t head_dim,
                       int64_t width, float* out) {
  for (int64_t i = begin; i < end; i++)
    for (int64_t d = 0; d < width; d += 2 * VL)
      store_pair(out + i * width + d, row_pair(rows[i], d, head_dim));
}

template <class T>
bool attention(const AttentionArgs& a, const AttentionTile& tile, float* scratch) {
  Tile t;
  open_tile<T>(a, tile, t, scratch);
  const bool pack = t.width != a.head_dim || (sizeof(T) < 4 && t.rows >= PACK_FROM_ROWS);
  const float *k_rows[CHUNK], *v_rows[CHUNK];
  Pages<T> pages[2];  // of this chunk and of the next
  int now = 0;
  int64_t start = t.from / CHUNK * CHUNK;
  if (start < t.to && !pages[now].find(a, tile, t, start)) return false;
  for (; start < t.to; start += CHUNK, now = 1 - now) {
    const Pages<T>&page = pages[now], &next = pages[start + CHUNK < t.to ? 1 - now : now];
    if (&next != &page && !pages[1 - now].find(a, tile, t, start + CHUNK)) return false;
    if (!pack) {
      chunk<T>(t, start, page.k, page.v, next.k, a.soft_cap);
      continue;
    }
    int64_t begin = max(t.from - start, 0), end = min(t.to - start, CHUNK);
    widen_rows(page.k, begin, end, a.head_dim, t.width, t.k_packed);
    widen_rows(page.v, begin, end, a.head_dim, t.width, t.v_packed);
    for (int64_t i = 0; i < CHUNK; i++) {
      int64_t row = min(max(i, begin), end - 1);
      k_rows[i] = t.k_packed + row * t.width;
      v_rows[i] = t.v_packed + row * t.width;
    }
    chunk<float>(t, start, k_rows, v_rows, nullptr, a.soft_cap);
  }
  close_tile<T>(a, tile, t);
  return true;
}

}  // namespace
