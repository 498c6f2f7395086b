// Ranks as processes of one program, without Python and torch: here, and emulated for another
// processor. Every result is compared with sums made in order of rank by plain code.
//
//   ranks_program RANKS ROUNDS
#include <sys/wait.h>

#include <cstdio>

#include "reduce.h"
#include "collectives.cpp"

namespace trivet_cpu {

static Table only_reductions() {
  Table table{};
  const decltype(table.reduce) all = REDUCTIONS_OVER_RANKS;
  memcpy(&table.reduce, &all, sizeof all);
  return table;
}
extern "C" const Table TRIVET_CPU_LEVEL = only_reductions();

}  // namespace trivet_cpu

namespace {

constexpr int64_t SLOT = 1 << 16, RING = 1 << 14, MOST = 200'000;

[[noreturn]] void fail(const char* what, int64_t where) {
  fprintf(stderr, "%s at %lld\n", what, (long long)where);
  _exit(1);
}
void need(int code, const char* what) {
  if (code != DONE) fail(what, code);
}
// Numbers whose sums round: multiples of thirds, another for each rank and place.
float value(int rank, int64_t i, int round) {
  return (float)((i * 7 + rank * 31 + round) % 1009 - 500) / 3.0f;
}
uint16_t narrow(float x) { return (uint16_t)(round_bits(x) >> 16); }

template <class T, class Make, class Expect>
void reduced(Ranks* c, int64_t n, int dtype, int round, Make make, Expect expect) {
  T* x = (T*)malloc((size_t)(n * c->size) * sizeof(T));
  T* out = (T*)malloc((size_t)(n * c->size) * sizeof(T));
  for (int64_t i = 0; i < n * c->size; i++) x[i] = make(c->rank, i);
  need(trivet_reduce_scatter(c, out, x, n, dtype, R_SUM), "reduce_scatter");
  for (int64_t i = 0; i < n; i++)
    if (out[i] != expect(c->rank * n + i)) fail("reduce_scatter is wrong", i);
  need(trivet_all_reduce(c, round & 1 ? out : x, x, n, dtype, R_SUM), "all_reduce");
  for (int64_t i = 0; i < n; i++)
    if ((round & 1 ? out : x)[i] != expect(i)) fail("all_reduce is wrong", i);
  free(x);
  free(out);
}

void moved(Ranks* c, int64_t n, int round) {
  const int next = (c->rank + 1) % c->size, before = (c->rank + c->size - 1) % c->size;
  char* x = (char*)malloc((size_t)n);
  char* all = (char*)malloc((size_t)(n * c->size));
  memset(x, c->rank + round, (size_t)n);
  need(trivet_all_gather(c, all, x, n), "all_gather");
  for (int64_t i = 0; i < n * c->size; i++)
    if (all[i] != (char)(i / n + round)) fail("all_gather is wrong", i);
  if (c->size > 1) {
    Message* out = trivet_message_start(c, x, n, next, 1);
    Message* in = trivet_message_start(c, all, n, before, 0);
    need(trivet_message_wait(c, out, c->timeout), "send");
    need(trivet_message_wait(c, in, c->timeout), "receive");
    trivet_message_end(c, out);
    trivet_message_end(c, in);
    for (int64_t i = 0; i < n; i++)
      if (all[i] != (char)(before + round)) fail("a message is wrong", i);
  }
  free(x);
  free(all);
}

void rank_main(Ranks* c, int rounds) {
  need(trivet_barrier(c), "barrier");
  trivet_ranks_see(c);
  for (int round = 0; round < rounds; round++) {
    const int64_t n = 1 + (int64_t)round * round * 977 % MOST;
    const auto whole = [&](int r, int64_t i) { return value(r, i, round); };
    const auto sum = [&](int64_t i) {
      float s = whole(0, i);
      for (int r = 1; r < c->size; r++) s += whole(r, i);
      return s;
    };
    reduced<float>(c, n, 0, round, whole, sum);
    const auto half = [&](int r, int64_t i) { return narrow(value(r, i, round)); };
    const auto total = [&](int64_t i) {
      float s = widen(bf16{half(0, i)});
      for (int r = 1; r < c->size; r++) s += widen(bf16{half(r, i)});
      return narrow(s);
    };
    reduced<uint16_t>(c, n, 1, round, half, total);
    moved(c, n, round);
    need(trivet_barrier(c), "barrier");
  }
  const int64_t wrong = c->rank == 0 && c->size > 1;
  if (trivet_broadcast(c, &c->pair, 8 + wrong, 0) != (c->size > 1 ? MISMATCH : DONE))
    fail("a mismatch is not seen", 0);
}

}  // namespace

int main(int, char** arguments) {
  const int size = atoi(arguments[1]), rounds = atoi(arguments[2]);
  const size_t bytes = (size_t)trivet_ranks_bytes(size, SLOT, RING);
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) fail("no memory", 0);
  for (int rank = 0; rank < size; rank++) {
    if (fork()) continue;
    const int64_t spin = size <= 2 ? 50'000 : 0;
    Ranks* c = trivet_ranks_open(base, rank, size, SLOT, RING, spin, 60'000'000'000, nullptr);
    if (!c) fail("no memory", rank);
    rank_main(c, rounds);
    trivet_ranks_leave(c);
    trivet_ranks_free(c);
    _exit(0);
  }
  int bad = 0;
  for (int rank = 0; rank < size; rank++) {
    int status = 0;
    wait(&status);
    bad |= status;
  }
  return bad ? 1 : 0;
}
