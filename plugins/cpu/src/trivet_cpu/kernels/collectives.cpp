// Collective operations of the ranks of one machine, as plain functions that Python calls.
//
// Every operation starts with begin(), and each of its phases with what `call` says: who sees that
// another rank calls something else ends with MISMATCH, in the same phase as everybody else, so
// that the ranks stay in step and the group can be used further.
#include <sys/mman.h>

#include <new>

#include "isa.h"
#include "messages.h"
#include "segment.h"

using namespace trivet_cpu;

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

enum Operation : uint64_t {
  BARRIER = 1, ALL_REDUCE, REDUCE_SCATTER, REDUCE, ALL_GATHER, BROADCAST, GATHER, SCATTER,
  ALL_TO_ALL
};
constexpr int64_t ONCE = 32 << 10, ONCE_OF_TWO = 256 << 10;  // bytes reduced by everybody at once
constexpr int64_t SHARE_FROM = 64 << 10;  // bytes for which a second phase costs less than staging
constexpr int64_t LONG = 64 << 10;  // bytes for which other threads may run meanwhile
constexpr uint64_t TABLE = 2 * MAX_RANKS * 8;  // bytes of a slot before the pieces of all_to_all

// Which dtype: how many numbers an element has, and of which kind. In the order of native.py.
struct Dtype {
  int number, parts, size;
};
constexpr Dtype DTYPES[] = {
    {N_F32, 1, 4}, {N_BF16, 1, 2}, {N_F16, 1, 2}, {N_E4M3, 1, 1}, {N_E5M2, 1, 1}, {N_F64, 1, 8},
    {N_I8, 1, 1},  {N_I16, 1, 2},  {N_I32, 1, 4}, {N_I64, 1, 8},  {N_U8, 1, 1},   {N_U16, 1, 2},
    {N_U32, 1, 4}, {N_U64, 1, 8},  {N_F32, 2, 4}, {N_F64, 2, 8},  {N_F16, 2, 2},
};
constexpr int COUNT = sizeof DTYPES / sizeof DTYPES[0];

uint64_t named(Operation op, uint64_t count, int dtype = 0, int reduction = 0, int root = 0) {
  return count << 24 | (uint64_t)root << 16 | (uint64_t)reduction << 12 | (uint64_t)dtype << 6 | op;
}
int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

// What everybody posted in this phase is the same call.
int compare(Ranks& c) {
  bool same = true;
  for (int r = 0; r < c.size; r++) same &= c.post(r, c.phase).call == c.post(0, c.phase).call;
  if (same) return DONE;
  for (int r = 0; r < c.size; r++) c.calls[r] = c.post(r, c.phase).call;
  return MISMATCH;
}
int open_phase(Ranks& c, uint64_t call, uint64_t in = 0, uint64_t out = 0, uint64_t extent = 0) {
  const int e = c.meet(call, in, out, extent);
  return e ? e : compare(c);
}

// Where `bytes` from p lie in this rank's symmetric memory, as the other ranks can find them.
uint64_t place_of(Ranks& c, const void* p, int64_t bytes) {
  for (int i = 0; i < c.symmetrics; i++) {
    const Symmetric& s = c.symmetric[i];
    const char* mine = s.base + (uint64_t)c.rank * s.each;
    if (s.base && (const char*)p >= mine && (const char*)p + bytes <= mine + s.each)
      return (uint64_t)(i + 1) << 48 | (uint64_t)((const char*)p - mine);
  }
  return 0;
}
char* at_place(Ranks& c, uint64_t place, int rank) {
  const Symmetric& s = c.symmetric[(place >> 48) - 1];
  return s.base + (uint64_t)rank * s.each + (place & 0xffffffffffffull);
}
// How many ranks gave a place instead of staging.
int given(Ranks& c) {
  int count = 0;
  for (int r = 0; r < c.size; r++) count += c.post(r, c.phase).input != 0;
  return count;
}

