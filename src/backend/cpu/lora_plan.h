// SPDX-License-Identifier: Apache-2.0
// LoraBlock: rows of a step that have the same adapter, as the kernels of lora take them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/lora.h"

namespace quire::cpu {

inline constexpr int64_t kLoraRows = 16;  // of a block, at most

struct LoraBlock {
  const std::byte* slot = nullptr;
  LoraSite site;
  int64_t count = 0;
  int64_t rows[kLoraRows] = {};  // of x and out
};

}  // namespace quire::cpu
