// Runs a grid: one fibre a thread, simdgroups of 32, barriers that are exact, orders that a seed permutes.
#include "checker.h"

using namespace trivet_msl;

extern "C" {
void* mmap(void*, unsigned long, int, int, int, long);
int mprotect(void*, unsigned long, int);
int munmap(void*, unsigned long);
void* memcpy(void*, const void*, unsigned long);
void* memset(void*, int, unsigned long);
void trivet_msl_switch(void** from, void* to);
Fibre* trivet_msl_current;
}

#if defined(__x86_64__)
asm(".text\n.hidden trivet_msl_switch\n.globl trivet_msl_switch\n.type trivet_msl_switch,@function\n"
    "trivet_msl_switch:\n"
    " pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
    " movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
    " popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret\n"
    ".size trivet_msl_switch, .-trivet_msl_switch\n");
static constexpr u32 SAVED = 7;   // registers and the return address
static constexpr u32 ENTRY = 6;   // which of them is the return address
static constexpr u32 BELOW = 1;   // the stack is 8 off a multiple of 16 where a function begins
#elif defined(__aarch64__)
asm(".text\n.hidden trivet_msl_switch\n.globl trivet_msl_switch\n.type trivet_msl_switch,%function\n"
    "trivet_msl_switch:\n"
    " sub sp, sp, #160\n"
    " stp x19, x20, [sp]\n stp x21, x22, [sp, #16]\n stp x23, x24, [sp, #32]\n stp x25, x26, [sp, #48]\n"
    " stp x27, x28, [sp, #64]\n stp x29, x30, [sp, #80]\n"
    " stp d8, d9, [sp, #96]\n stp d10, d11, [sp, #112]\n stp d12, d13, [sp, #128]\n stp d14, d15, [sp, #144]\n"
    " mov x9, sp\n str x9, [x0]\n mov sp, x1\n"
    " ldp x19, x20, [sp]\n ldp x21, x22, [sp, #16]\n ldp x23, x24, [sp, #32]\n ldp x25, x26, [sp, #48]\n"
    " ldp x27, x28, [sp, #64]\n ldp x29, x30, [sp, #80]\n"
    " ldp d8, d9, [sp, #96]\n ldp d10, d11, [sp, #112]\n ldp d12, d13, [sp, #128]\n ldp d14, d15, [sp, #144]\n"
    " add sp, sp, #160\n ret\n"
    ".size trivet_msl_switch, .-trivet_msl_switch\n");
static constexpr u32 SAVED = 20;
static constexpr u32 ENTRY = 11;  // x30
static constexpr u32 BELOW = 0;
#else
#error "a context switch is written for x86-64 and aarch64"
#endif

namespace {
constexpr u32 LARGEST_GROUP = 1024;
constexpr u64 STACK = 320ul << 10;
constexpr u64 GUARD = 64ul << 10;  // a multiple of the page of every system

typedef void Entry(void** buffers, const Ids* ids);

Fibre fibres[LARGEST_GROUP];
Snapshot snapshots[LARGEST_GROUP / WIDTH];
char* stacks;
char* free_stacks[LARGEST_GROUP];
u32 free_count;
void* scheduler_sp;
Entry* entry;
void** arguments;
bool stopped;
u32 random_state;
u16 lane_order[WIDTH], simdgroup_order[LARGEST_GROUP / WIDTH];

u32 random_below(u32 n) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 17;
  random_state ^= random_state << 5;
  return random_state % n;
}

template <class T> void order(T* list, u32 n, bool shuffled) {
  for (u32 i = 0; i < n; i++) list[i] = T(i);
  if (shuffled)
    for (u32 i = n; i > 1; i--) {
      u32 j = random_below(i);
      T kept = list[i - 1];
      list[i - 1] = list[j];
      list[j] = kept;
    }
}

void body() {
  entry(arguments, &trivet_msl_current->ids);
  trivet_msl_current->state = DONE;
  void* nowhere;
  trivet_msl_switch(&nowhere, scheduler_sp);
  __builtin_trap();
}

