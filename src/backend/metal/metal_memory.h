// SPDX-License-Identifier: Apache-2.0
// Blocks: the live Metal buffers, found by any address inside them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "backend/gpu/device.h"
#include "backend/metal/metal_cpp.h"
#include "base/result.h"

namespace quire::metal {

// An address as Metal's encoders take it: a buffer and an offset.
struct Place {
  MTL::Buffer* buffer = nullptr;
  size_t offset = 0;
  bool host = false;  // from allocate_host()
};

// All memory of one device. An Apple GPU shares the host's memory, so a block is one buffer in shared storage with the
// same address for both; nothing is copied to the device. The interface above names memory by address, but Metal binds
// buffer objects: place() finds the buffer in an ordered map, and the offset in it.
//
// Owned jointly by the device and by the owners of the blocks: a block may outlive the device and still releases its
// buffer. Command buffers retain what they use, so a block may also be freed while the GPU still reads it. Not
// thread-safe: one thread at a time.
class Blocks : public std::enable_shared_from_this<Blocks> {
 public:
  // `residency` is null if the system has no residency sets (before macOS 15).
  Blocks(NS::SharedPtr<MTL::Device> device, NS::SharedPtr<MTL::ResidencySet> residency);

  // Zeroed memory, which Metal guarantees for a new buffer. An Error if it would exceed the working set that the system
  // recommends, or the largest buffer that it allows.
  Result<std::unique_ptr<gpu::Memory>> allocate(size_t bytes, bool host);
  // The buffer that holds `bytes` bytes from `address` on. REQUIRES: there is one.
  Place place(const void* address, size_t bytes) const;
  // The same, but {} if the memory is not the device's.
  Place find(const void* address, size_t bytes) const;
  // Commits changes of the residency set; call it before committing work that uses new blocks.
  void settle();
  size_t count() const { return blocks_.size(); }
  size_t free_bytes() const;

 private:
  friend class Block;
  struct Entry {
    NS::SharedPtr<MTL::Buffer> buffer;
    size_t bytes = 0;
    bool host = false;
  };
  void release(const void* address);

  NS::SharedPtr<MTL::Device> device_;
  NS::SharedPtr<MTL::ResidencySet> residency_;
  bool unsettled_ = false;             // residency_ has changes that are not committed
  std::map<uintptr_t, Entry> blocks_;  // by first address
};

}  // namespace quire::metal
