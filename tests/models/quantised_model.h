// SPDX-License-Identifier: Apache-2.0
// QuantisedModel: a tiny Llama written to a GGUF file in one weight type, for tests.
#pragma once

#include <filesystem>

#include "llm/options.h"
#include "ops/dtype.h"

namespace quire::testing {

// Made in a temporary folder, removed with the object. Weights come from the Philox rule, quantised by the reference
// quantiser. Rows are 256 and 512 long, so that every type fits.
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