struct Reducer {
  void (*run)(void*, const void* const*, int, int64_t) = nullptr;
  int64_t element = 0, number = 0;  // bytes

  Reducer(int dtype, int reduction) {
    if (dtype < 0 || dtype >= COUNT || reduction < 0 || reduction >= REDUCTIONS) return;
    const Dtype& d = DTYPES[dtype];
    if (d.parts > 1 && reduction != R_SUM) return;
    run = current().table->reduce[reduction][d.number];
    number = d.size;
    element = d.size * d.parts;
  }
  void operator()(void* out, const void* const* in, int ranks, int64_t bytes) const {
    run(out, in, ranks, bytes / number);
  }
};

// --- reductions ------------------------------------------------------------------------------

// Everybody stages all of it and reduces all of it.
int all_reduce_once(Ranks& c, char* out, const char* in, int64_t bytes, const Reducer& reduce,
                    uint64_t call) {
  memcpy(c.slot(c.rank, c.phase + 1), in, (size_t)bytes);
  if (int e = open_phase(c, call)) return e;
  const void* from[MAX_RANKS];
  for (int r = 0; r < c.size; r++) from[r] = c.slot(r, c.phase);
  reduce(out, from, c.size, bytes);
  return DONE;
}

// A chunk in as many parts as ranks; each rank reduces its own.
struct Parts {
  int64_t bytes, each;
  Parts(int64_t total, int64_t at, int64_t chunk, int size) {
    bytes = total > at ? least(chunk, total - at) : 0;
    each = ((bytes + size - 1) / size + 63) & ~63ll;
  }
  int64_t first(int r) const { return least(bytes, each * r); }
  int64_t count(int r) const { return first(r + 1) - first(r); }
};

// Reduces a part into `out` and copies it to `copies` places, while it is in the nearest cache.
void reduce_and_copy(const Reducer& reduce, char* out, const char* const* in, int ranks,
                     int64_t bytes, char* const* copies, int count) {
  constexpr int64_t BLOCK = 16384;
  const void* from[MAX_RANKS];
  for (int64_t at = 0; at < bytes; at += BLOCK) {
    const int64_t n = least(BLOCK, bytes - at);
    for (int r = 0; r < ranks; r++) from[r] = in[r] + at;
    reduce(out + at, from, ranks, n);
    for (int k = 0; k < count; k++) memcpy(copies[k] + at, out + at, (size_t)n);
  }
}

// Chunk after chunk: each rank stages for every other one the part that that one reduces, and with
// it its own result of the chunk before. A slot has a place for each rank's part.
struct AllReduce {
  Ranks& c;
  const Reducer& reduce;
  char* out;
  const char* in;
  int64_t bytes, chunk, place;

  AllReduce(Ranks& ranks, const Reducer& reducer, char* to, const char* from, int64_t n)
      : c(ranks), reduce(reducer), out(to), in(from), bytes(n) {
    place = (int64_t)c.shape.slot / c.size & ~63ll;
    chunk = place * c.size;
  }
  Parts parts(int64_t k) const { return Parts(bytes, k * chunk, chunk, c.size); }

  void stage(int64_t k) const {
    const Parts p = parts(k);
    for (int r = 0; r < c.size; r++)
      if (r != c.rank)
        memcpy(c.slot(c.rank, c.phase + 1) + r * place, in + k * chunk + p.first(r),
               (size_t)p.count(r));
  }
  void reduce_own(int64_t k) const {
    const Parts p = parts(k);
    const int me = c.rank;
    const char* own = in + k * chunk + p.first(me);
    const char* from[MAX_RANKS];
    for (int r = 0; r < c.size; r++) from[r] = r == me ? own : c.slot(r, c.phase) + me * place;
    char* result = c.slot(me, c.phase + 1) + me * place;
    reduce_and_copy(reduce, out + k * chunk + p.first(me), from, c.size, p.count(me), &result, 1);
  }
  void collect(int64_t k) const {
    const Parts p = parts(k);
    for (int r = 0; r < c.size; r++)
      if (r != c.rank)
        memcpy(out + k * chunk + p.first(r), c.slot(r, c.phase) + r * place, (size_t)p.count(r));
  }

