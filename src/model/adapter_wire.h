// SPDX-License-Identifier: Apache-2.0
// An open adapter as bytes, for the other ranks of a model: each arranges its own part of it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "weights/adapter.h"

namespace quire::model {

// Appends the adapter with its tensors.
void write_adapter(const weights::AdapterFiles& files, std::vector<std::byte>& to);
// Reads what write_adapter() wrote. The tensors are valid as long as `memory`.
struct ReceivedAdapter {
  weights::AdapterFiles files;
  std::shared_ptr<const void> memory;
};
Result<ReceivedAdapter> read_adapter(std::span<const std::byte> from);

// A module of the model that a rank adapts, and what an adapter must agree with.
struct AdaptedModule {
  std::string name;
  bool gguf = false;  // the name is GGUF's
  bool embedding = false;
  int64_t rows = 0, k = 0;
  int64_t experts = 0, hidden = 0, inner = 0, gate_up = 0;  // of all experts of a layer; else 0
};
void write_modules(const std::vector<AdaptedModule>& modules, std::vector<std::byte>& to);
Result<std::vector<AdaptedModule>> read_modules(std::span<const std::byte> from);

}  // namespace quire::model
