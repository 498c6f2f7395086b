// The driver's virtual memory without a device: addresses and memory are the host's, and every rule
// that is broken is counted. A test that loads it says `emulated`. The header is the driver's own.
#define _GNU_SOURCE
#include "cuda.h"
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MOST 64
#define GRAIN (2ul << 20)

struct range { CUdeviceptr at; size_t size; int used, mapped, open; };
struct memory { size_t size; int fd, refs; };

static struct range ranges[MOST];
static struct memory memories[MOST]; // a handle is its place and 1
int calls, fail_at, fail_code = 999, broken, waited, depth, has_files = 1, has_virtual = 1;
unsigned long capacity = 64ul << 20, in_use;

static int failing(void) { return ++calls == fail_at; }
#define CALL if (failing()) return fail_code
#define CALL_IN_CONTEXT if (depth < 1) ++broken; CALL
#define BREAK return ++broken, CUDA_ERROR_INVALID_VALUE

static struct range *at(CUdeviceptr p, size_t size) {
  for (int i = 0; i < MOST; ++i)
    if (ranges[i].used && ranges[i].at == p && ranges[i].size == size) return &ranges[i];
  return 0;
}

static CUresult put(CUmemGenericAllocationHandle *handle, int fd, size_t size) {
  for (int i = 0; i < MOST; ++i)
    if (!memories[i].refs) {
      memories[i] = (struct memory){size, fd, 1};
      *handle = i + 1;
      return CUDA_SUCCESS;
    }
  return CUDA_ERROR_UNKNOWN;
}

static void drop(struct memory *m) {
  if (--m->refs) return;
  close(m->fd);
  in_use -= m->size;
}

int starts;
CUresult cuInit(unsigned flags) { (void)flags; ++starts; return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *d, int i) { *d = i; return i < 2 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE; }
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute a, CUdevice d) {
  (void)d;
  *value = a == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED ? has_virtual
         : a == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED ? has_files : -1;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d) { *c = (CUcontext)(0x100ul + d); return CUDA_SUCCESS; }
CUresult cuCtxPushCurrent(CUcontext c) {
  if ((unsigned long)c < 0x100ul) BREAK;
  ++depth;
  return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent(CUcontext *c) { (void)c; if (depth-- < 1) BREAK; return CUDA_SUCCESS; }
CUresult cuCtxSynchronize(void) { CALL_IN_CONTEXT; waited = 1; return CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult r, const char **text) {
  *text = r == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "an error of the stub";
  return CUDA_SUCCESS;
}
CUresult cuMemGetInfo(size_t *free, size_t *total) {
  if (depth < 1) ++broken;
  *free = capacity - in_use, *total = capacity;
  return CUDA_SUCCESS;
}
CUresult cuMemGetAllocationGranularity(size_t *g, const CUmemAllocationProp *p, CUmemAllocationGranularity_flags f) {
  (void)f;
  if (p->type != CU_MEM_ALLOCATION_TYPE_PINNED || p->location.type != CU_MEM_LOCATION_TYPE_DEVICE) BREAK;
  *g = GRAIN;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *p, size_t size, size_t align, CUdeviceptr addr, unsigned long long flags) {
  CALL_IN_CONTEXT;
  if (!size || size % GRAIN || addr || flags) BREAK;
  char *whole = mmap(0, size + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (whole == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *p = ((CUdeviceptr)whole + align - 1) / align * align; // what lies before and behind is not given back
  for (int i = 0; i < MOST; ++i)
    if (!ranges[i].used) {
      ranges[i] = (struct range){*p, size, 1, 0, 0};
      return CUDA_SUCCESS;
    }
  return CUDA_ERROR_UNKNOWN;
}
CUresult cuMemAddressFree(CUdeviceptr p, size_t size) {
  CALL_IN_CONTEXT;
  struct range *r = at(p, size);
  if (!r || r->mapped) BREAK;
  r->used = 0;
  munmap((void *)p, size);
  return CUDA_SUCCESS;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *p, unsigned long long flags) {
  CALL_IN_CONTEXT;
  if (!size || size % GRAIN || flags || p->type != CU_MEM_ALLOCATION_TYPE_PINNED || p->allocFlags.usage) BREAK;
  if ((p->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != has_files) BREAK;
  if (in_use + size > capacity) return CUDA_ERROR_OUT_OF_MEMORY;
  int fd = memfd_create("device", 0);
  if (fd < 0 || ftruncate(fd, size)) return CUDA_ERROR_OUT_OF_MEMORY;
  in_use += size;
  return put(handle, fd, size);
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  CALL_IN_CONTEXT;
  if (!handle || handle > MOST || !memories[handle - 1].refs) BREAK;
  drop(&memories[handle - 1]);
  return CUDA_SUCCESS;
}
CUresult cuMemMap(CUdeviceptr p, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
  CALL_IN_CONTEXT;
  struct range *r = at(p, size);
  if (!r || r->mapped || offset || flags || !handle || handle > MOST) BREAK;
  struct memory *m = &memories[handle - 1];
  if (!m->refs || m->size != size) BREAK;
  if (mmap((void *)p, size, PROT_NONE, MAP_SHARED | MAP_FIXED, m->fd, 0) == MAP_FAILED) return CUDA_ERROR_UNKNOWN;
  r->mapped = (int)handle, ++m->refs;
  return CUDA_SUCCESS;
}
CUresult cuMemSetAccess(CUdeviceptr p, size_t size, const CUmemAccessDesc *d, size_t count) {
  CALL_IN_CONTEXT;
  struct range *r = at(p, size);
  if (!r || !r->mapped || count < 1) BREAK;
  for (size_t i = 0; i < count; ++i)
    if (d[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || d[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) BREAK;
  mprotect((void *)p, size, PROT_READ | PROT_WRITE);
  r->open = (int)count, waited = 0; // from now on kernels may run on it
  return CUDA_SUCCESS;
}
CUresult cuMemUnmap(CUdeviceptr p, size_t size) {
  CALL_IN_CONTEXT;
  struct range *r = at(p, size);
  if (!r || !r->mapped || (r->open && !waited)) BREAK;
  mmap((void *)p, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  drop(&memories[r->mapped - 1]);
  r->mapped = r->open = 0;
  return CUDA_SUCCESS;
}
CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, unsigned long long flags) {
  CALL_IN_CONTEXT;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags || !has_files || !handle) BREAK;
  *(int *)out = dup(memories[handle - 1].fd);
  return CUDA_SUCCESS;
}
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *fd, CUmemAllocationHandleType type) {
  CALL_IN_CONTEXT;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) BREAK;
  int own = dup((int)(unsigned long)fd);
  if (own < 0) return CUDA_ERROR_INVALID_VALUE;
  off_t size = lseek(own, 0, SEEK_END);
  in_use += size;
  return put(handle, own, size);
}

int live(void) { // what is still held
  int count = 0;
  for (int i = 0; i < MOST; ++i) count += ranges[i].used + memories[i].refs;
  return count;
}

void reset(void) { // as the end of a process
  for (int i = 0; i < MOST; ++i) {
    if (ranges[i].used) munmap((void *)ranges[i].at, ranges[i].size);
    if (memories[i].refs) close(memories[i].fd);
  }
  memset(ranges, 0, sizeof ranges), memset(memories, 0, sizeof memories);
  in_use = 0;
}