  int staged(uint64_t call) const {
    const int64_t rounds = (bytes + chunk - 1) / chunk;
    for (int64_t k = 0;; k++) {
      if (k < rounds) reduce_own(k);
      if (k) collect(k - 1);
      if (k == rounds) return DONE;
      if (k + 1 < rounds) stage(k + 1);
      if (int e = c.meet(call)) return e;
    }
  }
  // All is in memory that every rank sees: what a rank reduces goes into everybody's output.
  int in_place(uint64_t call) const {
    const Parts p(bytes, 0, bytes, c.size);
    const int64_t first = p.first(c.rank);
    const char* from[MAX_RANKS];
    char* to[MAX_RANKS];
    int others = 0;
    for (int r = 0; r < c.size; r++) {
      const Post& post = c.post(r, c.phase);
      from[r] = at_place(c, post.input, r) + first;
      if (r != c.rank) to[others++] = at_place(c, post.output, r) + first;
    }
    reduce_and_copy(reduce, out + first, from, c.size, p.count(c.rank), to, others);
    return c.meet(call);
  }
  int run(uint64_t call) const {
    const uint64_t from = place_of(c, in, bytes), to = place_of(c, out, bytes);
    const bool shared = from && to;
    if (!shared) stage(0);
    if (int e = open_phase(c, call, shared ? from : 0, shared ? to : 0)) return e;
    const int have = given(c);
    if (have == c.size) return in_place(call);
    if (have) {  // not all staged the first chunk
      stage(0);
      if (int e = c.meet(call)) return e;
    }
    return staged(call);
  }
};

// `out` is what this rank keeps of the inputs, `bytes` of `size` times as many.
int reduce_scatter(Ranks& c, char* out, const char* in, int64_t bytes, const Reducer& reduce,
                   uint64_t call) {
  const int64_t place = (int64_t)c.shape.slot / c.size & ~63ll;
  const auto stage = [&](int64_t at, int64_t n) {
    for (int r = 0; r < c.size; r++)
      if (r != c.rank)
        memcpy(c.slot(c.rank, c.phase + 1) + r * place, in + r * bytes + at, (size_t)n);
  };
  const void* from[MAX_RANKS];
  const uint64_t where = bytes < SHARE_FROM ? 0 : place_of(c, in, bytes * c.size);
  if (!where) stage(0, least(place, bytes));
  if (int e = open_phase(c, call, where)) return e;
  const int have = given(c);
  if (have == c.size) {
    for (int r = 0; r < c.size; r++)
      from[r] = at_place(c, c.post(r, c.phase).input, r) + c.rank * bytes;
    reduce(out, from, c.size, bytes);
    return c.meet(call);
  }
  if (have) {
    stage(0, least(place, bytes));
    if (int e = c.meet(call)) return e;
  }
  for (int64_t at = 0;;) {
    const int64_t n = least(place, bytes - at);
    for (int r = 0; r < c.size; r++)
      from[r] = r == c.rank ? in + r * bytes + at : c.slot(r, c.phase) + c.rank * place;
    reduce(out + at, from, c.size, n);
    if ((at += n) >= bytes) return DONE;
    stage(at, least(place, bytes - at));
    if (int e = c.meet(call)) return e;
  }
}

int reduce_to(Ranks& c, char* out, const char* in, int64_t bytes, const Reducer& reduce, int root,
              uint64_t call) {
  const int64_t place = (int64_t)c.shape.slot & ~63ll;
  const void* from[MAX_RANKS];
  for (int64_t at = 0;;) {
    const int64_t n = least(place, bytes - at);
    if (c.rank != root) memcpy(c.slot(c.rank, c.phase + 1), in + at, (size_t)n);
    if (int e = at ? c.meet(call) : open_phase(c, call)) return e;
    if (c.rank == root) {
      for (int r = 0; r < c.size; r++) from[r] = r == root ? in + at : c.slot(r, c.phase);
      reduce(out + at, from, c.size, n);
    }
    if ((at += n) >= bytes) return DONE;
  }
}

