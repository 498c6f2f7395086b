// Compiled once for each level, with that level's -march flags and TRIVET_CPU_LEVEL as its name.
#include "activation.h"
#include "attention.h"
#include "grid.h"
#include "layer_norm.h"
#include "norm.h"
#include "rotary.h"
#include "sampling.h"
#include "table.h"

namespace trivet_cpu {

extern "C" __attribute__((visibility("hidden"))) const Table TRIVET_CPU_LEVEL = {
    {rms_norm<float, float>, rms_norm<float, bf16>, rms_norm<bf16, float>, rms_norm<bf16, bf16>},
    {fused_add_rms_norm<float, float>, fused_add_rms_norm<float, bf16>,
     fused_add_rms_norm<bf16, float>, fused_add_rms_norm<bf16, bf16>},
    {layer_norm<float, float>, layer_norm<float, bf16>, layer_norm<bf16, float>,
     layer_norm<bf16, bf16>},
    {{activation<Silu, float>, activation<Silu, bf16>},
     {activation<Gelu, float>, activation<Gelu, bf16>},
     {activation<GeluTanh, float>, activation<GeluTanh, bf16>}},
    {{activation_and_mul<Silu, float>, activation_and_mul<Silu, bf16>},
     {activation_and_mul<Gelu, float>, activation_and_mul<Gelu, bf16>},
     {activation_and_mul<GeluTanh, float>, activation_and_mul<GeluTanh, bf16>}},
    {rotary<float>, rotary<bf16>},
    {rotary_cache<float>, rotary_cache<bf16>},
    {attention<float>, attention<bf16>},
    attention_scratch,
    grid,
    GRID_BLOCK,
    {sample<float>, sample<bf16>},
};

}  // namespace trivet_cpu
