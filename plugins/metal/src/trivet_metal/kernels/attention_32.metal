// Attention with heads of up to 32 features.
#define HEAD_WIDTH 32
#include "attention_kernels.h"
