// A driver without a device: what Triton's launcher needs of it, and a record of each launch.
// The test that loads it says `emulated`: nothing is executed, what would be launched is compared.
#include "cuda.h"
#include <string.h>

#define MOST_PARAMETERS 32

struct launch {
  unsigned long long grid[3], threads, shared, stream, function, cooperative, parameters[MOST_PARAMETERS];
};

struct launch last_launch;
int launches;
int parameters; // how many the kernel has; the driver would know from the module
int modules;

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **given, void **extra) {
  (void)extra;
  last_launch = (struct launch){
      {config->gridDimX, config->gridDimY, config->gridDimZ}, config->blockDimX,
      config->sharedMemBytes, (unsigned long long)config->hStream, (unsigned long long)f, 0, {0}};
  for (unsigned i = 0; i < config->numAttrs; ++i)
    if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) last_launch.cooperative = 1;
  for (int i = 0; i < parameters && i < MOST_PARAMETERS; ++i)
    memcpy(&last_launch.parameters[i], given[i], 8);
  ++launches;
  return CUDA_SUCCESS;
}

// a tensor's address would be looked up here: the direct route never asks
int queries;
CUresult cuPointerGetAttribute(void *data, CUpointer_attribute a, CUdeviceptr p) {
  (void)a;
  ++queries;
  *(CUdeviceptr *)data = p;
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  (void)image;
  *module = (CUmodule)(unsigned long long)(0x1000 + ++modules);
  return CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction *f, CUmodule module, const char *name) {
  (void)name;
  *f = (CUfunction)((unsigned long long)module + 0x10000);
  return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute a, CUfunction f) {
  (void)f;
  *value = a == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute a, CUdevice d) {
  (void)a, (void)d;
  *value = 232448; // the shared memory of a block, which is the one answer that is compared
  return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext *context) {
  *context = (CUcontext)1;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice *d, int i) {
  *d = i;
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult r, const char **text) {
  (void)r;
  *text = "an error of the stub";
  return CUDA_SUCCESS;
}

// asked for when the launcher is loaded, never called
#define NOTHING(name)                                                                             \
  CUresult stub_##name(void) __asm__(#name);                                                      \
  CUresult stub_##name(void) { return CUDA_SUCCESS; }
NOTHING(cuModuleUnload)
NOTHING(cuCtxGetDevice)
NOTHING(cuCtxGetLimit)
NOTHING(cuCtxSetCurrent)
NOTHING(cuCtxSetLimit)
NOTHING(cuDevicePrimaryCtxRetain)
NOTHING(cuDriverGetVersion)
NOTHING(cuFuncSetAttribute)
NOTHING(cuFuncSetCacheConfig)
NOTHING(cuOccupancyMaxActiveClusters)
NOTHING(cuStreamIsCapturing)
NOTHING(cuTensorMapEncodeIm2col)
NOTHING(cuTensorMapEncodeTiled)
