// SPDX-License-Identifier: Apache-2.0
// QuantisedModel: a tiny Llama, written to a GGUF file with one weight type, for tests.
#pragma once

#include <filesystem>

#include "llm/options.h"
#include "ops/dtype.h"

namespace quire::testing {

// Created in a temporary folder, which is removed with the object. Weights follow the Philox rule of the dummy weights,
// and are quantised by the reference quantiser. Rows have 256 and 512 elements, so that every type fits.
class QuantisedModel {
 public:
  explicit QuantisedModel(DType type);
  ~QuantisedModel();
  llm::Options options() const;
  int64_t vocab() const;

 private:
  std::filesystem::path file_;
};

}  // namespace quire::testing
