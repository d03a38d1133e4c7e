// SPDX-License-Identifier: Apache-2.0
// Constants: arrays that are made once, at load: norm weights, biases, tables of cosines and sines.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "backend/gpu/device.h"

namespace quire::gpu {

// Packs constants into blocks, because a model has thousands of small ones. They live as long as this object. Owned by
// the backend and used from its thread.
class Constants {
 public:
  explicit Constants(Device& device) : device_(device) {}
  // A copy of `values` in device memory.
  Result<const void*> upload(std::span<const std::byte> values);

 private:
  Device& device_;
  std::vector<std::unique_ptr<Memory>> blocks_;
  size_t used_ = 0;  // bytes of the last block
};

}  // namespace quire::gpu