// --- movement --------------------------------------------------------------------------------

// For all ranks, or for `root` alone.
int gather(Ranks& c, char* out, const char* in, int64_t bytes, int root, uint64_t call) {
  const bool takes = root < 0 || root == c.rank, gives = root != c.rank;
  const uint64_t where = bytes < SHARE_FROM ? 0 : place_of(c, in, bytes);
  const auto stage = [&](int64_t at) {
    if (gives)
      memcpy(c.slot(c.rank, c.phase + 1), in + at,
             (size_t)least((int64_t)c.shape.slot, bytes - at));
  };
  if (!where) stage(0);
  if (int e = open_phase(c, call, where)) return e;
  if (takes && out + c.rank * bytes != in) memcpy(out + c.rank * bytes, in, (size_t)bytes);
  const int have = given(c);
  if (have == c.size) {
    for (int r = 0; takes && r < c.size; r++)
      if (r != c.rank)
        memcpy(out + r * bytes, at_place(c, c.post(r, c.phase).input, r), (size_t)bytes);
    return c.meet(call);
  }
  if (have) {
    stage(0);
    if (int e = c.meet(call)) return e;
  }
  for (int64_t at = 0;;) {
    const int64_t n = least((int64_t)c.shape.slot, bytes - at);
    for (int r = 0; takes && r < c.size; r++)
      if (r != c.rank) memcpy(out + r * bytes + at, c.slot(r, c.phase), (size_t)n);
    if ((at += n) >= bytes) return DONE;
    stage(at);
    if (int e = c.meet(call)) return e;
  }
}

int broadcast(Ranks& c, char* x, int64_t bytes, int root, uint64_t call) {
  const bool gives = c.rank == root;
  const uint64_t where = gives && bytes >= SHARE_FROM ? place_of(c, x, bytes) : 0;
  for (int64_t at = 0;;) {
    const int64_t n = least((int64_t)c.shape.slot, bytes - at);
    if (gives && !where) memcpy(c.slot(root, c.phase + 1), x + at, (size_t)n);
    if (int e = at ? c.meet(call) : open_phase(c, call, where)) return e;
    if (const uint64_t place = at ? 0 : c.post(root, c.phase).input) {
      if (!gives) memcpy(x, at_place(c, place, root), (size_t)bytes);
      return c.meet(call);
    }
    if (!gives) memcpy(x + at, c.slot(root, c.phase), (size_t)n);
    if ((at += n) >= bytes) return DONE;
  }
}

int scatter(Ranks& c, char* out, const char* in, int64_t bytes, int root, uint64_t call) {
  const int64_t place = (int64_t)c.shape.slot / c.size & ~63ll;
  for (int64_t at = 0;;) {
    const int64_t n = least(place, bytes - at);
    if (c.rank == root) {
      for (int r = 0; r < c.size; r++)
        if (r != root)
          memcpy(c.slot(root, c.phase + 1) + r * place, in + r * bytes + at, (size_t)n);
      memcpy(out + at, in + root * bytes + at, (size_t)n);
    }
    if (int e = at ? c.meet(call) : open_phase(c, call)) return e;
    if (c.rank != root) memcpy(out + at, c.slot(root, c.phase) + c.rank * place, (size_t)n);
    if ((at += n) >= bytes) return DONE;
  }
}

