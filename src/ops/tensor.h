// SPDX-License-Identifier: Apache-2.0
// Tensor: a view of a row-major matrix in a backend's memory.
#pragma once

#include <cstdint>
#include <iterator>

#include "base/check.h"
#include "ops/dtype.h"

namespace quire {

// A view that owns nothing: [rows, cols], with `stride` elements from one row to the next. Activations are F32 on the
// CPU. On a GPU they may have 16 bits, except the residual stream, logits, router logits and the gate of a shared
// expert, which are F32 on every backend. `data` is an address in the backend's memory, which the host may be unable to
// read.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  float* f32() const {
    QUIRE_CHECK(dtype == DType::kF32);
    return static_cast<float*>(data);
  }
  float* row_f32(int64_t row) const { return f32() + row * stride; }
  Tensor columns(int64_t begin, int64_t count) const {
    QUIRE_CHECK(begin >= 0 && count >= 0 && begin + count <= cols);
    return {static_cast<char*>(data) + begin * info(dtype).block_bytes, dtype, rows, count, stride};
  }
  Tensor some_rows(int64_t first, int64_t count) const {
    QUIRE_CHECK(first >= 0 && count >= 0 && first + count <= rows);
    return {static_cast<char*>(data) + first * stride * info(dtype).block_bytes, dtype, count, cols, stride};
  }
  Tensor first_rows(int64_t count) const { return some_rows(0, count); }
};

// Every op has a function check(args) beside its arguments, which every backend calls first. It aborts if the shapes or
// types do not fit together: a mismatch is a bug of the caller. It reads no array of the arguments, because those may
// be in a GPU's memory; check_indices(args), where an op has it, does, and REQUIRES arrays that the host can read.
//
// For these functions: `t` is [rows, cols], and in check_like() also of the type of `other`.
inline void check_shape(const Tensor& t, int64_t rows, int64_t cols) {
  QUIRE_CHECK(t.rows == rows && t.cols == cols && cols <= INT32_MAX);
  QUIRE_CHECK(t.data != nullptr || rows * cols == 0);
  QUIRE_CHECK(t.stride >= cols || rows <= 1);
}
inline void check_like(const Tensor& t, const Tensor& other) {
  check_shape(t, other.rows, other.cols);
  check_shape(other, t.rows, t.cols);
  QUIRE_CHECK(t.dtype == other.dtype);
}

}  // namespace quire
