// Which instruction set levels this machine can run, and the one in use.
#pragma once
#include "table.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace trivet_cpu {

enum Level : int { BASELINE = 0, AVX2 = 1, AVX512 = 2, NEON = 3, LEVELS = 4 };

// Asks the processor directly: compilers' own answers differ, and some are stubs.
inline int highest_supported() {
#if defined(__x86_64__)
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return BASELINE;
  const unsigned fma_movbe_osxsave_avx_f16c =
      (1u << 12) | (1u << 22) | (1u << 27) | (1u << 28) | (1u << 29);
  if ((c & fma_movbe_osxsave_avx_f16c) != fma_movbe_osxsave_avx_f16c) return BASELINE;
  unsigned low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & 0x6) != 0x6) return BASELINE;  // the system saves xmm and ymm
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return BASELINE;
  const unsigned bmi1_avx2_bmi2 = (1u << 3) | (1u << 5) | (1u << 8);
  if ((b & bmi1_avx2_bmi2) != bmi1_avx2_bmi2) return BASELINE;
  const unsigned features = b;
  if (!__get_cpuid(0x80000001, &a, &b, &c, &d) || !(c & (1u << 5))) return BASELINE;  // lzcnt
  const unsigned f_dq_cd_bw_vl = (1u << 16) | (1u << 17) | (1u << 28) | (1u << 30) | (1u << 31);
  const bool wide = (features & f_dq_cd_bw_vl) == f_dq_cd_bw_vl && (low & 0xe6) == 0xe6;
  return wide ? AVX512 : AVX2;
#elif defined(__aarch64__)
  return NEON;  // part of the architecture
#else
  return BASELINE;
#endif
}

// Null where the level was not compiled or this machine cannot run it.
inline const Table* table_of(int level) {
  static const int highest = highest_supported();
  if (level < 0 || level > highest) return nullptr;
  switch (level) {
#if defined(TRIVET_CPU_HAS_BASELINE)
    case BASELINE: return &trivet_cpu_baseline;
#endif
#if defined(TRIVET_CPU_HAS_AVX2)
    case AVX2: return &trivet_cpu_avx2;
#endif
#if defined(TRIVET_CPU_HAS_AVX512)
    case AVX512: return &trivet_cpu_avx512;
#endif
#if defined(TRIVET_CPU_HAS_NEON)
    case NEON: return &trivet_cpu_neon;
#endif
    default: return nullptr;
  }
}

struct Current {
  int level = BASELINE;
  const Table* table = nullptr;  // each build has the plainest level of its architecture
  Current() {
    for (int i = 0; i < LEVELS; i++)
      if (const Table* t = table_of(i)) level = i, table = t;
  }
};
inline Current& current() {
  static Current it;
  return it;
}

}  // namespace trivet_cpu
