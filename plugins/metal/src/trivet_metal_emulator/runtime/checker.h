// What the scheduler tells the checker, and what the two ask of each other.
#pragma once
#include "core.h"

namespace trivet_msl {
void begin_dispatch(u64 groups);
void begin_group(u32 sequence, Triple group);
void barrier_passed(const Fibre& at);
void simdgroup_barrier_passed(u32 simdgroup, u32 flags);
void count_exchange(bool divergent, const Fibre& at);
void report_at(Kind kind, i64 detail, const Fibre& at, u32 threads);

void stop();                       // ends the dispatch; does not return when a thread calls it
bool on_stack(const char* address);
}  // namespace trivet_msl
