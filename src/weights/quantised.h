// SPDX-License-Identifier: Apache-2.0
// Loads the quantised linears of safetensors checkpoints (MLX, AWQ, GPTQ, FP8, compressed-tensors, MXFP4) as matrices
// that a backend can pack.
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

// One matrix that owns its memory. Its type is
//   G4         codes of up to 4 bits: MLX 2, 3, 4; AWQ; GPTQ 2, 3, 4; compressed-tensors up to 4
//   G8         codes of up to 8 bits: MLX 5, 6, 8; GPTQ 8; compressed-tensors 5 to 8, and int8
//   MXFP4      GPT-OSS, and MLX's mode of that name
//   GF8        E4M3, where QuantRequest::keep_fp8 asks for it and fp8_group() is not 0
//   BF16, F32  other fp8: times its scale, rounded once; F32 also if groups are not multiples of 32 or not consecutive
// with w = scale * code + min (GF8: scale * code) in float32: min is MLX's bias, or -(scale * zero) in double rounded
// once.
struct LoadedMatrix {
  DType dtype = DType::kF32;
  int64_t n = 0;
  int64_t k = 0;
  int64_t group = 0;  // G4, G8, GF8
  std::vector<std::byte> data;
  std::vector<float> scales, mins;  // G4, G8, GF8: [n, k / group]; GF8 has no mins
  // Not empty (act-order): column j is multiplied with column column_order[j] of x; gather_columns reorders x.
  std::vector<int32_t> column_order;
  std::vector<std::string> tensors;  // all tensors of the linear, those not needed included
  int64_t bytes_read = 0;

  RawMatrix raw() const;
  // All weights as floats [n, k], columns in the file's order. REQUIRES: not GF8.
  std::vector<float> values() const;
};

struct QuantRequest {
  std::string_view prefix;  // as QuantScheme::applies_to
  int64_t n = 0;
  int64_t k = 0;
  int64_t expert = -1;      // which one of a stack of experts [experts, ...]; -1: no stack
  bool want_f32 = false;    // fp8 becomes F32 instead of BF16
  bool may_reorder = true;  // false: act-order becomes F32 instead, with no column_order
  bool keep_fp8 = false;    // E4M3 stays one byte per weight (GF8) where that is possible
};

// n, the rows of the linear (or embedding) of that name, plain or quantised, from the shape of its tensor; 0 if it does
// not exist or has a shape that no format has. Reads only the header.
int64_t output_rows(const WeightSource& source, const QuantScheme& scheme, std::string_view prefix);

// The size of the groups that the linear has as GF8, from the types and shapes of its tensors; 0 if it cannot be GF8:
// it is not E4M3, or no multiple of 32 divides both its rows and its blocks.
int64_t fp8_group(const WeightSource& source, const QuantScheme& scheme, const QuantRequest& request);

// The linear of that name. REQUIRES: scheme.applies_to() it. Checks all of its tensors; an Error names the wrong one.
// Releases the file's pages afterwards.
Result<LoadedMatrix> load_quantised(const WeightSource& source, const QuantScheme& scheme, const QuantRequest& request);

}  // namespace quire::weights