// Every rank's sizes lie in front of its pieces: all ranks compare all of them.
int agree_on_sizes(Ranks& c) {
  for (int a = 0; a < c.size; a++)
    for (int b = 0; b < c.size; b++) {
      const int64_t goes = ((const int64_t*)c.slot(a, c.phase))[b];
      const int64_t comes = ((const int64_t*)c.slot(b, c.phase))[MAX_RANKS + a];
      if (goes == comes) continue;
      for (int r = 0; r < c.size; r++) c.calls[r] = named(ALL_TO_ALL, 0);
      const uint64_t pair[] = {(uint64_t)a, (uint64_t)b, (uint64_t)goes, (uint64_t)comes};
      memcpy(c.pair, pair, sizeof pair);
      return MISMATCH;
    }
  return DONE;
}
int all_to_all(Ranks& c, char* out, const char* in, const int64_t* out_sizes,
               const int64_t* in_sizes) {
  const uint64_t call = named(ALL_TO_ALL, 0);
  const int64_t place = ((int64_t)c.shape.slot - (int64_t)TABLE) / c.size & ~63ll;
  const int me = c.rank;
  int64_t out_at[MAX_RANKS], in_at[MAX_RANKS], longest = 0;
  for (int64_t r = 0, o = 0, i = 0; r < c.size; o += out_sizes[r], i += in_sizes[r], r++) {
    out_at[r] = o, in_at[r] = i;
    if (r != me) longest = most(longest, in_sizes[r]);
  }
  for (int64_t at = 0;; at += place) {
    char* slot = c.slot(me, c.phase + 1);
    if (!at) {
      memcpy(slot, in_sizes, (size_t)c.size * 8);
      memcpy(slot + MAX_RANKS * 8, out_sizes, (size_t)c.size * 8);
    }
    for (int r = 0; r < c.size; r++)
      if (r != me && in_sizes[r] > at)
        memcpy(slot + TABLE + r * place, in + in_at[r] + at,
               (size_t)least(place, in_sizes[r] - at));
    if (int e = at ? c.meet(call) : open_phase(c, call, 0, 0, (uint64_t)longest)) return e;
    if (!at) {
      if (int e = agree_on_sizes(c)) return e;
      memcpy(out + out_at[me], in + in_at[me], (size_t)in_sizes[me]);
      for (int r = 0; r < c.size; r++)
        longest = most(longest, (int64_t)c.post(r, c.phase).extent);
    }
    for (int r = 0; r < c.size; r++)
      if (r != me && out_sizes[r] > at)
        memcpy(out + out_at[r] + at, c.slot(r, c.phase) + TABLE + me * place,
               (size_t)least(place, out_sizes[r] - at));
    if (at + place >= longest) return DONE;
  }
}

// Makes this rank's pages now, near this rank's processor; false without memory.
bool populate(char* p, uint64_t bytes) {
  constexpr int MADV_POPULATE = 23;  // for writing, from Linux 5.14 on
  if (madvise(p, bytes, MADV_POPULATE) == 0) return true;
  if (errno == EFAULT || errno == ENOMEM) return false;
  for (uint64_t i = 0; i < bytes; i += 4096) *(volatile char*)(p + i) = 0;
  return true;
}

}  // namespace

// --- what Python calls -----------------------------------------------------------------------

// Counts a call, and has the interpreter back when it ends, whichever way it does.
struct Call {
  Ranks& c;
  explicit Call(Ranks* ranks) : c(*ranks) { c.running.fetch_add(1); }
  ~Call() {
    c.take_back();
    c.running.fetch_sub(1);
  }
  int begin(int64_t bytes) {
    if (c.closed.load()) return REFUSED;
    if (bytes > LONG) c.let_go();
    return c.begin();
  }
};
#define BEGIN(bytes) \
  Call running(c);   \
  if (int e = running.begin(bytes)) return e

