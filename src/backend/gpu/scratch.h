// SPDX-License-Identifier: Apache-2.0
// Scratch: device memory between the launches of one op.
#pragma once

#include <memory>
#include <vector>

#include "backend/gpu/device.h"

namespace quire::gpu {

// A block that only grows. What an op writes there is dead when the op ends, so all calls of one kind of op share it.
// Owned by the backend and used from its thread.
// REQUIRES: grow() finds enough memory while a step is recorded, because the launches that were queued before keep the
// old address. Therefore the first step of a shape runs unrecorded.
class Scratch {
 public:
  explicit Scratch(Device& device) : device_(device) {}

  // At least so many bytes; a failed allocation ends the program.
  void* grow(size_t bytes);
  // Allocates so much at load, so that grow() need not; the error is the device's.
  Status reserve(size_t bytes);
  size_t bytes() const { return blocks_.empty() ? 0 : blocks_.back()->bytes(); }
  // Zeroes all of it, old blocks too: recorded steps may still use them.
  void clear();

 private:
  Device& device_;
  std::vector<std::unique_ptr<Memory>> blocks_;  // the last is in use; queued work may still read the others
};

}  // namespace quire::gpu
