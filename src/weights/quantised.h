// SPDX-License-Identifier: Apache-2.0
// The quantised linears of safetensors checkpoints (MLX, AWQ, GPTQ, FP8, compressed-tensors, MXFP4) as matrices that a
// backend packs.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "ops/linear.h"
#include "weights/quant_scheme.h"
#include "weights/tensor_ref.h"

namespace quire::weights {

// One matrix with its own memory. Its type is
//   G4         codes of up to 4 bits: MLX 2, 3, 4; AWQ; GPTQ 2, 3, 4; compressed-tensors up to 4
//   G8         codes of up to 8 bits: MLX 5, 6, 8; GPTQ 8; compressed-tensors 5 to 8, and int8
//   MXFP4      GPT-OSS, and MLX's mode of that name
//   BF16, F32  fp8 times its scale, rounded once; F32 too where groups are no multiples of 32, or are torn apart
// with w = scale * code + min in float32: min is MLX's bias, or -(scale * zero) in double rounded once.
struct LoadedMatrix {
  DType dtype = DType::kF32;
  int64_t n = 0;
  int64_t k = 0;
  int64_t group = 0;  // G4, G8
  std::vector<std::byte> data;
  std::vector<float> scales, mins;  // G4, G8: [n, k / group]
  // Not empty (act-order): column j meets column column_order[j] of x; gather_columns makes that x.
  std::vector<int32_t> column_order;
  std::vector<std::string> tensors;  // what was read, or belongs to it and is not needed
  int64_t bytes_read = 0;

  RawMatrix raw() const;
  // All weights as floats [n, k], columns in the file's order.
  std::vector<float> values() const;
};

struct QuantRequest {
  std::string_view prefix;  // as QuantScheme::applies_to
  int64_t n = 0;
  int64_t k = 0;
  int64_t expert = -1;      // which one of a stack of experts [experts, ...]; -1: no stack
  bool want_f32 = false;    // fp8 becomes F32, not BF16
  bool may_reorder = true;  // false: act-order becomes F32 instead, with no column_order
};

// The rows n of the linear (or embedding) of that name, plain or quantised, as its tensor's shape says; 0 where there
// is none, or of a shape that no format has. Only the header is read.
int64_t output_rows(const WeightSource& source, const QuantScheme& scheme, std::string_view prefix);

// The linear of that name, which the scheme applies to. Whatever is in the file is checked: an Error names the tensor.
// The file's pages are given back.
Result<LoadedMatrix> load_quantised(const WeightSource& source, const QuantScheme& scheme, const QuantRequest& request);

}  // namespace quire::weights
