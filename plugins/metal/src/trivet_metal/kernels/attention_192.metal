// Attention with heads of up to 192 features.
#define HEAD_WIDTH 192
#include "attention_kernels.h"
