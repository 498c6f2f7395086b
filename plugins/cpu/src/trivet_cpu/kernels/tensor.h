// Tensors as the kernels' operators see them, over torch's stable C interface.
//
// The library has no C++ in common with torch but exceptions: of torch's headers only C functions
// and conversions of values are used (their wrappers bring streams along), and errors are thrown
// with plain text. It therefore works with any C++ library's headers, libc++'s included, while
// exceptions, operator new and delete are those of the library that torch itself runs on.
#pragma once
#include <torch/csrc/stable/c/shim.h>
#include <torch/csrc/stable/stableivalue_conversions.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

#include "isa.h"
#include "table.h"

namespace trivet_cpu {

// Messages of this form become DomainError in Python; anything else passes as it is.
[[noreturn]] __attribute__((cold, noinline)) inline void outside(const char* op, const char* what) {
  char text[512];
  std::snprintf(text, sizeof text, "trivet_cpu domain: %s: %s", op, what);
  throw std::runtime_error(text);
}
inline void require(bool holds, const char* op, const char* what) {
  if (__builtin_expect(!holds, 0)) outside(op, what);
}
inline void torch_ok(AOTITorchError code, const char* what) {
  if (__builtin_expect(code != AOTI_TORCH_SUCCESS, 0)) outside("an argument", what);
}

struct DTypes {
  int32_t f32 = aoti_torch_dtype_float32(), bf16 = aoti_torch_dtype_bfloat16();
  int32_t f16 = aoti_torch_dtype_float16();
  int32_t i32 = aoti_torch_dtype_int32(), i64 = aoti_torch_dtype_int64();
  int32_t cpu = aoti_torch_device_type_cpu();
};
inline const DTypes& dtypes() {
  static const DTypes it;
  return it;
}

// An argument: owns the handle that torch put on the stack.
class Arg {
 public:
  explicit Arg(StableIValue v) { std::memcpy(&handle_, &v, sizeof handle_); }
  explicit Arg(AtenTensorHandle h) : handle_(h) {}
  Arg(const Arg&) = delete;
  Arg& operator=(const Arg&) = delete;
  ~Arg() {
    if (handle_) aoti_torch_delete_tensor_object(handle_);
  }

  // Reads shape, strides and dtype; done after every handle is owned, since it may throw.
  void read() {
    const char* what = "it is None, or no tensor with strides";
    torch_ok(aoti_torch_get_dim(handle_, &dim), what);
    torch_ok(aoti_torch_get_sizes(handle_, &sizes), what);
    torch_ok(aoti_torch_get_strides(handle_, &strides), what);
    torch_ok(aoti_torch_get_dtype(handle_, &dtype), what);
  }
  template <class T = void>
  const T* in() const {
    const void* p;
    torch_ok(torch_get_const_data_ptr(handle_, &p), "its memory cannot be read");
    return (const T*)p;
  }
  template <class T = void>
  T* inout() const {
    void* p;
    torch_ok(torch_get_mutable_data_ptr(handle_, &p), "its memory cannot be written");
    return (T*)p;
  }
  int64_t size(int64_t i) const { return sizes[i < 0 ? dim + i : i]; }
  int64_t stride(int64_t i) const { return strides[i < 0 ? dim + i : i]; }
  int64_t numel() const {
    int64_t n = 1;
    for (int64_t i = 0; i < dim; i++) n *= sizes[i];
    return n;
  }
  // The last dim is dense: size at most 1, or stride 1.
  bool dense_last() const { return dim > 0 && (size(-1) <= 1 || stride(-1) == 1); }
  bool contiguous() const {
    int64_t step = 1;
    for (int64_t i = dim - 1; i >= 0; i--) {
      if (sizes[i] == 0) return true;
      if (sizes[i] != 1 && strides[i] != step) return false;
      step *= sizes[i];
    }
    return true;
  }
  // False for an argument that was None: nothing of it may be read.
  bool present() const { return handle_ != nullptr; }
  StableIValue give() {
    StableIValue v = 0;
    std::memcpy(&v, &handle_, sizeof handle_);
    handle_ = nullptr;
    return v;
  }

  int64_t dim = 0;
  int64_t *sizes = nullptr, *strides = nullptr;
  int32_t dtype = -1;

 private:
  AtenTensorHandle handle_ = nullptr;
};

inline double as_double(StableIValue v) { return torch::stable::detail::to<double>(v); }
inline bool as_bool(StableIValue v) { return torch::stable::detail::to<bool>(v); }
inline int64_t as_int(StableIValue v) { return torch::stable::detail::to<int64_t>(v); }
// Of a "Tensor?": null where it is None.
inline AtenTensorHandle as_optional(StableIValue v) {
  return torch::stable::detail::to<std::optional<AtenTensorHandle>>(v).value_or(nullptr);
}

// The leading dims of a "*tokens ..." tensor seen as one dim.
struct Tokens {
  int64_t count = 1, stride = 0;
};
inline bool collapses(const Arg& a, int64_t trailing, Tokens& t) {
  t = {};
  for (int64_t i = 0; i < a.dim - trailing; i++) t.count *= a.sizes[i];
  if (t.count == 0) return true;
  bool seen = false;  // a dim whose stride matters; that stride may be 0, in an expanded tensor
  int64_t expected = 0;
  for (int64_t i = a.dim - trailing - 1; i >= 0; i--) {
    if (a.sizes[i] == 1) continue;
    if (!seen)
      t.stride = a.strides[i];
    else if (a.strides[i] != expected)
      return false;
    seen = true;
    expected = a.strides[i] * a.sizes[i];
  }
  return true;
}
inline Tokens collapse(const Arg& a, int64_t trailing, const char* op, const char* what) {
  Tokens t;
  require(collapses(a, trailing, t), op, what);
  return t;
}

// A small read-only operand (a weight vector, angles, a table) as dense rows; one that lies in
// memory in another way is copied, so that its layout is no part of any domain.
class Operand {
 public:
  Operand(const Arg& a, int64_t trailing) {
    if (!a.present()) return;
    if (collapses(a, trailing, rows) && (trailing == 0 || a.dense_last())) {
      data_ = a.in<char>();
      return;
    }
    const int64_t item = (int64_t)aoti_torch_dtype_element_size(a.dtype), n = a.numel();
    copy_.resize((size_t)(n * item));
    const char* from = a.in<char>();
    for (int64_t flat = 0; flat < n; flat++) {
      int64_t rest = flat, at = 0;
      for (int64_t i = a.dim - 1; i >= 0; i--) {
        at += rest % a.sizes[i] * a.strides[i];
        rest /= a.sizes[i];
      }
      std::memcpy(copy_.data() + flat * item, from + at * item, (size_t)item);
    }
    data_ = copy_.data();
    rows.stride = trailing == 0 ? 1 : a.size(-1);
  }
  template <class T>
  const T* data() const {
    return (const T*)data_;
  }
  Tokens rows;

