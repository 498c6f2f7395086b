// Attention with heads of up to 64 features.
#define HEAD_WIDTH 64
#include "attention_kernels.h"
