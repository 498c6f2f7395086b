// The memory that the ranks of one machine share, and how they wait for each other in it.
//
// All work is made of phases. In a phase a rank writes into its own slot, posts, waits until every
// rank has posted, and then reads the slots of the others. Slots and posts alternate between two
// places: who posts phase p has read everything of phase p - 1, so that after phase p everybody may
// write what phase p - 1 used. One wait is enough for a small operation.
//
// A rank that waits looks for a while, then sleeps on the count of all posts; the rank that posts
// last wakes the others. Awake again, and at least every SLICE, it looks at who is missing: whether
// the process lives, whether the group has failed, whether its time is over.
#pragma once
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace trivet_cpu {

constexpr int MAX_RANKS = 48;  // as many bits as a failure has for them
constexpr int64_t SLICE = 20'000'000;  // ns that a sleep takes at most
constexpr int64_t LEAST_LOOK = 10'000;  // ns: less than it costs to be woken
constexpr uint64_t LINE = 64;

// What a call ends with; Python's names for them are in native.py.
enum Outcome : int {
  DONE = 0, PENDING, TIMED_OUT, PEER_LOST, ABORTED, MISMATCH, INTERRUPTED, REFUSED
};

// What a rank says when it posts a phase.
struct alignas(LINE) Post {
  std::atomic<uint32_t> phase;
  int cpu;                 // where it ran
  uint64_t call;           // which operation on what, the same on every rank
  uint64_t input, output;  // places in symmetric memory, 0 where there is none
  uint64_t extent;         // of all_to_all: bytes of the largest piece
};
struct alignas(LINE) Member {
  uint64_t pid;
  std::atomic<int64_t> seen;   // when it last began or waited, on the clock of the machine
  std::atomic<uint32_t> left;  // it closed the group
  std::atomic<int> cpu;        // where it last waited for a message
};
// A word to sleep on, and whether anybody does.
struct alignas(LINE) Bell {
  std::atomic<uint32_t> rings, sleepers;
};
struct Head {
  Bell posts;                            // rings once for each post of each rank
  alignas(LINE) std::atomic<uint64_t> failure;  // outcome | rank << 8 | missing ranks << 16
};
// A ring of bytes from one rank to another.
struct Channel {
  alignas(LINE) std::atomic<uint64_t> written;
  alignas(LINE) std::atomic<uint64_t> read;
};

inline int64_t now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000LL + t.tv_nsec;
}
inline void pause_a_little() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // longer than yield, which most processors skip
#endif
}
// Nothing is private: processes share the words.
inline long futex(std::atomic<uint32_t>& word, int what, uint32_t value, const timespec* limit) {
  return syscall(SYS_futex, (uint32_t*)&word, what, value, limit, nullptr, 0);
}

// A ring before the sleeper counts itself is seen by it, one after that sees the sleeper: both
// sides do two operations of one total order.
inline void wake(Bell& bell) {
  if (bell.sleepers.load(std::memory_order_seq_cst))
    futex(bell.rings, FUTEX_WAKE, INT_MAX, nullptr);
}
inline void ring(Bell& bell) {
  bell.rings.fetch_add(1, std::memory_order_seq_cst);
  wake(bell);
}

// A process as /proc knows it: its state, and when it began; 0 where there is none.
struct Process {
  char state = 0;
  uint64_t started = 0;
};
inline Process process(uint64_t pid) {
  char path[32] = "/proc/", text[1024];
  char digits[24];
  int n = 0;
  for (uint64_t rest = pid; rest || !n; rest /= 10) digits[n++] = (char)('0' + rest % 10);
  char* end = path + 6;
  while (n) *end++ = digits[--n];
  memcpy(end, "/stat", 6);
  Process found;
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return found;
  const ssize_t size = read(file, text, sizeof text - 1);
  close(file);
  if (size <= 0) return found;
  text[size] = 0;
  const char* p = strrchr(text, ')');  // the name before it may hold anything
  if (!p || p[1] != ' ') return found;
  found.state = p[2];
  p += 2;  // field 3, the state; field 22 is when it began
  for (int field = 3; field < 22 && p; field++)
    if ((p = strchr(p, ' '))) p++;
  if (p) found.started = strtoull(p, nullptr, 10);
  return found;
}

