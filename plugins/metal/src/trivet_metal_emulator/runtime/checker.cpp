// Shadow memory behind the hooks of -fsanitize=thread and of bounds checks: races, bounds, alignment,
// reads of what was never written. Happens-before is exact for barriers: one epoch for each kind of
// memory that a barrier orders, and one of each for every simdgroup.
#include "checker.h"

#define HOOK extern "C" __attribute__((visibility("hidden")))
#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace trivet_msl;

extern "C" {
void* mmap(void*, unsigned long, int, int, int, long);
int munmap(void*, unsigned long);
void* memcpy(void*, const void*, unsigned long);
void* memmove(void*, const void*, unsigned long);
void* memset(void*, int, unsigned long);
extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern const char _end[] __attribute__((visibility("hidden")));
}

// Layouts that the Python side declares once more.
struct Finding {
  u32 kind, access, size, count, group[3], thread, other_thread, other_group, place, other_place;
  int region;
  u32 unused;
  i64 offset, extent;
};

struct Interval { u64 begin, end; };  // bytes of a region that the arguments cover

struct Region {  // one storage that arguments point into, copied between gaps
  char* begin;
  u64 size;
  Interval* valid;
  u32 valid_count, granule;
  u64 read, written, covered;
  u32 changed, unused;
};

struct Variable { const void* key; const char* name; u64 offset, size; };  // threadgroup memory

struct Stats { u64 barriers, exchanges, divergent, threadgroup_bytes, threadgroup_read, threadgroup_written; };

