// Compiled once for each level, with that level's -march flags and TRIVET_CPU_LEVEL as its name.
#include "activation.h"
#include "attention.h"
#include "grid.h"
#include "layer_norm.h"
#include "norm.h"
#include "reduce.h"
#include "rotary.h"
#include "sampling.h"
#include "table.h"

#define EACH(F) {F<float>, F<bf16>, F<f16>}
#define EACH_WITH(F, T) {F<T, float>, F<T, bf16>, F<T, f16>}
#define NORM(F)                                              \
  {{F<float, float>, F<float, bf16>, nullptr},               \
   {F<bf16, float>, F<bf16, bf16>, nullptr},                 \
   {F<f16, float>, nullptr, F<f16, f16>}}
#define ACTIVATION(F) {EACH_WITH(F, Silu), EACH_WITH(F, Gelu), EACH_WITH(F, GeluTanh)}

namespace trivet_cpu {

extern "C" __attribute__((visibility("hidden"))) const Table TRIVET_CPU_LEVEL = {
    NORM(rms_norm),
    NORM(fused_add_rms_norm),
    NORM(layer_norm),
    ACTIVATION(activation),
    ACTIVATION(activation_and_mul),
    EACH(rotary),
    EACH(rotary_cache),
    EACH(attention),
    attention_scratch,
    grid,
    GRID_BLOCK,
    EACH(sample),
    REDUCTIONS_OVER_RANKS,
};

}  // namespace trivet_cpu