void resume(Fibre& fibre) {
  if (!fibre.stack) {
    fibre.stack = free_stacks[--free_count];
    void** top = (void**)(fibre.stack + STACK - 64) - BELOW;
    for (u32 i = 1; i <= SAVED; i++) *(top - i) = nullptr;
    fibre.sp = top - SAVED;
    ((void**)fibre.sp)[ENTRY] = (void*)body;
  }
  fibre.state = READY;
  trivet_msl_current = &fibre;
  trivet_msl_switch(&scheduler_sp, fibre.sp);
  trivet_msl_current = nullptr;
  if (fibre.state == DONE) {
    free_stacks[free_count++] = fibre.stack;
    fibre.stack = nullptr;
  }
}

bool same_site(const Fibre& a, const Fibre& b) {
  return a.state == b.state && a.site.line == b.site.line && a.site.column == b.site.column &&
         a.site.file == b.site.file;
}

bool before(const Fibre& a, const Fibre& b) {
  return a.site.line != b.site.line ? a.site.line < b.site.line : a.site.column < b.site.column;
}

// Lets the lanes that wait at the first place of the source exchange their values; false when none waits.
bool exchange(u32 simdgroup, u32 lanes) {
  Fibre* first = nullptr;
  Fibre* all = fibres + simdgroup * WIDTH;
  u32 live = 0, mask = 0;
  for (u32 i = 0; i < lanes; i++) {
    if (all[i].state != DONE) live |= 1u << i;
    if ((all[i].state == SIMD || all[i].state == SIMD_BARRIER) && (!first || before(all[i], *first))) first = &all[i];
  }
  if (!first) return false;
  for (u32 i = 0; i < lanes; i++)
    if ((live >> i & 1) && same_site(all[i], *first)) mask |= 1u << i;
  u32 whole = lanes == WIDTH ? 0xffffffffu : (1u << lanes) - 1;
  if (first->state == SIMD_BARRIER) {
    if (mask != whole) report_at(SIMD_BARRIER_NOT_REACHED, __builtin_popcount(mask), *first, lanes);
    simdgroup_barrier_passed(simdgroup, first->flags);
  } else {
    Snapshot& s = snapshots[simdgroup];
    s.mask = mask;
    s.shared_ready = false;
    count_exchange(mask != whole, *first);
    for (u32 i = 0; i < lanes; i++)
      if (mask >> i & 1) {
        memcpy(s.value[i], all[i].value, all[i].value_size);
        all[i].snapshot = &s;
      }
  }
  for (u32 k = 0; k < WIDTH && !stopped; k++) {
    u32 i = lane_order[k];
    if (i < lanes && (mask >> i & 1)) resume(all[i]);
  }
  return true;
}

void run_simdgroup(u32 simdgroup, u32 threads) {
  u32 lanes = threads - simdgroup * WIDTH < WIDTH ? threads - simdgroup * WIDTH : WIDTH;
  for (u32 k = 0; k < WIDTH && !stopped; k++) {
    u32 i = lane_order[k];
    if (i < lanes && fibres[simdgroup * WIDTH + i].state == READY) resume(fibres[simdgroup * WIDTH + i]);
  }
  while (!stopped && exchange(simdgroup, lanes)) {
  }
}

// Every thread waits at a barrier or has ended: opens the barrier, or says what is wrong with it.
bool open_barrier(u32 threads) {
  Fibre* first = nullptr;
  u32 waiting = 0;
  for (u32 i = 0; i < threads; i++)
    if (fibres[i].state == BARRIER) {
      waiting++;
      if (!first) first = &fibres[i];
      else if (!same_site(fibres[i], *first)) {
        report_at(BARRIERS_DIFFER, fibres[i].site.line, *first, threads);
        return false;
      }
    }
  if (!first) return false;
  if (waiting != threads) {
    report_at(BARRIER_NOT_REACHED, waiting, *first, threads);
    return false;
  }
  barrier_passed(*first);
  for (u32 i = 0; i < threads; i++) fibres[i].state = READY;
  return true;
}

