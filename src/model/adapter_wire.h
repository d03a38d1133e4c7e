// SPDX-License-Identifier: Apache-2.0
// An open adapter as bytes, for the other ranks of a model: each arranges its own part of it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
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

}  // namespace quire::model
