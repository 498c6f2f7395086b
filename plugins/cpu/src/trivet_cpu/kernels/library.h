// Registers operators with torch while the library is loaded.
//
// TRIVET_CPU_DEFINITIONS comes first in the file: objects of one file are made in its order.
#pragma once
#include <new>

#include "tensor.h"

#if defined(_LIBCPP_VERSION)
// Headers of libc++ over the libstdc++ that torch brings: the exceptions of both have the same names
// and bases, and these two constructors alone are inline there and not exported.
namespace std {
bad_alloc::bad_alloc() noexcept {}
bad_array_new_length::bad_array_new_length() noexcept {}
}  // namespace std
#endif

namespace trivet_cpu {

// Operators of the library's namespace: their schemas, or their functions for one dispatch key.
// Torch keeps what the handle registered for as long as the handle lives, here the whole process.
class Operators {
 public:
  using Boxed = void (*)(StableIValue*, uint64_t inputs, uint64_t outputs);

  // Without a key: for schemas.
  Operators(const char* space, const char* key, void (*fill)(Operators&)) {
    ok(key ? aoti_torch_library_init_impl(space, key, __FILE__, __LINE__, &handle_)
           : aoti_torch_library_init_def(space, __FILE__, __LINE__, &handle_),
       space);
    fill(*this);
  }
  Operators(const Operators&) = delete;
  Operators& operator=(const Operators&) = delete;
  ~Operators() { aoti_torch_delete_library_object(handle_); }

  void def(const char* schema) { ok(aoti_torch_library_def(handle_, schema), schema); }
  void impl(const char* name, Boxed function) {
    ok(torch_library_impl(handle_, name, function, TORCH_ABI_VERSION), name);
  }

 private:
  static void ok(AOTITorchError code, const char* what) {
    if (code != AOTI_TORCH_SUCCESS) outside(what, "torch does not register it");
  }
  TorchLibraryHandle handle_ = nullptr;
};

}  // namespace trivet_cpu

#define TRIVET_CPU_TEXT_OF(x) #x
#define TRIVET_CPU_TEXT(x) TRIVET_CPU_TEXT_OF(x)
#define TRIVET_CPU_DEFINITIONS(m)                                                            \
  static void define_all(trivet_cpu::Operators&);                                            \
  static const trivet_cpu::Operators definitions(TRIVET_CPU_TEXT(TRIVET_CPU_NAMESPACE),      \
                                                 nullptr, &define_all);                      \
  static void define_all(trivet_cpu::Operators& m)
#define TRIVET_CPU_IMPLEMENTATIONS(key, m)                                                   \
  static void implement_##key(trivet_cpu::Operators&);                                       \
  static const trivet_cpu::Operators for_##key(TRIVET_CPU_TEXT(TRIVET_CPU_NAMESPACE), #key,  \
                                               &implement_##key);                            \
  static void implement_##key(trivet_cpu::Operators& m)
