// What the scheduler, the checker and the Metal headers share: threads, waits, findings.
#pragma once
#pragma clang system_header

namespace trivet_msl {
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;
typedef long i64;

struct Triple { u32 x, y, z; };

// Where a thread stands, read by kernels through their attributes.
struct Ids {
  Triple in_grid, in_group, group, group_size, full_group_size, groups, grid;
  u32 lane, simdgroup, index, simdgroups, full_simdgroups;
};

struct Site { const char* file; u32 line, column; };

enum Wait : u32 { DONE, READY, SIMD, SIMD_BARRIER, BARRIER };

constexpr u32 WIDTH = 32;       // lanes of a simdgroup on every Apple GPU
constexpr u32 EXCHANGE = 32;    // largest value that lanes exchange, in bytes
constexpr u32 SHARED = 256;     // largest result that one lane computes for all: an 8x8 matrix of floats

// The values of one simdgroup operation, complete when its lanes are resumed.
struct Snapshot {
  u32 mask;
  bool shared_ready;
  alignas(32) u8 value[WIDTH][EXCHANGE];
  alignas(32) u8 shared[SHARED];
};

struct Fibre {
  void* sp;
  char* stack;
  Ids ids;
  u32 state, flags, value_size;
  Site site;
  const void* value;
  Snapshot* snapshot;
};

enum Kind : u32 {
  RACE = 1, OUT_OF_BOUNDS, MISALIGNED, UNINITIALISED, BARRIER_NOT_REACHED, BARRIERS_DIFFER,
  SIMD_BARRIER_NOT_REACHED, INACTIVE_LANE, THREADGROUP_MEMORY, ARRAY_INDEX, DIVISION, WILD, ENDLESS,
};

// LOOSE: a copy that may span padding. OLD: the earlier one is told in a race, and it read.
// NATURAL: the address must be a multiple of the size. UPDATE: a write that needs the value before it.
enum Access : u32 { READ = 0, WRITE = 1, ATOMIC = 2, LOOSE = 4, OLD = 8, NATURAL = 16, UPDATE = 32 };
}  // namespace trivet_msl

extern "C" {
extern trivet_msl::Fibre* trivet_msl_current;
void trivet_msl_wait(trivet_msl::u32 state, trivet_msl::u32 flags, const void* value, trivet_msl::u32 size,
                     const char* file, trivet_msl::u32 line, trivet_msl::u32 column);
void* trivet_msl_threadgroup(const void* key, const char* name, unsigned long bytes, unsigned long align,
                             const char* file, trivet_msl::u32 line);
// accesses that the Metal headers make for a kernel: compiled without instrumentation, told here
void trivet_msl_touch(const void* address, unsigned long bytes, trivet_msl::u32 access, const char* file,
                      trivet_msl::u32 line);
void trivet_msl_report(trivet_msl::u32 kind, trivet_msl::i64 detail, const char* file, trivet_msl::u32 line);
}
