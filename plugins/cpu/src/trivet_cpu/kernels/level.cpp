// Compiled once for each level, with that level's -march flags and TRIVET_CPU_LEVEL as its name.
#include "activation.h"
#include "attention.h"
#include "grid.h"
#include "norm.h"
#include "rotary.h"
#include "table.h"

namespace trivet_cpu {

extern "C" __attribute__((visibility("hidden"))) const Table TRIVET_CPU_LEVEL = {
    {rms_norm<float, float>, rms_norm<float, bf16>, rms_norm<bf16, float>, rms_norm<bf16, bf16>},
    {fused_add_rms_norm<float, float>, fused_add_rms_norm<float, bf16>,
     fused_add_rms_norm<bf16, float>, fused_add_rms_norm<bf16, bf16>},
    {silu_and_mul<float>, silu_and_mul<bf16>},
    {rotary<float>, rotary<bf16>},
    {rotary_cache<float>, rotary_cache<bf16>},
    {attention<float>, attention<bf16>},
    attention_scratch,
    grid,
    GRID_BLOCK,
};

}  // namespace trivet_cpu