 private:
  const char* data_ = nullptr;
  std::vector<char> copy_;
};

inline bool same_sizes(const Arg& a, const Arg& b, int64_t dims) {
  for (int64_t i = 0; i < dims; i++)
    if (a.sizes[i] != b.sizes[i]) return false;
  return true;
}

// Memory of a large output is new to the process each time (the C library maps and unmaps it), and
// a first touch of each small page costs more than the kernel's own work on it. Asks for large
// pages instead; a system that does not know them ignores the call.
constexpr int64_t HUGE_PAGES_FROM = 8 << 20;  // bytes
inline void advise_huge_pages(AtenTensorHandle h, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  if (bytes < HUGE_PAGES_FROM) return;
  void* p;
  if (torch_get_mutable_data_ptr(h, &p) != AOTI_TORCH_SUCCESS) return;
  static const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);  // 4, 16 or 64 KiB on aarch64
  const uintptr_t from = ((uintptr_t)p + page - 1) / page * page;
  madvise((void*)from, (uintptr_t)p + bytes - from, MADV_HUGEPAGE);
#else
  (void)h;
  (void)bytes;
#endif
}

constexpr int64_t MAX_DIM = 16;

// Messages of this form become OutOfMemory in Python.
[[noreturn]] __attribute__((cold, noinline)) inline void out_of_memory(const char* op,
                                                                       double bytes) {
  char text[512];
  std::snprintf(text, sizeof text, "trivet_cpu memory: %.0f bytes: %s", bytes, op);
  throw std::runtime_error(text);
}

// A fresh contiguous tensor with the leading sizes of `like`, and `last` as its last dim.
inline AtenTensorHandle fresh(const Arg& like, int64_t last, const char* op) {
  require(like.dim <= MAX_DIM, op, "more than 16 dims");
  int64_t sizes[MAX_DIM], strides[MAX_DIM], step = 1;
  for (int64_t i = like.dim - 1; i >= 0; i--) {
    sizes[i] = i == like.dim - 1 ? last : like.sizes[i];
    strides[i] = step;
    step *= sizes[i] > 1 ? sizes[i] : 1;
  }
  const int64_t itemsize = (int64_t)aoti_torch_dtype_element_size(like.dtype);
  AtenTensorHandle h;
  if (__builtin_expect(aoti_torch_empty_strided(like.dim, sizes, strides, like.dtype, dtypes().cpu,
                                                0, &h) != AOTI_TORCH_SUCCESS,
                       0))
    out_of_memory(op, (double)step * (double)itemsize);
  advise_huge_pages(h, step * itemsize);
  return h;
}

inline int64_t thread_count() {
  uint32_t count = 1;
  torch_ok(torch_get_num_threads(&count), "torch's number of threads cannot be read");
  return count;
}
// f(begin, end) for parts of [0, count) that have at least `grain` elements, on torch's threads.
template <class F>
void in_parallel(int64_t count, int64_t grain, const F& f) {
  auto call = [](int64_t begin, int64_t end, void* it) { (*(const F*)it)(begin, end); };
  if (torch_parallel_for(0, count, grain, call, (void*)&f) != AOTI_TORCH_SUCCESS)
    throw std::runtime_error("trivet_cpu: work on torch's threads failed");
}

// Rows over torch's threads; below SERIAL_BYTES a thread it is not worth waking one.
constexpr int64_t SERIAL_BYTES = 64 * 1024;
template <class F>
void over_rows(int64_t rows, int64_t bytes_per_row, const F& f) {
  if (rows <= 0) return;
  if (rows == 1 || rows * bytes_per_row <= SERIAL_BYTES) return f((int64_t)0, rows);
  int64_t threads = thread_count();
  if (threads <= 1) return f((int64_t)0, rows);
  int64_t grain = (rows + threads - 1) / threads;
  int64_t least = SERIAL_BYTES / (bytes_per_row + 1) + 1;
  in_parallel(rows, grain > least ? grain : least, f);
}

inline Type type_of(const Arg& x, const char* op, const char* otherwise) {
  if (x.dtype == dtypes().f32) return F32;
  if (x.dtype == dtypes().bf16) return BF16;
  if (x.dtype == dtypes().f16) return F16;
  outside(op, otherwise);
}
inline Type activation_type(const Arg& x, const char* op) {
  return type_of(x, op, "the activation dtype must be float32, bfloat16 or float16");
}

}  // namespace trivet_cpu