struct Shape {
  uint64_t slot, ring;  // bytes of a slot, of a channel's ring
  int size;
  uint64_t members() const { return 256; }
  uint64_t bells() const { return members() + (uint64_t)size * sizeof(Member); }
  uint64_t posts() const { return bells() + (uint64_t)size * sizeof(Bell); }
  uint64_t channels() const { return posts() + 2 * (uint64_t)size * sizeof(Post); }
  uint64_t rings() const { return page(channels() + pairs() * sizeof(Channel)); }
  uint64_t slots() const { return page(rings() + pairs() * ring); }
  uint64_t bytes() const { return slots() + 2 * (uint64_t)size * slot; }
  uint64_t pairs() const { return (uint64_t)size * size; }
  static uint64_t page(uint64_t n) { return (n + 4095) & ~4095ull; }
};
static_assert(sizeof(Head) <= 256 && sizeof(Post) == LINE && sizeof(Member) == LINE, "layout");

struct Symmetric {  // memory of all ranks, mapped here; null once it was given back
  char* base;
  uint64_t each;
};

struct Message;

// Of Python, null elsewhere: gives the interpreter to other threads, takes it back, runs handlers
// of signals; true when one of those raised.
struct Interpreter {
  void* (*save)();
  void (*restore)(void*);
  int (*check_signals)();
};

struct Ranks {
  char* base;
  Shape shape;
  int rank, size;
  uint32_t phase = 0;
  int64_t spin;      // ns to look before sleeping, at most
  int64_t look = 0;  // and now
  int64_t timeout;
  int64_t began = 0;
  std::atomic<int> running{0};     // calls; the memory may be unmapped once there is none
  std::atomic<bool> closed{false};
  Interpreter python;
  void* saved = nullptr;  // while the interpreter is given away
  Message *first = nullptr, *last = nullptr;  // messages that have not moved yet
  uint64_t calls[MAX_RANKS];                  // after a mismatch: what each rank called
  uint64_t started[MAX_RANKS] = {};           // when, as /proc counts: pids are used again
  uint64_t known = 0;                         // after a failure: a copy of Head::failure
  uint64_t pair[4];                           // of all_to_all: two ranks and their sizes
  Symmetric* symmetric = nullptr;
  int symmetrics = 0;

  Head& head() { return *(Head*)base; }
  Member& member(int r) { return ((Member*)(base + shape.members()))[r]; }
  Bell& bell(int r) { return ((Bell*)(base + shape.bells()))[r]; }
  Post& post(int r, uint32_t p) { return ((Post*)(base + shape.posts()))[2 * r + (p & 1)]; }
  char* slot(int r, uint32_t p) {
    return base + shape.slots() + ((p & 1) * (uint64_t)size + (uint64_t)r) * shape.slot;
  }

  bool failed() { return head().failure.load(std::memory_order_relaxed) != 0; }
  // The first failure of any rank is that of the group; everybody who sleeps learns of it.
  int fail(Outcome why, uint64_t who) {
    uint64_t none = 0, said = (uint64_t)why | (uint64_t)rank << 8 | who << 16;
    head().failure.compare_exchange_strong(none, said, std::memory_order_seq_cst);
    failure();
    wake_all();
    return why;
  }
  void wake_all() {
    futex(head().posts.rings, FUTEX_WAKE, INT_MAX, nullptr);
    for (int r = 0; r < size; r++) futex(bell(r).rings, FUTEX_WAKE, INT_MAX, nullptr);
  }
  int failure() {
    known = head().failure.load(std::memory_order_acquire);
    return (int)(known & 0xff);
  }
  void abort() { fail(ABORTED, 0); }

  bool posted(int r, uint32_t p) {
    return post(r, p).phase.load(std::memory_order_acquire) == p;
  }
  uint64_t absent(uint32_t p) {
    uint64_t bits = 0;
    for (int r = 0; r < size; r++)
      if (!posted(r, p)) bits |= 1ull << r;
    return bits;
  }
  // Those of `who` whose processes ended, or that closed the group.
  uint64_t gone(uint64_t who) {
    uint64_t bits = 0;
    for (int r = 0; r < size; r++) {
      if (r == rank || !(who >> r & 1)) continue;
      const Process p = process(member(r).pid);
      const bool lives = p.state && p.state != 'Z' && p.state != 'X' &&
                         (!started[r] || p.started == started[r]);
      if (!lives || member(r).left.load(std::memory_order_acquire)) bits |= 1ull << r;
    }
    return bits;
  }