namespace {
constexpr u64 ARENA = 64 << 10;
constexpr u64 GAP = 1 << 20;  // of addresses, not of memory: what lies around arena and regions
constexpr u32 RED_ZONE = 16, MOST_FINDINGS = 64, MOST_SITES = 4096, MOST_VARIABLES = 256, MOST_REGIONS = 1024;
constexpr u16 SEVERAL = 0xffff, ONE_SIMDGROUP = 0x8000;  // more than one reader; all in simdgroup x

// The last access of one kind to some bytes, and whom it stands for.
struct Stamp {
  u32 group, epoch, simd_epoch, place;
  u16 thread;
  u8 other_groups;  // threads of other groups, too
};
struct Cell { Stamp plain_write, plain_read, atomic_write, atomic_read; };

Finding findings[MOST_FINDINGS];
u32 finding_count;
Site sites[MOST_SITES];
u32 site_count;
Variable variables[MOST_VARIABLES];
u32 variable_count;
char* arena;
u64 arena_used, arena_limit;
Cell* arena_cells;
u32 arena_granule;
Region regions[MOST_REGIONS];
Cell* region_cells[MOST_REGIONS];
u32 region_count;
Region* last_region;
Cell* shadow;
u64 shadow_bytes;
Stats stats;
u32 groups_seen = 1, first_group, this_group;
Triple group_position;
u32 epoch_threadgroup, epoch_device, simd_epoch_threadgroup[32], simd_epoch_device[32];
u64 steps, most_steps;
bool atomics_seen;  // in this dispatch

u32 place_of(const void* pc) { return u32((const char*)pc - __ehdr_start) - 1; }

u32 place_of(const char* file, u32 line) {
  for (u32 i = 0; i < site_count; i++)
    if (sites[i].line == line && sites[i].file == file) return 0x80000000u | i;
  if (site_count == MOST_SITES) return 0x80000000u;
  sites[site_count] = {file, line, 0};
  return 0x80000000u | site_count++;
}

Finding* report(Kind kind, u32 place, u32 access, u32 size, int region, i64 offset, i64 extent) {
  for (u32 i = 0; i < finding_count; i++)
    if (findings[i].kind == kind && findings[i].place == place) {
      findings[i].count++;
      return nullptr;
    }
  if (finding_count == MOST_FINDINGS) return nullptr;
  Finding& f = findings[finding_count++];
  u32 thread = trivet_msl_current ? trivet_msl_current->ids.index : 0xffffffffu;
  f = {kind, access, size, 1, {group_position.x, group_position.y, group_position.z}, thread, 0xffffffffu,
       0xffffffffu, place, 0, region, 0, offset, extent};
  return &f;
}

void report_race(const Stamp& other, u32 place, u32 access, u32 size, int region, i64 offset) {
  Finding* f = report(RACE, place, access, size, region, offset, 0);
  if (!f) return;
  f->other_thread = other.thread;
  f->other_group = other.group - first_group;
  f->other_place = other.place;
  f->extent = other.group != this_group;
}

// A read of a vector that nobody wrote, until it is known that it is no part of writing one element:
// compilers load the vector, put the element in and store all of it.
struct { u32 size, access, place, thread; int region; u64 offset; } pending;

struct Memory { Cell* cells; u32 granule; int region; bool threadgroup; u32 epoch, simd_epoch; };

u32 simdgroup_of(u16 thread) { return thread == SEVERAL ? 0xffffu : thread & ONE_SIMDGROUP ? thread & 0xffu : thread / WIDTH; }

// Whether an earlier access is not ordered before this one.
bool unordered(const Stamp& s, const Memory& m, u32 thread) {
  if (s.group < first_group) return false;                    // left by an earlier dispatch
  if (s.group != this_group) return !m.threadgroup;           // nothing orders two threadgroups
  if (s.other_groups) return true;
  if (s.thread == thread || s.epoch != m.epoch) return false;
  return !(simdgroup_of(s.thread) == thread / WIDTH && s.simd_epoch < m.simd_epoch);
}

// Whom a stamp stands for once this access joins those before it. What a barrier of the simdgroup
// ordered before it needs no mention any more.
u16 joined(const Stamp& s, const Memory& m, u32 thread) {
  if (s.group != this_group || s.epoch != m.epoch || s.thread == thread) return u16(thread);
  u32 simdgroup = simdgroup_of(s.thread);
  if (simdgroup != thread / WIDTH) return SEVERAL;
  return s.simd_epoch < m.simd_epoch ? u16(thread) : u16(ONE_SIMDGROUP | simdgroup);
}

void note(Stamp& s, const Memory& m, u32 thread, u32 place) {
  bool others = !m.threadgroup && s.group >= first_group && (s.group != this_group || s.other_groups);
  s = {this_group, m.epoch, m.simd_epoch, place, joined(s, m, thread), others};
}

// The stamp of an earlier access that this one races with.
Stamp* conflict(Cell& c, const Memory& m, u32 thread, bool write, bool atomic) {
  if (unordered(c.plain_write, m, thread)) return &c.plain_write;
  if (write && unordered(c.plain_read, m, thread)) return &c.plain_read;
  if (atomic || !atomics_seen) return nullptr;
  if (unordered(c.atomic_write, m, thread)) return &c.atomic_write;
  return write && unordered(c.atomic_read, m, thread) ? &c.atomic_read : nullptr;
}

// Splits cells that are coarser than an access, so that neighbours are told apart.
void refine(Cell* cells, u64 count, u32& granule, u32 finer) {
  u32 times = granule / finer;
  for (u64 i = count; i > 0; i--)
    for (u32 k = 0; k < times; k++) cells[(i - 1) * times + k] = cells[i - 1];
  granule = finer;
}

u32 granule_for(u64 offset, u64 size) {
  u64 bits = offset | size;
  return bits & 1 ? 1 : bits & 2 ? 2 : 4;
}

// Whether the bytes were written since a group began.
bool written(const Cell& c, u32 since) { return c.plain_write.group >= since || c.atomic_write.group >= since; }

void visit(const Memory& m, u64 offset, u64 size, u32 access, u32 place) {
  u32 thread = trivet_msl_current->ids.index;
  bool write = access & WRITE, atomic = access & ATOMIC;
  atomics_seen |= atomic;
  u64 first = offset / m.granule, last = (offset + size - 1) / m.granule;
  if (m.threadgroup && (!write || access & UPDATE)) {
    bool missing = false, any = false;
    for (u64 i = first; i <= last; i++) (written(m.cells[i], this_group) ? any : missing) = true;
    if (missing && !any && size >= 8 && !(access & (LOOSE | ATOMIC))) {
      pending = {u32(size), access, place, thread, m.region, offset};
      return;
    }
    if (missing && !(any && (access & LOOSE || size >= 8))) {
      report(UNINITIALISED, place, access, u32(size), m.region, i64(offset), 0);
      return;
    }
  }
  u64 fresh = 0;
  bool told = false;
  for (u64 i = first; i <= last; i++) {
    Cell& c = m.cells[i];
    if (write && !written(c, first_group)) fresh += m.granule;
    Stamp* other = told ? nullptr : conflict(c, m, thread, write, atomic);
    if (other) {
      u32 how = other == &c.plain_read || other == &c.atomic_read ? access | OLD : access;
      report_race(*other, place, how, u32(size), m.region, i64(offset));
      told = true;
      other->thread = u16(thread);  // told once; what it says of being written stays
      other->group = this_group;
      other->other_groups = 0;
    }
    if (write && !atomic) c.plain_write = {this_group, m.epoch, m.simd_epoch, place, u16(thread), 0};
    else note(write ? c.atomic_write : atomic ? c.atomic_read : c.plain_read, m, thread, place);
  }
  if (write && !m.threadgroup) regions[m.region].covered += fresh;
}

void settle(bool element_written) {
  if (!pending.size) return;
  u32 size = pending.size;
  pending.size = 0;
  if (element_written) return;
  Finding* f = report(UNINITIALISED, pending.place, pending.access, size, pending.region, i64(pending.offset), 0);
  if (f) f->thread = pending.thread;
}

bool in_arena(const char* p) { return p >= arena - GAP / 2 && p < arena + ARENA + GAP / 2; }

bool inside(const Region& r, u64 offset, u64 size) {
  for (u32 i = 0; i < r.valid_count; i++)
    if (offset >= r.valid[i].begin && offset + size <= r.valid[i].end) return true;
  return false;
}

Region* nearest(const char* p) {
  Region* found = nullptr;
  for (u32 i = 0; i < region_count; i++)  // regions lie in ascending order with gaps between
    if (p >= regions[i].begin - GAP / 2) found = &regions[i];
  return found;
}

void out_of_bounds(u32 place, u32 access, u64 size, int region, i64 offset, u64 extent) {
  report(OUT_OF_BOUNDS, place, access, u32(size), region, offset, i64(extent));
  stop();
}

void check_threadgroup(const char* p, u64 size, u32 access, u32 place, u32 simdgroup) {
  i64 at = p - arena;
  u64 offset = u64(at);
  for (u32 i = 0; i < variable_count; i++) {
    Variable& v = variables[i];
    if (at >= 0 && offset >= v.offset && offset + size <= v.offset + v.size) {
      u32 finer = granule_for(offset, size);
      if (finer < arena_granule) refine(arena_cells, ARENA / arena_granule, arena_granule, finer);
      if (access & WRITE) stats.threadgroup_written += size;
      if (!(access & WRITE) || access & UPDATE) stats.threadgroup_read += size;
      visit({arena_cells, arena_granule, -2 - int(i), true, epoch_threadgroup, simd_epoch_threadgroup[simdgroup]},
            offset, size, access, place);
      return;
    }
  }
  int closest = -1;  // the variable that ends before the address, else the first
  for (u32 i = 0; i < variable_count; i++)
    if (i64(variables[i].offset) <= at) closest = int(i);
  if (closest < 0) closest = 0;
  out_of_bounds(place, access, size, -2 - closest, at - i64(variables[closest].offset), variables[closest].size);
}

void check(const void* address, u64 size, u32 access, u32 place, bool aligned) {
  Fibre* me = trivet_msl_current;
  const char* p = (const char*)address;
  if (!me || on_stack(p)) return;
  if (++steps > most_steps) {
    report(ENDLESS, place, access, u32(size), -1, 0, i64(most_steps));
    stop();
  }
  u32 simdgroup = me->ids.simdgroup;
  if (pending.size)
    settle(access & WRITE && in_arena(p) && u64(p - arena) == pending.offset && size == pending.size &&
           me->ids.index == pending.thread);
  if (aligned && (u64(p) & (size - 1))) {
    Region* r = in_arena(p) ? nullptr : nearest(p);
    report(MISALIGNED, place, access, u32(size), r ? int(r - regions) : -1, r ? p - r->begin : 0, i64(u64(p) & (size - 1)));
    stop();
  }
  if (in_arena(p)) return check_threadgroup(p, size, access, place, simdgroup);
  Region* r = last_region;
  if (!r || p < r->begin || p + size > r->begin + r->size) {
    u32 low = 0, high = region_count;
    while (low < high) {
      u32 middle = (low + high) / 2;
      if (regions[middle].begin <= p) low = middle + 1;
      else high = middle;
    }
    r = low ? &regions[low - 1] : nullptr;
  }
  if (!r || p < r->begin || p >= r->begin + r->size + GAP / 2) {
    if (p >= __ehdr_start && p < _end) return;  // tables of the program: bounds checks see those
    Region* near = nearest(p);
    if (near && p < near->begin + near->size + GAP / 2) {
      out_of_bounds(place, access, size, int(near - regions), p - near->begin, near->size);
      return;
    }
    report(WILD, place, access, u32(size), near ? int(near - regions) : -1, near ? p - near->begin : i64(p),
           near ? i64(near->size) : 0);
    stop();
    return;
  }
  u64 offset = u64(p - r->begin);
  int index = int(r - regions);
  if (!inside(*r, offset, size)) return out_of_bounds(place, access, size, index, i64(offset), r->size);
  last_region = r;
  u32 finer = granule_for(offset, size);
  if (finer < r->granule) refine(region_cells[index], (r->size + r->granule - 1) / r->granule, r->granule, finer);
  if (access & WRITE) r->written += size, r->changed = 1;
  if (!(access & WRITE) || access & UPDATE) r->read += size;
  visit({region_cells[index], r->granule, index, false, epoch_device, simd_epoch_device[simdgroup]}, offset, size, access,
        place);
}
}  // namespace