void reset_stacks() {
  free_count = 0;
  for (u32 i = LARGEST_GROUP; i > 0; i--) free_stacks[free_count++] = stacks + (i - 1) * STACK;
  for (u32 i = 0; i < LARGEST_GROUP; i++) fibres[i].stack = nullptr;
}

void run_group(Triple group, Triple size, Triple full, Triple groups, Triple grid, bool shuffled) {
  u32 threads = size.x * size.y * size.z, simdgroups = (threads + WIDTH - 1) / WIDTH;
  for (u32 i = 0; i < threads; i++) {
    Triple t = {i % size.x, i / size.x % size.y, i / (size.x * size.y)};
    fibres[i].ids = {{group.x * full.x + t.x, group.y * full.y + t.y, group.z * full.z + t.z},
                     t, group, size, full, groups, grid, i % WIDTH, i / WIDTH, i, simdgroups,
                     (full.x * full.y * full.z + WIDTH - 1) / WIDTH};
    fibres[i].state = READY;
  }
  order(lane_order, WIDTH, shuffled);
  order(simdgroup_order, simdgroups, shuffled);
  do
    for (u32 k = 0; k < simdgroups && !stopped; k++) run_simdgroup(simdgroup_order[k], threads);
  while (!stopped && open_barrier(threads));
}

u64 common_factor(u64 a, u64 b) {
  while (b) {
    u64 rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

u32 smaller(u32 a, u32 b) { return a < b ? a : b; }
}  // namespace

void trivet_msl::stop() {
  stopped = true;
  if (!trivet_msl_current) return;
  void* nowhere;
  trivet_msl_switch(&nowhere, scheduler_sp);
  __builtin_trap();
}

bool trivet_msl::on_stack(const char* p) { return p >= stacks && p < stacks + LARGEST_GROUP * STACK; }

extern "C" {
void trivet_msl_wait(u32 state, u32 flags, const void* value, u32 size, const char* file, u32 line, u32 column) {
  Fibre* me = trivet_msl_current;
  me->state = state;
  me->flags = flags;
  me->value = value;
  me->value_size = size;
  me->site = {file, line, column};
  trivet_msl_switch(&me->sp, scheduler_sp);
}

// Runs the whole grid; 0 when no memory was left for the stacks.
__attribute__((visibility("default"))) int trivet_msl_dispatch(Entry* kernel, void** buffers, const u32* threads,
                                                               const u32* group_size, u32 seed) {
  if (!stacks) {
    void* p = mmap(nullptr, LARGEST_GROUP * STACK, 3, 0x4022, -1, 0);  // private, anonymous, not reserved
    if (p == (void*)-1) return 0;
    stacks = (char*)p;
    // an overrun ends the process rather than change a neighbour's variables in silence
    for (u32 i = 0; i < LARGEST_GROUP; i++) mprotect(stacks + i * STACK, GUARD, 0);
  }
  reset_stacks();
  entry = kernel;
  arguments = buffers;
  stopped = false;
  Triple grid = {threads[0], threads[1], threads[2]}, full = {group_size[0], group_size[1], group_size[2]};
  Triple n = {(grid.x + full.x - 1) / full.x, (grid.y + full.y - 1) / full.y, (grid.z + full.z - 1) / full.z};
  u64 total = u64(n.x) * n.y * n.z;
  random_state = seed * 2654435761u | 1;
  // a stride that shares no factor with the total visits every group once, in another order
  u64 stride = 1, start = 0;
  if (seed && total > 1) {
    start = random_below(u32(total));
    do stride = 1 + random_below(u32(total) - 1);
    while (common_factor(total, stride) != 1);
  }
  begin_dispatch(total);
  for (u64 k = 0; k < total && !stopped; k++) {
    u64 i = (start + k * stride) % total;
    Triple group = {u32(i % n.x), u32(i / n.x % n.y), u32(i / (u64(n.x) * n.y))};
    Triple size = {smaller(full.x, grid.x - group.x * full.x), smaller(full.y, grid.y - group.y * full.y),
                   smaller(full.z, grid.z - group.z * full.z)};
    begin_group(u32(k), group);
    run_group(group, size, full, n, grid, seed != 0);
  }
  trivet_msl_current = nullptr;
  return 1;
}
}
