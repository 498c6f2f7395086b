// Attention with heads of up to 96 features.
#define HEAD_WIDTH 96
#include "attention_kernels.h"