// --- what the scheduler tells ------------------------------------------------------------------

void trivet_msl::begin_dispatch(u64 groups) {
  if (groups_seen > 0xffffffffu - groups) {  // stamps would repeat: forget them all
    groups_seen = 1;
    if (shadow) memset(shadow, 0, shadow_bytes);
    if (arena_cells) memset(arena_cells, 0, ARENA * sizeof(Cell));
  }
  first_group = groups_seen;
  groups_seen += u32(groups);
  variable_count = 0;
  arena_used = 0;
  last_region = nullptr;
  steps = 0;
  stats = {};
  finding_count = site_count = 0;
  atomics_seen = false;
  pending.size = 0;
  epoch_threadgroup = epoch_device = 1;
  for (u32 i = 0; i < 32; i++) simd_epoch_threadgroup[i] = simd_epoch_device[i] = 0;
}

void trivet_msl::begin_group(u32 sequence, Triple group) {
  this_group = first_group + sequence;
  group_position = group;
  epoch_threadgroup++;
  epoch_device++;
  if (arena_used) memset(arena, 0xff, arena_used);  // NaN in every floating type
}

// Waiting for ever is noticed as reading for ever is.
static void count_wait(const Fibre& at) {
  steps += WIDTH;
  if (steps > most_steps) report_at(ENDLESS, i64(most_steps), at, u32(most_steps));
}

