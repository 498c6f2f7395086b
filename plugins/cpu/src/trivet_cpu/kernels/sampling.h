// sample_token: what the limits keep is found first, as a place in the order of the logits; then
// one pass adds noise and takes the largest, skipping what no noise can lift to the top.
#pragma once
#include "exponential.h"
#include "philox.h"
#include "table.h"

namespace {

using trivet_cpu::SampleArgs;
using trivet_cpu::SampleEntry;

// A number whose order is that of (logit, lower id first); no two tokens have the same.
INLINE uint64_t place_of(float logit, int64_t id) {
  logit += 0.0f;  // -0 is 0
  uint32_t bits;
  __builtin_memcpy(&bits, &logit, 4);
  bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return (uint64_t)bits << 32 | (uint32_t)~(uint32_t)id;
}
INLINE float logit_of(uint64_t place) {
  uint32_t bits = (uint32_t)(place >> 32);
  bits = bits & 0x80000000u ? bits & 0x7fffffffu : ~bits;
  float out;
  __builtin_memcpy(&out, &bits, 4);
  return out;
}
INLINE int64_t id_of(uint64_t place) { return (int64_t)(uint32_t)~(uint32_t)place; }

template <class T>
INLINE vf load_some(const T* p, int64_t n) { return n >= VL ? load(p) : load_first(p, n); }
INLINE int64_t shorter(int64_t a, int64_t b) { return a < b ? a : b; }

struct Largest {
  float value;  // NaN where the row has one
  int64_t id;   // the first that has it
};
template <class T>
INLINE Largest largest(const T* x, int64_t n) {
  vf top = splat(widen(x[0]));
  vi bad = {};
  int64_t i = 0;
  for (; i + VL <= n; i += VL) {
    vf v = load(x + i);
    top = select(v > top, v, top);
    bad |= v != v;
  }
  float best = top[0];
  bool nan = false;
  for (int l = 0; l < VL; l++) {
    best = top[l] > best ? top[l] : best;
    nan |= bad[l] != 0;
  }
  for (; i < n; i++) {
    float v = widen(x[i]);
    best = v > best ? v : best;
    nan |= v != v;
  }
  for (i = 0; i < n; i++) {
    float v = widen(x[i]);
    if (nan ? v != v : v == best) return {v, i};
  }
  return {widen(x[0]), 0};
}

INLINE bool any(vi mask) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask((__m512i)mask) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_ps((__m256)mask) != 0;
#else
  int32_t found = 0;
  for (int i = 0; i < VL; i++) found |= mask[i];
  return found != 0;
#endif
}

// --- selection -------------------------------------------------------------------------------

INLINE void swap(SampleEntry& a, SampleEntry& b) {
  SampleEntry t = a;
  a = b;
  b = t;
}
// Moves the entries at or above one of them to the front; returns how many there are.
INLINE int64_t partition(SampleEntry* e, int64_t n) {
  uint64_t a = e[0].place, b = e[n / 2].place, c = e[n - 1].place;
  uint64_t low = a < b ? a : b, high = a < b ? b : a;
  uint64_t pivot = c < low ? low : (c > high ? high : c);
  int64_t kept = 0;
  for (int64_t i = 0; i < n; i++)
    if (e[i].place >= pivot) swap(e[kept++], e[i]);
  if (kept < n) return kept;
  // the pivot is the smallest: it alone goes behind the rest
  for (int64_t i = 0; i < n; i++)
    if (e[i].place == pivot) {
      swap(e[i], e[n - 1]);
      break;
    }
  return n - 1;
}
// The first k in order come to the front.
inline void keep_first(SampleEntry* e, int64_t n, int64_t k) {
  while (k > 0 && k < n && n > 1) {
    int64_t upper = partition(e, n);
    if (upper == k) return;
    if (upper > k)
      n = upper;
    else
      e += upper, n -= upper, k -= upper;
  }
}
// The lowest place of the shortest prefix in order whose weights reach `need`.
inline uint64_t reach(SampleEntry* e, int64_t n, double need) {
  while (n > 1) {
    int64_t upper = partition(e, n);
    double mass = 0;
    for (int64_t i = 0; i < upper; i++) mass += e[i].weight;
    if (mass >= need)
      n = upper;
    else
      e += upper, n -= upper, need -= mass;
  }
  return e[0].place;
}

