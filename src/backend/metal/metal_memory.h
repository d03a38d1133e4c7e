// SPDX-License-Identifier: Apache-2.0
// Blocks: the Metal buffers that are alive, found by any address inside them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "backend/gpu/device.h"
#include "backend/metal/metal_cpp.h"
#include "base/result.h"

namespace quire::metal {

// Where an address lies, in the words that Metal's encoders take.
struct Place {
  MTL::Buffer* buffer = nullptr;
  size_t offset = 0;
  bool host = false;  // of allocate_host()
};

// All memory of one device. An Apple GPU shares the host's memory, so a block is one buffer in shared storage whose
// address is the one that the host sees: nothing is ever copied to "the device". Kernels name memory by address; Metal
// binds objects, so place() finds the buffer, in an ordered map, and the rest is an offset.
//
// Owned by the device and by each block's owner together: a block may outlive the device, and gives its buffer back all
// the same. Command buffers retain what they use, so a block may also die while the GPU still reads it.
// One thread at a time.
class Blocks : public std::enable_shared_from_this<Blocks> {
 public:
  // `residency` is null where the system has no residency sets (before macOS 15).
  Blocks(NS::SharedPtr<MTL::Device> device, NS::SharedPtr<MTL::ResidencySet> residency);

  // Zeroed memory, as Metal promises of a new buffer. An Error when the working set that the system recommends, or the
  // largest buffer that it allows, would be passed.
  Result<std::unique_ptr<gpu::Memory>> allocate(size_t bytes, bool host);
  // The buffer that holds `bytes` bytes from `address`; CHECKs that there is one.
  Place place(const void* address, size_t bytes) const;
  // The same, but {} for memory that is not the device's.
  Place find(const void* address, size_t bytes) const;
  // Tells the system of the blocks that came and went; to be called before work that uses them is committed.
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
  bool unsettled_ = false;             // residency_ has changes that were not committed
  std::map<uintptr_t, Entry> blocks_;  // by first address
};

}  // namespace quire::metal
