// Checks and entry points of sample_token, sample_token_part and penalize_logits.
#pragma once
#include <cmath>
#include <memory>

#include "overlap.h"
#include "simd.h"

namespace trivet_cpu {

// Numbers of one dtype, one a sequence; without elements where the argument is absent.
class PerSequence {
 public:
  PerSequence(const Arg& t, int64_t seqs, int32_t dtype, const char* op, const char* what)
      : rows_(t, 0), here_(t.dim == 1 && t.size(0) == seqs) {
    require(t.dim == 1 && t.dtype == dtype && (here_ || t.size(0) == 0), op, what);
  }
  template <class T>
  const T* data() const {
    return here_ ? rows_.data<T>() : nullptr;
  }
  int64_t stride() const { return rows_.rows.stride; }

 private:
  Operand rows_;
  bool here_;
};
// Every number lies in its range; a NaN lies in none.
template <class F>
void require_each(const PerSequence& t, int64_t seqs, const F& right, const char* op,
                  const char* what) {
  const float* p = t.data<float>();
  for (int64_t s = 0; p && s < seqs; s++) require(right(p[s * t.stride()]), op, what);
}

inline void run_sample(SampleArgs& a, const Arg& logits, const Arg* optional, const Arg& ids,
                       const Arg& scores, const char* op) {
  const Type type = activation_type(logits, op);
  require(logits.dim == 2, op, "logits must have the dims seqs and vocab");
  const int64_t seqs = logits.size(0);
  const int32_t f32 = dtypes().f32, i32 = dtypes().i32, i64 = dtypes().i64;
  const PerSequence heat(optional[0], seqs, f32, op, "temperature must be float32, one a sequence");
  const PerSequence k(optional[1], seqs, i32, op, "top_k must be int32, one a sequence");
  const PerSequence p(optional[2], seqs, f32, op, "top_p must be float32, one a sequence");
  const PerSequence least(optional[3], seqs, f32, op, "min_p must be float32, one a sequence");
  const PerSequence seed(optional[4], seqs, i64, op, "seed must be int64, one a sequence");
  const PerSequence place(optional[5], seqs, i64, op, "position must be int64, one a sequence");
  require_each(heat, seqs, [](float v) { return v >= 0.0f && v - v == 0.0f; }, op,
               "a temperature must be 0 or positive, and finite");
  require_each(p, seqs, [](float v) { return v > 0.0f && v <= 1.0f; }, op,
               "top_p must be in (0, 1]");
  require_each(least, seqs, [](float v) { return v >= 0.0f && v <= 1.0f; }, op,
               "min_p must be in [0, 1]");
  require(a.first >= 0, op, "first must not be negative");
  if (seqs == 0) return;
  require(logits.size(1) > 0, op, "there is no token to choose from");
  require(!heat.data<float>() || (seed.data<int64_t>() && place.data<int64_t>()), op,
          "temperature needs seed and position");
  const Operand rows(logits, 1);
  a.logits = rows.data<char>();
  a.stride = rows.rows.stride;
  a.n = logits.size(1);
  a.temperature = heat.data<float>(), a.temperature_stride = heat.stride();
  a.top_k = k.data<int32_t>(), a.top_k_stride = k.stride();
  a.top_p = p.data<float>(), a.top_p_stride = p.stride();
  a.seed = seed.data<int64_t>(), a.seed_stride = seed.stride();
  a.position = place.data<int64_t>(), a.position_stride = place.stride();
  std::vector<double> logs;
  if (const float* m = least.data<float>()) {
    for (int64_t s = 0; s < seqs; s++) logs.push_back(std::log((double)m[s * least.stride()]));
    a.min_log = logs.data();
  }
  a.ids = ids.inout<int64_t>();
  a.scores = scores.numel() ? scores.inout<float>() : nullptr;
  const bool limits = a.temperature && (a.top_k || a.top_p);
  auto kernel = current().table->sample[type];
  over_rows(seqs, a.n * (a.temperature ? 32 : type == F32 ? 4 : 2),
            [&](int64_t begin, int64_t end) {
              std::unique_ptr<SampleEntry[]> entries(limits ? new SampleEntry[a.n] : nullptr);
              kernel(a, begin, end, entries.get());
            });
}

inline void sample_token(StableIValue* stack, uint64_t, uint64_t) {
  const char* op = "sample_token";
  Arg logits(stack[0]), ids(stack[8]), scores(stack[9]);
  Arg optional[6] = {Arg(stack[2]), Arg(stack[3]), Arg(stack[4]),
                     Arg(stack[5]), Arg(stack[6]), Arg(stack[7])};
  for (Arg* a : {&logits, &ids, &scores}) a->read();
  for (Arg& a : optional) a.read();
  SampleArgs a{};
  a.first = as_int(stack[1]);
  run_sample(a, logits, optional, ids, scores, op);
}

// --- penalize_logits -------------------------------------------------------------------------

struct Penalties {
  const int32_t *tokens, *prompt_lens;
  const float *repetition, *presence, *frequency;
  int64_t token_stride, prompt_stride, repetition_stride, presence_stride, frequency_stride;
  int64_t history, vocab, in_stride, out_stride;
};
struct TokenCount {
  int32_t all = 0, answer = 0;
};

inline float penalized(float value, const TokenCount& c, float r, float presence, float frequency) {
  value = value > 0.0f ? value / r : value * r;
  return c.answer ? value - (float)c.answer * frequency - presence : value;
}
// Counts each token once and then treats it once; the counts are zero again at the end.
template <class T>
void penalize_row(const Penalties& a, int64_t s, T* y, TokenCount* counts) {
  const int32_t* row = a.tokens + s * a.token_stride;
  const int64_t prompt = a.prompt_lens[s * a.prompt_stride];
  for (int64_t i = 0; i < a.history; i++)
    if (row[i] >= 0) counts[row[i]].all++, counts[row[i]].answer += i >= prompt;
  for (int64_t i = 0; i < a.history; i++) {
    const int32_t t = row[i];
    if (t < 0 || !counts[t].all) continue;
    store_one(y + t, penalized(widen(y[t]), counts[t], a.repetition[s * a.repetition_stride],
                               a.presence[s * a.presence_stride],
                               a.frequency[s * a.frequency_stride]));
    counts[t] = {};
  }
}

template <class T>
void penalize_rows(const Penalties& a, const void* x, void* y, int64_t seqs) {
  over_rows(seqs, a.vocab * 2 * (int64_t)sizeof(T), [&](int64_t begin, int64_t end) {
    std::vector<TokenCount> counts(a.history ? (size_t)a.vocab : 0);
    for (int64_t s = begin; s < end; s++) {
      T* to = (T*)y + s * a.out_stride;
      const T* from = (const T*)x + s * a.in_stride;
      if (to != from) std::memcpy(to, from, (size_t)a.vocab * sizeof(T));
      penalize_row(a, s, to, counts.data());
    }
  });
}

inline void run_penalize(const Arg& logits, const Arg* more, const Arg& out, bool in_place,
                         const char* op) {
  const Type type = activation_type(logits, op);
  require(logits.dim == 2, op, "logits must have the dims seqs and vocab");
  const int64_t seqs = logits.size(0);
  require(out.dtype == logits.dtype && out.dim == 2 && same_sizes(out, logits, 2), op,
          "out must have the shape and dtype of logits");
  require(more[0].dim == 2 && more[0].size(0) == seqs && more[0].dtype == dtypes().i32, op,
          "tokens must be int32 [seqs, history]");
  const Operand tokens(more[0], 1);
  const PerSequence prompt(more[1], seqs, dtypes().i32, op, "prompt_lens must be int32 [seqs]");
  const PerSequence repetition(more[2], seqs, dtypes().f32, op, "repetition must be float32 [seqs]");
  const PerSequence presence(more[3], seqs, dtypes().f32, op, "presence must be float32 [seqs]");
  const PerSequence frequency(more[4], seqs, dtypes().f32, op, "frequency must be float32 [seqs]");
  if (seqs == 0 || logits.size(1) == 0) return;
  require(prompt.data<int32_t>() && repetition.data<float>() && presence.data<float>() &&
              frequency.data<float>(),
          op, "prompt_lens and the penalties must have one number a sequence");
  require_each(repetition, seqs, [](float v) { return v > 0.0f; }, op,
               "repetition must be positive");
  require(out.contiguous(), op, "what is written must be contiguous");
  const Operand given(logits, 1);
  Penalties a{tokens.data<int32_t>(), prompt.data<int32_t>(), repetition.data<float>(),
              presence.data<float>(), frequency.data<float>(), tokens.rows.stride, prompt.stride(),
              repetition.stride(), presence.stride(), frequency.stride(), more[0].size(1),
              logits.size(1), given.rows.stride, logits.size(1)};
  const Tokens written{seqs, a.out_stride}, read{seqs, a.in_stride};
  for (int64_t s = 0; s < seqs; s++)
    for (int64_t i = 0; i < a.history; i++)
      require(a.tokens[s * a.token_stride + i] < a.vocab, op, "a token is not in the vocabulary");
  const int64_t itemsize = type == F32 ? 4 : 2;
  void* y = out.inout();
  const void* x = in_place ? y : given.data<char>();
  const Span to(y, written, a.vocab, itemsize), from(x, read, a.vocab, itemsize);
  require(same_rows(to, from) || apart(to, from), op, "out overlaps logits without being it");
  const void* operands[5] = {a.tokens, a.prompt_lens, a.repetition, a.presence, a.frequency};
  for (int i = 0; i < 5; i++)
    require(apart(to, span_of(operands[i], more[i])), op, "what is written overlaps an operand");
  if (type == F32) return penalize_rows<float>(a, x, y, seqs);
  if (type == BF16) return penalize_rows<bf16>(a, x, y, seqs);
  penalize_rows<f16>(a, x, y, seqs);
}

inline void penalize_logits(StableIValue* stack, uint64_t, uint64_t) {
  Arg logits(stack[0]), out(stack[6]);
  Arg more[5] = {Arg(stack[1]), Arg(stack[2]), Arg(stack[3]), Arg(stack[4]), Arg(stack[5])};
  for (Arg* a : {&logits, &out}) a->read();
  for (Arg& a : more) a.read();
  run_penalize(logits, more, out, false, "penalize_logits");
}
inline void penalize_logits_inplace(StableIValue* stack, uint64_t, uint64_t) {
  Arg logits(stack[0]);
  Arg more[5] = {Arg(stack[1]), Arg(stack[2]), Arg(stack[3]), Arg(stack[4]), Arg(stack[5])};
  logits.read();
  for (Arg& a : more) a.read();
  run_penalize(logits, more, logits, true, "penalize_logits_");
}

}  // namespace trivet_cpu
