// Attention with heads of up to 128 features.
#define HEAD_WIDTH 128
#include "attention_kernels.h"
