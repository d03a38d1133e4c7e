// SPDX-License-Identifier: Apache-2.0
// GuardedMatrix: inputs and outputs of the CPU's row kernels, misaligned and with guard elements around every row.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <string>

#include "backend/testing/scalar_math.h"
#include "ops/tensor.h"

namespace quire::cases {

// A matrix that starts `shift` floats after the start of an allocation; all floats of the allocation are random.
struct GuardedMatrix {
  GuardedMatrix(int64_t rows, int64_t cols, int64_t shift, uint32_t seed, float range = 2.0f)
      : rows(rows),
        cols(cols),
        stride(cols + 5),
        shift(shift),
        data(random_floats(shift + rows * (cols + 5) + 16, seed, range)) {}
  Tensor tensor() { return {data.data() + shift, DType::kF32, rows, cols, stride}; }
  float* row(int64_t r) { return data.data() + shift + r * stride; }

  int64_t rows, cols, stride, shift;
  std::vector<float> data;
};

// Compares whole allocations, so that a write outside a row shows.
inline void expect_same_bits(const GuardedMatrix& got, const GuardedMatrix& want, const std::string& what) {
  for (size_t i = 0; i < got.data.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(got.data[i]), std::bit_cast<uint32_t>(want.data[i]))
        << what << ": element " << i << " is " << got.data[i] << ", want " << want.data[i];
  }
}

inline constexpr double kEps = 0x1p-24;  // half an ulp of 1

}  // namespace quire::cases
