// SPDX-License-Identifier: Apache-2.0
// One GGUF file's bytes into metadata and tensor places, all of it checked; gguf.cc puts files together.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "weights/gguf_metadata.h"
#include "weights/tensor_ref.h"

namespace quire::weights {

// A tensor as the file's table gives it. The data lies inside the file.
struct GgufTensorInfo {
  std::string name;
  std::vector<int64_t> shape;  // outermost first, as TensorRef has it
  uint32_t type = 0;           // ggml's number; a known one
  std::span<const std::byte> data;
};

struct GgufContents {
  int version = 0;
  GgufMetadata metadata;
  std::vector<GgufTensorInfo> tensors;  // in file order
};

// The views in the result point into `bytes`. `file` stands for it in messages.
Result<GgufContents> parse_gguf(std::span<const std::byte> bytes, const std::string& file);

}  // namespace quire::weights