void trivet_msl::barrier_passed(const Fibre& at) {
  u32 flags = at.flags;
  stats.barriers++;
  count_wait(at);
  if (flags & 1) epoch_device++;
  if (flags & 2) epoch_threadgroup++;
}

void trivet_msl::simdgroup_barrier_passed(u32 simdgroup, u32 flags) {
  if (flags & 1) simd_epoch_device[simdgroup]++;
  if (flags & 2) simd_epoch_threadgroup[simdgroup]++;
}

void trivet_msl::count_exchange(bool divergent, const Fibre& at) {
  stats.exchanges++;
  count_wait(at);
  if (!divergent) return;
  stats.divergent++;
  place_of(at.site.file, at.site.line);
}

void trivet_msl::report_at(Kind kind, i64 detail, const Fibre& at, u32 threads) {
  Finding* f = report(kind, place_of(at.site.file, at.site.line), READ, 0, -1, detail, threads);
  if (f) f->thread = at.ids.index;
  stop();
}

// --- what kernels and their headers ask ----------------------------------------------------------

HOOK void trivet_msl_touch(const void* address, unsigned long bytes, u32 access, const char* file, u32 line) {
#ifdef TRIVET_MSL_CHECKED
  check(address, bytes, access & ~NATURAL, place_of(file, line), access & NATURAL);
#endif
}

HOOK void trivet_msl_report(u32 kind, i64 detail, const char* file, u32 line) {
  report(Kind(kind), place_of(file, line), READ, 0, -1, detail, 0);
  stop();
}

HOOK void* trivet_msl_threadgroup(const void* key, const char* name, unsigned long bytes, unsigned long align,
                                  const char* file, u32 line) {
  for (u32 i = 0; i < variable_count; i++)
    if (variables[i].key == key) return arena + variables[i].offset;
  if (!arena) {
    char* p = (char*)mmap(nullptr, ARENA + 2 * GAP, 3, 0x4022, -1, 0);
    arena = p + GAP;
    arena_cells = (Cell*)mmap(nullptr, ARENA * sizeof(Cell), 3, 0x4022, -1, 0);
    arena_granule = 4;
  }
  if (align < 16) align = 16;
  u64 offset = (arena_used + align - 1) / align * align;
  stats.threadgroup_bytes = (stats.threadgroup_bytes + align - 1) / align * align + bytes;
  if (stats.threadgroup_bytes > arena_limit || offset + bytes > ARENA || variable_count == MOST_VARIABLES) {
    report(THREADGROUP_MEMORY, place_of(file, line), READ, 0, -1, i64(stats.threadgroup_bytes), i64(arena_limit));
    stop();
  }
  variables[variable_count++] = {key, name, offset, bytes};
  memset(arena + offset, 0xff, bytes);
  arena_used = offset + bytes + RED_ZONE;
  return arena + offset;
}