template <class T>
INLINE vf weights(const T* x, int64_t n, float top, float heat) {
  return exponential_of_negative((load_some(x, n) - top) / heat);
}

template <class T>
struct Row {
  const T* x;
  int64_t n;
  float top, heat;
  SampleEntry* entries;

  // The first k of the row in `entries`; room for n. A buffer of twice k is cut when it is full.
  INLINE int64_t first_of(int64_t k) const {
    int64_t count = 0, room = shorter(n, 2 * k + 1024);
    float floor = -__builtin_inff();
    bool full = false;  // k are known, so that only what is above the least of them matters
    for (int64_t i = 0; i < n; i += VL) {
      int64_t m = shorter(VL, n - i);
      vf v = load_some(x + i, m);
      if (full && !any(v > splat(floor))) continue;
      for (int64_t j = 0; j < m; j++) {
        if (full && !(v[j] > floor)) continue;
        if (count == room) {
          keep_first(entries, count, k);
          count = k;
          uint64_t least = entries[0].place;
          for (int64_t c = 1; c < k; c++) least = entries[c].place < least ? entries[c].place : least;
          floor = logit_of(least);
          full = true;
          if (!(v[j] > floor)) continue;
        }
        entries[count++] = {place_of(v[j], i + j), 0.0f};
      }
    }
    keep_first(entries, count, k);
    return shorter(k, count);
  }
  INLINE double weigh(int64_t count) const {
    double total = 0;
    for (int64_t i = 0; i < count; i += VL) {
      float part[VL] = {};
      int64_t m = shorter(VL, count - i);
      for (int64_t j = 0; j < m; j++) part[j] = logit_of(entries[i + j].place);
      vf w = weights(part, VL, top, heat);
      for (int64_t j = 0; j < m; j++) {
        entries[i + j].weight = w[j];
        total += w[j];
      }
    }
    return total;
  }
  // Entries that a prefix of this share can need. Those below the cut have less than what may be
  // missing, all together, so that the prefix is reached before them.
  INLINE int64_t heavy(float share, double* total) const {
    double sum = 0;
    for (int64_t i = 0; i < n;) {
      vf part = {};
      int64_t end = shorter(n, i + 64 * VL);
      for (; i + VL <= end; i += VL) part = part + weights(x + i, VL, top, heat);
      float tail = 0;
      if (i < end) {
        vf w = weights(x + i, end - i, top, heat);
        for (int64_t j = 0; j < end - i; j++) tail += w[j];
        i = end;
      }
      sum += (double)sum_of_lanes(part) + (double)tail;
    }
    *total = sum;
    float cut = (float)(0.5 * (1.0 - (double)share) * sum / (double)n);
    cut = cut < 1.0f ? cut : 1.0f;
    int64_t count = 0;
    for (int64_t i = 0; i < n; i += VL) {
      int64_t m = shorter(VL, n - i);
      vf v = load_some(x + i, m), w = weights(x + i, m, top, heat);
      if (!any(w >= splat(cut))) continue;
      for (int64_t j = 0; j < m; j++)
        if (w[j] >= cut) entries[count++] = {place_of(v[j], i + j), w[j]};
    }
    return count;
  }
};

// The smallest float that is not below a number.
INLINE float not_below(double x) {
  if (!(x > -3.4028234663852886e38)) return -__builtin_inff();
  float f = (float)x;
  if ((double)f >= x) return f;
  uint32_t bits;
  __builtin_memcpy(&bits, &f, 4);
  bits = f == 0.0f ? 1u : (f > 0.0f ? bits + 1 : bits - 1);
  __builtin_memcpy(&f, &bits, 4);
  return f;
}

