// SPDX-License-Identifier: Apache-2.0
// Adapter: a LoRA adapter that was read and arranged for one loaded model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "ops/dtype.h"

namespace quire::model {

// What a model is prepared for. Memory for `slots` adapters of rank max_rank in all modules, or in those that `targets`
// names, is taken at load.
struct AdapterLimits {
  int64_t slots = 0;  // different adapters in one step; 0: the model takes none
  int64_t max_rank = 16;
  std::optional<DType> dtype;  // of A and B; none: that of the model's weights
  // Parts of modules' names, such as "q_proj" or "mlp.experts"; empty: all modules.
  std::vector<std::string> targets = {};

  bool on() const { return slots > 0; }
};

// Immutable; any thread may hold it. Whoever uses it keeps it alive.
struct Adapter {
  uint64_t id = 0;  // counts the loads of this process: a file that is loaded again has another one
  std::filesystem::path path;
  std::string digest;            // weights::AdapterFiles::digest()
  int64_t rank = 0;              // the largest of its modules
  std::vector<std::byte> image;  // what a slot holds (backend/lora_image.h)
  Sha256::Value shape{};         // a digest of which modules it adapts with which ranks: the same on every rank
};
using AdapterPtr = std::shared_ptr<const Adapter>;

}  // namespace quire::model