#ifdef TRIVET_MSL_CHECKED
#define PC place_of(__builtin_extract_return_addr(__builtin_return_address(0)))
#define SIZED(N)                                                                              \
  HOOK void __tsan_read##N(void* p) { check(p, N, READ, PC, N > 1); }                         \
  HOOK void __tsan_write##N(void* p) { check(p, N, WRITE, PC, N > 1); }                       \
  HOOK void __tsan_unaligned_read##N(void* p) { check(p, N, READ, PC, false); }               \
  HOOK void __tsan_unaligned_write##N(void* p) { check(p, N, WRITE, PC, false); }
SIZED(1) SIZED(2) SIZED(4) SIZED(8) SIZED(16)
HOOK void __tsan_func_entry(void*) {}
HOOK void __tsan_func_exit() {}
HOOK void __tsan_init() {}
HOOK void* __tsan_memcpy(void* to, const void* from, unsigned long n) {
  if (n) check(from, n, READ | LOOSE, PC, false), check(to, n, WRITE, PC, false);
  return memcpy(to, from, n);
}
HOOK void* __tsan_memmove(void* to, const void* from, unsigned long n) {
  if (n) check(from, n, READ | LOOSE, PC, false), check(to, n, WRITE, PC, false);
  return memmove(to, from, n);
}
HOOK void* __tsan_memset(void* to, int value, unsigned long n) {
  if (n) check(to, n, WRITE, PC, false);
  return memset(to, value, n);
}

// what clang passes to the handlers of its bounds checks: first the place in the source
struct SourcePlace { const char* file; u32 line, column; };
HOOK void __ubsan_handle_out_of_bounds(SourcePlace* at, unsigned long index) {
  report(ARRAY_INDEX, place_of(at->file, at->line), READ, 0, -1, i64(index), 0);
  stop();
}
HOOK void __ubsan_handle_divrem_overflow(SourcePlace* at, unsigned long, unsigned long) {
  report(DIVISION, place_of(at->file, at->line), READ, 0, -1, 0, 0);
  stop();
}
#endif

// --- what the Python side calls ------------------------------------------------------------------

// Lays out regions of these sizes between gaps and says where each begins; 0 when there is no room.
EXPORT int trivet_msl_regions(Region* given, u32 count) {
  static char* space;
  static u64 space_bytes;
  u64 need = GAP, cells = 0;
  if (count > MOST_REGIONS) return 0;
  for (u32 i = 0; i < count; i++) {
    need += (given[i].size + 0xffff) / 0x1000 * 0x1000 + GAP;
    cells += given[i].size;
  }
  if (need > space_bytes) {
    if (space) munmap(space, space_bytes);
    space_bytes = need * 2;
    space = (char*)mmap(nullptr, space_bytes, 3, 0x4022, -1, 0);
    if (space == (char*)-1) return space = nullptr, space_bytes = 0, 0;
  }
  if (cells * sizeof(Cell) > shadow_bytes) {
    if (shadow) munmap(shadow, shadow_bytes);
    shadow_bytes = cells * sizeof(Cell) * 2;
    shadow = (Cell*)mmap(nullptr, shadow_bytes, 3, 0x4022, -1, 0);
    if (shadow == (Cell*)-1) return shadow = nullptr, shadow_bytes = 0, 0;
  }
  char* at = space + GAP;
  Cell* cell = shadow;
  region_count = count;
  for (u32 i = 0; i < count; i++) {
    given[i].begin = at;
    regions[i] = given[i];
    region_cells[i] = cell;
    at += (given[i].size + 0xffff) / 0x1000 * 0x1000 + GAP;
    cell += given[i].size;
  }
  return 1;
}

EXPORT Region* trivet_msl_seen(u32 index) { return &regions[index]; }
EXPORT void trivet_msl_limits(u64 threadgroup_bytes, u64 steps) { arena_limit = threadgroup_bytes, most_steps = steps; }
EXPORT Stats* trivet_msl_stats() { return &stats; }
EXPORT u32 trivet_msl_findings(Finding** list) {
  settle(false);
  return *list = findings, finding_count;
}
EXPORT u32 trivet_msl_variables(Variable** list) { return *list = variables, variable_count; }
EXPORT Site* trivet_msl_site(u32 place) { return &sites[place & 0x7fffffffu]; }
EXPORT u32 trivet_msl_site_count() { return site_count; }
