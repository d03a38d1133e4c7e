// SPDX-License-Identifier: Apache-2.0
// Parses and checks the metadata and the tensor table of one GGUF file; gguf.cc joins the files of a set.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "weights/gguf_metadata.h"
#include "weights/tensor_ref.h"

namespace quire::weights {

// A tensor of the file's table. Its data is inside the file.
struct GgufTensorInfo {
  std::string name;
  std::vector<int64_t> shape;  // outermost first, as in TensorRef
  uint32_t type = 0;           // ggml's number, known to ggml_type()
  std::span<const std::byte> data;
};

struct GgufContents {
  int version = 0;
  GgufMetadata metadata;
  std::vector<GgufTensorInfo> tensors;  // in file order
};

// The views in the result point into `bytes`. `file` is the name to use in messages.
Result<GgufContents> parse_gguf(std::span<const std::byte> bytes, const std::string& file);

}  // namespace quire::weights
