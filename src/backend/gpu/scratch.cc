// SPDX-License-Identifier: Apache-2.0
// Memory between the launches of one op.
#include "backend/gpu/scratch.h"

#include "backend/gpu/device_failure.h"
#include "backend/gpu/grid_math.h"

namespace quire::gpu {

void* Scratch::grow(size_t bytes) {
  if (blocks_.empty() || blocks_.back()->bytes() < bytes) {
    blocks_.push_back(require(device_.allocate(aligned(bytes + bytes / 2))));
  }
  return blocks_.back()->address();
}

Status Scratch::reserve(size_t bytes) {
  if (bytes <= this->bytes()) return {};
  QUIRE_ASSIGN(std::unique_ptr<Memory> block, device_.allocate(bytes));
  blocks_.push_back(std::move(block));
  return {};
}

void Scratch::clear() {
  for (const auto& block : blocks_) device_.fill(block->address(), 0, block->bytes());
}

}  // namespace quire::gpu
