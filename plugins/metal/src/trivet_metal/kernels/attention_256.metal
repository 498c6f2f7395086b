// Attention with heads of up to 256 features.
#define HEAD_WIDTH 256
#include "attention_kernels.h"