EXPORT int64_t trivet_ranks_bytes(int size, int64_t slot, int64_t ring) {
  return (int64_t)Shape{(uint64_t)slot, (uint64_t)ring, size}.bytes();
}
// The segment at `base` is zero when the first rank comes. Null without memory.
EXPORT Ranks* trivet_ranks_open(void* base, int rank, int size, int64_t slot, int64_t ring,
                                int64_t spin, int64_t timeout, const Interpreter* python) {
  if (size > MAX_RANKS) return nullptr;
  void* room = calloc(1, sizeof(Ranks));
  if (!room) return nullptr;
  Ranks* c = new (room) Ranks();
  c->base = (char*)base;
  c->shape = {(uint64_t)slot, (uint64_t)ring, size};
  c->rank = rank;
  c->size = size;
  c->spin = c->look = spin;
  c->timeout = timeout;
  if (python) c->python = *python;
  if (!populate(c->slot(rank, 0), (uint64_t)slot) || !populate(c->slot(rank, 1), (uint64_t)slot)) {
    free(c);
    return nullptr;
  }
  Member& me = c->member(rank);
  me.pid = (uint64_t)getpid();
  me.seen.store(now());
  return c;
}
// Looks at the other processes, once all have opened.
EXPORT void trivet_ranks_see(Ranks* c) {
  for (int r = 0; r < c->size; r++) c->started[r] = process(c->member(r).pid).started;
}
// Says to the others that this rank will not come again. Nothing touches the memory afterwards, but
// for calls that are running: whether there is none, so that it can be unmapped.
EXPORT int trivet_ranks_leave(Ranks* c) {
  c->closed.store(true);
  c->member(c->rank).left.store(1, std::memory_order_release);
  c->wake_all();
  return c->running.load() == 0;
}
EXPORT void trivet_ranks_free(Ranks* c) {
  while (c->first) forget(*c, c->first);
  free(c->symmetric);
  free(c);
}
EXPORT void trivet_ranks_abort(Ranks* c) { c->abort(); }

// What is known of the last failure: bits of the ranks it is about, the rank that reported it.
EXPORT void trivet_ranks_failure(Ranks* c, uint64_t* found) {
  const uint64_t said = c->known;
  found[0] = said & 0xff, found[1] = said >> 8 & 0xff, found[2] = said >> 16;
}
// Of the last mismatch: what each rank called; the pair of all_to_all and its two sizes.
EXPORT void trivet_ranks_mismatch(Ranks* c, uint64_t* calls, uint64_t* pair) {
  memcpy(calls, c->calls, (size_t)c->size * 8);
  memcpy(pair, c->pair, sizeof c->pair);
}
// State of a rank's process as /proc shows it, 0 without one; and ns since it was last seen.
EXPORT int trivet_ranks_state(Ranks* c, int rank, int64_t* ago) {
  const Call running(c);
  if (c->closed.load()) return 0;
  *ago = now() - c->member(rank).seen.load(std::memory_order_relaxed);
  const Process p = process(c->member(rank).pid);
  return p.started == c->started[rank] ? p.state : 0;
}

// Registers mapped memory of all ranks, `each` bytes of one after those of the other; every member
// registers the same. Its number, or -1 without memory.
EXPORT int trivet_ranks_share(Ranks* c, void* base, int64_t each) {
  Symmetric* more = (Symmetric*)realloc(c->symmetric, (size_t)(c->symmetrics + 1) * sizeof *more);
  if (!more) return -1;
  c->symmetric = more;
  more[c->symmetrics] = {(char*)base, (uint64_t)each};
  return c->symmetrics++;
}
EXPORT void trivet_ranks_unshare(Ranks* c, int number) { c->symmetric[number].base = nullptr; }

