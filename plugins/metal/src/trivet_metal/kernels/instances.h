// Instances over one dtype, and over an activation's and a weight's; bfloat from Metal 3.1 on.
#define FOR_FLOATS(INSTANCE) INSTANCE(float) INSTANCE(half)
#define FOR_PAIRS(INSTANCE) \
  INSTANCE(float, float) INSTANCE(float, half) INSTANCE(half, float) INSTANCE(half, half)
#if __METAL_VERSION__ >= 310
#define FOR_BFLOATS(INSTANCE) INSTANCE(bfloat)
#define FOR_BFLOAT_PAIRS(INSTANCE)                                            \
  INSTANCE(float, bfloat) INSTANCE(half, bfloat) INSTANCE(bfloat, float)      \
  INSTANCE(bfloat, half) INSTANCE(bfloat, bfloat)
#else
#define FOR_BFLOATS(INSTANCE)
#define FOR_BFLOAT_PAIRS(INSTANCE)
#endif
#define FOR_ALL(INSTANCE) FOR_FLOATS(INSTANCE) FOR_BFLOATS(INSTANCE)
#define FOR_ALL_PAIRS(INSTANCE) FOR_PAIRS(INSTANCE) FOR_BFLOAT_PAIRS(INSTANCE)
