// SPDX-License-Identifier: Apache-2.0
// Tensor: a view of a row-major matrix in a backend's memory.
#pragma once

#include <cstdint>

#include "base/check.h"
#include "ops/dtype.h"

namespace quire {

// A view, owning nothing: [rows, cols], `stride` elements from one row to the next. Activations on the CPU are F32; on
// a GPU they may have 16 bits, but for the residual stream, logits, router logits and a shared expert's gate, which are
// F32 everywhere. `data` is an address of the backend's: not every backend lets the host read it.
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
  Tensor first_rows(int64_t count) const {
    QUIRE_CHECK(count >= 0 && count <= rows);
    return {data, dtype, count, cols, stride};
  }
};

}  // namespace quire