  // Long work and sleep happen without the interpreter; short calls keep it, which is cheaper.
  void let_go() {
    if (!saved && python.save) saved = python.save();
  }
  void take_back() {
    if (saved) python.restore(saved);
    saved = nullptr;
  }
  // After a signal: true when its handler raised, and the call has to end.
  bool interrupted() {
    if (!python.check_signals) return false;
    take_back();
    const bool raised = python.check_signals() != 0;
    if (!raised) let_go();
    return raised;
  }

  int begin() {
    if (failed()) return failure();
    began = now();
    member(rank).seen.store(began, std::memory_order_relaxed);
    return DONE;
  }

  // Sleeps until the bell rings again, at most a slice; false where a signal ended it.
  bool sleep(Bell& at, uint32_t heard, int64_t longest) {
    const timespec limit{0, (long)(longest < SLICE ? longest : SLICE)};
    return futex(at.rings, FUTEX_WAIT, heard, &limit) == 0 || errno != EINTR;
  }

  // Posts a phase and waits for all others.
  int meet(uint64_t call, uint64_t input = 0, uint64_t output = 0, uint64_t extent = 0) {
    const uint32_t p = ++phase;
    Post& mine = post(rank, p);
    mine.cpu = spin ? sched_getcpu() : 0;
    mine.call = call;
    mine.input = input;
    mine.output = output;
    mine.extent = extent;
    mine.phase.store(p, std::memory_order_release);
    Bell& posts = head().posts;
    if (posts.rings.fetch_add(1, std::memory_order_seq_cst) + 1 == p * (uint32_t)size) wake(posts);
    for (int r = 0; r < size; r++)
      if (!posted(r, p)) return wait(p);
    return DONE;
  }
  // A missing rank that ran last on this very core waits for it: looking would keep it away.
  bool shares_core(uint32_t p) {
    const int here = post(rank, p).cpu;
    for (int r = 0; r < size; r++)
      if (r != rank && !posted(r, p) && post(r, p - 1).cpu == here) return true;
    return false;
  }
  // Where others use the core that the missing rank needs, each look in vain halves the next, and
  // each that was not doubles it.
  void learn(bool worth) {
    look = worth ? 2 * look : look / 2;
    look = look < LEAST_LOOK ? LEAST_LOOK : look > spin ? spin : look;
  }
  int wait(uint32_t p) {
    if (!spin || shares_core(p)) return wait_long(p);
    const int64_t until = now() + look;
    int r = 0;
    while (now() < until) {
      for (int i = 0; i < 16; i++) {
        while (r < size && posted(r, p)) r++;
        if (r == size) {
          learn(true);
          return DONE;
        }
        pause_a_little();
      }
    }
    learn(false);
    return wait_long(p);
  }
  int wait_long(uint32_t p);
};

int progress(Ranks& c);

inline int Ranks::wait_long(uint32_t p) {
  Bell& posts = head().posts;
  int64_t looked = now();
  while (true) {
    bool signalled = false;
    let_go();
    posts.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t heard = posts.rings.load(std::memory_order_seq_cst);
    if ((int32_t)(heard - p * (uint32_t)size) < 0 && !failed())
      signalled = !sleep(posts, heard, first ? 200'000 : SLICE);
    posts.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    const uint64_t who = absent(p);
    if (!who) return DONE;
    if (failed()) return failure();
    if (first) progress(*this);
    if (signalled && interrupted()) return fail(INTERRUPTED, 0);
    const int64_t t = now();
    member(rank).seen.store(t, std::memory_order_relaxed);
    if (t - began > timeout) return fail(TIMED_OUT, who);
    if (t - looked < SLICE / 2) continue;
    if (interrupted()) return fail(INTERRUPTED, 0);  // the system may have told another thread
    looked = t;
    if (const uint64_t dead = gone(who))
      if (const uint64_t still = absent(p) & dead) return fail(PEER_LOST, still);
  }
}

}  // namespace trivet_cpu