EXPORT int trivet_barrier(Ranks* c) {
  BEGIN(0);
  return open_phase(*c, named(BARRIER, 0));
}
EXPORT int trivet_all_reduce(Ranks* c, void* out, const void* in, int64_t count, int dtype,
                             int reduction) {
  const Reducer reduce(dtype, reduction);
  if (!reduce.run) return REFUSED;
  const int64_t bytes = count * reduce.element;
  BEGIN(bytes);
  const uint64_t call = named(ALL_REDUCE, (uint64_t)count, dtype, reduction);
  if (bytes <= least(c->size <= 2 ? ONCE_OF_TWO : ONCE, (int64_t)c->shape.slot))
    return all_reduce_once(*c, (char*)out, (const char*)in, bytes, reduce, call);
  return AllReduce(*c, reduce, (char*)out, (const char*)in, bytes).run(call);
}
EXPORT int trivet_reduce_scatter(Ranks* c, void* out, const void* in, int64_t count, int dtype,
                                 int reduction) {
  const Reducer reduce(dtype, reduction);
  if (!reduce.run) return REFUSED;
  BEGIN(count * reduce.element);
  return reduce_scatter(*c, (char*)out, (const char*)in, count * reduce.element, reduce,
                        named(REDUCE_SCATTER, (uint64_t)count, dtype, reduction));
}
EXPORT int trivet_reduce(Ranks* c, void* out, const void* in, int64_t count, int dtype,
                         int reduction, int root) {
  const Reducer reduce(dtype, reduction);
  if (!reduce.run) return REFUSED;
  BEGIN(count * reduce.element);
  return reduce_to(*c, (char*)out, (const char*)in, count * reduce.element, reduce, root,
                   named(REDUCE, (uint64_t)count, dtype, reduction, root));
}
EXPORT int trivet_all_gather(Ranks* c, void* out, const void* in, int64_t bytes) {
  BEGIN(bytes);
  return gather(*c, (char*)out, (const char*)in, bytes, -1, named(ALL_GATHER, (uint64_t)bytes));
}
EXPORT int trivet_gather(Ranks* c, void* out, const void* in, int64_t bytes, int root) {
  BEGIN(bytes);
  return gather(*c, (char*)out, (const char*)in, bytes, root,
                named(GATHER, (uint64_t)bytes, 0, 0, root));
}
EXPORT int trivet_broadcast(Ranks* c, void* x, int64_t bytes, int root) {
  BEGIN(bytes);
  return broadcast(*c, (char*)x, bytes, root, named(BROADCAST, (uint64_t)bytes, 0, 0, root));
}
EXPORT int trivet_scatter(Ranks* c, void* out, const void* in, int64_t bytes, int root) {
  BEGIN(bytes);
  return scatter(*c, (char*)out, (const char*)in, bytes, root,
                 named(SCATTER, (uint64_t)bytes, 0, 0, root));
}
// Sizes in bytes, one a rank.
EXPORT int trivet_all_to_all(Ranks* c, void* out, const void* in, const int64_t* out_sizes,
                             const int64_t* in_sizes) {
  int64_t bytes = 0;
  for (int r = 0; r < c->size; r++) bytes += in_sizes[r];
  BEGIN(bytes);
  return all_to_all(*c, (char*)out, (const char*)in, out_sizes, in_sizes);
}

// Pieces of equal size.
EXPORT int trivet_all_to_all_even(Ranks* c, void* out, const void* in, int64_t piece) {
  BEGIN(piece * c->size);
  int64_t sizes[MAX_RANKS];
  for (int r = 0; r < c->size; r++) sizes[r] = piece;
  return all_to_all(*c, (char*)out, (const char*)in, sizes, sizes);
}

// A message that was started, or null without memory; it has to be given to _end.
EXPORT Message* trivet_message_start(Ranks* c, void* data, int64_t bytes, int peer, int sends) {
  if (c->closed.load()) return nullptr;
  Message* m = start(*c, data, (uint64_t)bytes, peer, sends != 0);
  if (m) progress(*c);
  return m;
}
EXPORT int trivet_message_test(Ranks* c, Message* m) {
  if (over(*m)) return m->wrong ? MISMATCH : DONE;
  if (c->closed.load()) return REFUSED;
  if (c->failed()) return c->failure();
  progress(*c);
  return !over(*m) ? PENDING : m->wrong ? MISMATCH : DONE;
}
EXPORT int trivet_message_wait(Ranks* c, Message* m, int64_t timeout) {
  if (over(*m)) return m->wrong ? MISMATCH : DONE;
  BEGIN(0);
  return wait_for(*c, *m, timeout);
}
// Bytes that the other end said it sends.
EXPORT int64_t trivet_message_said(const Message* m) { return (int64_t)m->said; }
EXPORT void trivet_message_end(Ranks* c, Message* m) { forget(*c, m); }