// The last place in the order of the logits that every limit keeps; 0 where all are kept.
template <class T>
INLINE uint64_t last_kept(const SampleArgs& a, int64_t s, const Row<T>& row) {
  uint64_t last = 0;
  int64_t k = a.top_k ? a.top_k[s * a.top_k_stride] : 0;
  float p = a.top_p ? a.top_p[s * a.top_p_stride] : 1.0f;
  if (k > 0 && k < row.n) {
    int64_t count = row.first_of(k);
    last = row.entries[0].place;
    for (int64_t i = 1; i < count; i++)
      last = row.entries[i].place < last ? row.entries[i].place : last;
    if (p < 1.0f) last = reach(row.entries, count, (double)p * row.weigh(count));
  } else if (p < 1.0f) {
    double total;
    int64_t count = row.heavy(p, &total);
    last = reach(row.entries, count, (double)p * total);
  }
  if (a.min_log) {
    double least = (double)row.top + (double)row.heat * a.min_log[s];
    float f = not_below(least);
    uint64_t place = place_of(f < row.top ? f : row.top, 0xffffffff);
    last = place > last ? place : last;
  }
  return last;
}

// --- the choice ------------------------------------------------------------------------------

template <class T>
INLINE Largest noisy(const T* x, int64_t n, int64_t first, float heat, const Draw& draw,
                     uint64_t last) {
  const float floor = last ? logit_of(last) : -__builtin_inff();
  const int64_t floor_id = last ? id_of(last) : 0xffffffff;
  const int shift = (int)(first & 3);
  float best = -__builtin_inff();
  int64_t id = -1;
  uint32_t words[2 * NOISE];
  for (int64_t i = 0; i < n; i += NOISE) {
    vf x0[2], z[2];
    bool possible = false;
    for (int h = 0; h < 2; h++) {
      int64_t m = n - i - h * VL;
      x0[h] = m >= VL ? load(x + i + h * VL) : (m > 0 ? load_first(x + i + h * VL, m) : (vf){});
      z[h] = x0[h] / heat;
      possible |= any((x0[h] >= splat(floor)) & (z[h] + LARGEST_NOISE >= splat(best)));
    }
    if (!possible) continue;
    philox(draw, (first + i) >> 2, words);
    if (shift) philox(draw, ((first + i) >> 2) + BLOCKS, words + NOISE);
    for (int h = 0; h < 2; h++) {
      vu word;
      __builtin_memcpy(&word, words + shift + h * VL, sizeof word);
      vf score = z[h] + gumbel(word);
      if (id >= 0 && !any((score > splat(best)) & (x0[h] >= splat(floor)))) continue;
      for (int64_t j = 0, at = i + h * VL; j < VL && at < n; j++, at++) {
        if (x0[h][j] < floor || (x0[h][j] == floor && at > floor_id)) continue;
        if (score[j] > best || id < 0) best = score[j], id = at;
      }
    }
  }
  return {best, id};
}

template <class T>
void sample(const SampleArgs& a, int64_t begin, int64_t end, SampleEntry* entries) {
  for (int64_t s = begin; s < end; s++) {
    const T* x = (const T*)a.logits + s * a.stride;
    Largest best = largest(x, a.n);
    float heat = a.temperature ? a.temperature[s * a.temperature_stride] : 0.0f;
    bool finite = best.value - best.value == 0.0f;
    if (heat != 0.0f && finite) {
      Draw draw{(uint64_t)a.seed[s * a.seed_stride], (uint64_t)a.position[s * a.position_stride]};
      Row<T> row{x, a.n, best.value, heat, entries};
      best = noisy(x, a.n, a.first, heat, draw, last_kept(a, s, row));
    }
    a.ids[s] = a.first + best.id;
    if (a.scores) a.scores[s] = best.value;
  }
}

}  // namespace
