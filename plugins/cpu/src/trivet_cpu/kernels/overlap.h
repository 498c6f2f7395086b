// Memory that a kernel writes: its rows are apart from each other and from what is read elsewhere.
#pragma once
#include "tensor.h"

namespace trivet_cpu {

// Rows as runs of bytes.
struct Span {
  const char* at;
  int64_t count, stride, width;
  Span(const void* start, const Tokens& rows, int64_t elements, int64_t itemsize)
      : at((const char*)start),
        count(elements ? rows.count : 0),
        stride(rows.stride * itemsize),
        width(elements * itemsize) {}
  const char* end() const { return at + (count - 1) * stride + width; }
};
inline Span span_of(const void* start, const Arg& a) {
  return {start, {1, 0}, a.numel(), (int64_t)aoti_torch_dtype_element_size(a.dtype)};
}

// No byte belongs to both. Two column ranges of one matrix are apart; rows with different strides
// whose ranges meet count as overlapping.
inline bool apart(const Span& a, const Span& b) {
  if (a.count == 0 || b.count == 0 || a.end() <= b.at || b.end() <= a.at) return true;
  if (a.count == 1 || b.count == 1 || a.stride != b.stride || a.stride <= 0) return false;
  const int64_t from = ((b.at - a.at) % a.stride + a.stride) % a.stride;
  return from >= a.width && from + b.width <= a.stride;
}
// Row by row the same bytes: a kernel that reads a row before it writes it may get these.
inline bool same_rows(const Span& a, const Span& b) {
  return a.at == b.at && a.width == b.width && (a.count <= 1 || a.stride == b.stride);
}

// Rows that are written must not share memory, as those of an expanded tensor do.
inline void require_distinct(const Tokens& rows, int64_t width, const char* op) {
  require(rows.count <= 1 || rows.stride >= width, op,
          "what is written must not be expanded: its rows share memory");
}
// The same for rows of heads, in either order of strides.
inline void require_distinct(const Tokens& rows, const Arg& a, const char* op) {
  const int64_t heads = a.size(-2), width = a.size(-1), step = a.stride(-2);
  if (heads <= 1 || rows.count <= 1) {
    require_distinct(heads <= 1 ? rows : Tokens{heads, step}, width, op);
    return;
  }
  const bool heads_inside = step <= rows.stride;
  const int64_t count = heads_inside ? heads : rows.count;
  const int64_t low = heads_inside ? step : rows.stride, high = heads_inside ? rows.stride : step;
  require(low >= width && high >= (count - 1) * low + width, op,
          "what is written must not be expanded: its tokens or heads share memory");
}

// A row of heads for each token, as a part of a packed projection has them.
struct Heads {
  const void* at;
  int64_t heads, stride, head_stride;  // strides in elements
  bool dense(int64_t width) const { return heads <= 1 || head_stride == width; }
  Span rows(int64_t tokens, int64_t width, int64_t itemsize) const {
    return {at, {tokens, stride}, heads * width, itemsize};
  }
};
// Whether neither writes the other. Heads that are not dense may lie between those of the other;
// of them only the beginnings are compared.
inline bool heads_apart(const Heads& a, const Heads& b, int64_t tokens, int64_t width,
                        int64_t itemsize) {
  if (a.heads == 0 || b.heads == 0 || width == 0) return true;
  if (a.at == b.at) return false;
  if (!a.dense(width) || !b.dense(width)) return true;
  return apart(a.rows(tokens, width, itemsize), b.rows(tokens, width, itemsize));
}
// Whether no byte between the first and the last of the heads belongs to a run of bytes.
inline bool heads_outside(const Heads& a, const Span& run, int64_t tokens, int64_t width,
                          int64_t itemsize) {
  if (a.heads == 0 || tokens == 0 || width == 0) return true;
  const int64_t last = (tokens - 1) * a.stride + (a.heads - 1) * a.head_stride + width;
  return apart({a.at, {1, 0}, last, itemsize}, run);
}

}  // namespace trivet_cpu
