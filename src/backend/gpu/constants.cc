// SPDX-License-Identifier: Apache-2.0
// Constants in blocks of device memory.
#include "backend/gpu/constants.h"

#include <algorithm>

#include "backend/gpu/grid_math.h"

namespace quire::gpu {

Result<const void*> Constants::upload(std::span<const std::byte> values) {
  constexpr size_t kLeastBlock = size_t{4} << 20;
  const size_t bytes = aligned(std::max<size_t>(values.size(), 1));
  if (blocks_.empty() || used_ + bytes > blocks_.back()->bytes()) {
    QUIRE_ASSIGN(std::unique_ptr<Memory> block, device_.allocate(std::max(bytes, kLeastBlock)));
    blocks_.push_back(std::move(block));
    used_ = 0;
  }
  char* at = static_cast<char*>(blocks_.back()->address()) + used_;
  used_ += bytes;
  device_.upload(at, values.data(), values.size());
  return static_cast<const void*>(at);
}

}  // namespace quire::gpu
