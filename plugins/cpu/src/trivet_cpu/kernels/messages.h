// Messages between two ranks: a ring of bytes for each ordered pair, in the memory that they share.
//
// A message moves as far as the ring has room, or bytes, whenever its rank looks at its messages:
// while it starts one, waits for one, or waits for anything else.
#pragma once
#include "segment.h"

namespace trivet_cpu {

struct Message {
  Message* next;
  char* data;       // of a receiver that expected something else: null, what comes is dropped
  uint64_t left;    // bytes that have not moved
  uint64_t size;    // goes first
  uint64_t said;    // the size that came
  bool named;       // the size has moved
  bool sends;
  bool wrong;       // the other end says another size
  int peer;
};

struct Ring {
  Channel* at;
  char* bytes;
  uint64_t size;

  uint64_t used() const {
    return at->written.load(std::memory_order_acquire) - at->read.load(std::memory_order_acquire);
  }
  void put(const char* from, uint64_t n) {
    const uint64_t w = at->written.load(std::memory_order_relaxed), i = w % size;
    const uint64_t until_end = n < size - i ? n : size - i;
    memcpy(bytes + i, from, until_end);
    memcpy(bytes, from + until_end, n - until_end);
    at->written.store(w + n, std::memory_order_release);
  }
  void get(char* to, uint64_t n) {
    const uint64_t r = at->read.load(std::memory_order_relaxed), i = r % size;
    const uint64_t until_end = n < size - i ? n : size - i;
    if (to) {
      memcpy(to, bytes + i, until_end);
      memcpy(to + until_end, bytes, n - until_end);
    }
    at->read.store(r + n, std::memory_order_release);
  }
};

inline Ring ring_of(Ranks& c, int from, int to) {
  const uint64_t i = (uint64_t)from * (uint64_t)c.size + (uint64_t)to;
  return {(Channel*)(c.base + c.shape.channels()) + i, c.base + c.shape.rings() + i * c.shape.ring,
          c.shape.ring};
}

// Moves what can be moved of one message; whether anything was.
inline bool advance(Ranks& c, Message& m) {
  Ring r = m.sends ? ring_of(c, c.rank, m.peer) : ring_of(c, m.peer, c.rank);
  const auto open = [&] { return m.sends ? r.size - r.used() : r.used(); };
  bool moved = false;
  if (!m.named) {
    if (open() < sizeof m.size) return false;
    if (m.sends) {
      r.put((const char*)&m.size, sizeof m.size);
    } else {
      r.get((char*)&m.said, sizeof m.size);
      m.left = m.said;
      m.wrong = m.said != m.size;
      if (m.wrong) m.data = nullptr;
    }
    m.named = moved = true;
  }
  // At most a quarter of the ring at once: the other end works on it while this end goes on.
  while (m.left) {
    uint64_t n = open();
    if (n > m.left) n = m.left;
    if (n > r.size / 4) n = r.size / 4;
    if (!n) break;
    if (m.sends) {
      r.put(m.data, n);
    } else {
      r.get(m.data, n);
    }
    if (m.data) m.data += n;
    m.left -= n;
    moved = true;
    if (m.left) ring(c.bell(m.peer));
  }
  if (moved) ring(c.bell(m.peer));
  return moved;
}
inline bool over(const Message& m) { return m.named && !m.left; }

// Looks at every message in order; one that has not moved holds up those behind it of its pair.
inline int progress(Ranks& c) {
  uint64_t held[2] = {0, 0};
  int moved = 0;
  Message* before = nullptr;
  for (Message* m = c.first; m;) {
    Message* next = m->next;
    if (!(held[m->sends] >> m->peer & 1)) moved += advance(c, *m);
    if (over(*m)) {
      (before ? before->next : c.first) = next;
      if (c.last == m) c.last = before;
      m->next = m;  // not in the list
    } else {
      held[m->sends] |= 1ull << m->peer;
      before = m;
    }
    m = next;
  }
  return moved;
}

// Starts a message; null without memory.
inline Message* start(Ranks& c, void* data, uint64_t size, int peer, bool sends) {
  Message* m = (Message*)malloc(sizeof(Message));
  if (!m) return nullptr;
  *m = {nullptr, (char*)data, size, size, size, false, sends, false, peer};
  (c.last ? c.last->next : c.first) = m;
  c.last = m;
  return m;
}

// Takes a message out of the list, if it is there.
inline void forget(Ranks& c, Message* m) {
  Message* before = nullptr;
  for (Message* at = c.first; at; before = at, at = at->next) {
    if (at != m) continue;
    (before ? before->next : c.first) = m->next;
    if (c.last == m) c.last = before;
    break;
  }
  free(m);
}

inline int wait_for(Ranks& c, const Message& m, int64_t timeout) {
  const int here = c.spin ? sched_getcpu() : 0;
  c.member(c.rank).cpu.store(here, std::memory_order_relaxed);
  const bool looks = c.spin && c.member(m.peer).cpu.load(std::memory_order_relaxed) != here;
  int64_t looked = now(), until = looks ? looked + c.look : 0;
  bool alone = looks;  // nothing has moved since it began to look
  while (!over(m)) {
    Bell& bell = c.bell(c.rank);
    const uint32_t heard = bell.rings.load(std::memory_order_seq_cst);
    if (progress(c)) {
      if (alone) c.learn(true);
      alone = false;
      until = looks ? now() + c.look : 0;
      continue;
    }
    if (over(m)) break;
    if (c.failed()) return c.failure();
    if (now() < until) {
      for (int i = 0; i < 16; i++) pause_a_little();
      continue;
    }
    if (alone) c.learn(false);
    alone = false;
    c.let_go();
    bell.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const bool signalled = !c.sleep(bell, heard, SLICE);
    bell.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    const int64_t t = now();
    c.member(c.rank).seen.store(t, std::memory_order_relaxed);
    if (signalled && c.interrupted()) return c.fail(INTERRUPTED, 0);
    const uint64_t who = 1ull << m.peer;
    if (t - looked >= SLICE / 2) {
      looked = t;
      if (c.interrupted()) return c.fail(INTERRUPTED, 0);  // the system may have told another thread
      // What it wrote before it ended is still there.
      if (c.gone(who) && !progress(c) && !over(m)) return c.fail(PEER_LOST, who);
    }
    if (t - c.began > timeout && !over(m)) return c.fail(TIMED_OUT, who);
  }
  return m.wrong ? MISMATCH : DONE;
}

}  // namespace trivet_cpu
