// SPDX-License-Identifier: Apache-2.0
// Blocks: allocation within the system's limits, and the search for the buffer of an address.
#include "backend/metal/metal_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace quire::metal {

// The owner of one block; this is what the layers above the driver hold.
class Block final : public gpu::Memory {
 public:
  Block(std::shared_ptr<Blocks> blocks, void* address, size_t bytes) : blocks_(std::move(blocks)) {
    address_ = address;
    bytes_ = bytes;
  }
  ~Block() override { blocks_->release(address_); }

 private:
  std::shared_ptr<Blocks> blocks_;
};

namespace {

double gib(size_t bytes) {
  return static_cast<double>(bytes) / (1u << 30);
}

}  // namespace

Blocks::Blocks(NS::SharedPtr<MTL::Device> device, NS::SharedPtr<MTL::ResidencySet> residency)
    : device_(std::move(device)), residency_(std::move(residency)) {}

Result<std::unique_ptr<gpu::Memory>> Blocks::allocate(size_t bytes, bool host) {
  const AutoreleasePool pool;
  const size_t most = device_->maxBufferLength();
  if (bytes > most) {
    return exhausted(
        fmt::format("the Metal device allows buffers of at most {:.2f} GiB and one of {:.2f} GiB is needed: lower "
                    "--kv-cache-memory-bytes, or take a smaller model",
                    gib(most), gib(bytes)));
  }
  if (bytes > free_bytes()) {
    return exhausted(fmt::format(
        "the Metal device needs {:.2f} GiB more, but of the {:.2f} GiB that macOS recommends to use at most only "
        "{:.2f} "
        "GiB are free: lower --kv-cache-memory-bytes, --max-num-seqs or --max-model-len, or take a smaller model",
        gib(bytes), gib(device_->recommendedMaxWorkingSetSize()), gib(free_bytes())));
  }
  // An empty block has an address of its own, too; 16 bytes is the widest load of a kernel.
  auto buffer = NS::TransferPtr(device_->newBuffer(std::max<size_t>(bytes, 16), MTL::ResourceStorageModeShared));
  if (!buffer) {
    return exhausted(
        fmt::format("Metal could not allocate a buffer of {:.2f} GiB: close other programs, or lower "
                    "--kv-cache-memory-bytes",
                    gib(bytes)));
  }
  void* const address = buffer->contents();
  if (residency_) {
    residency_->addAllocation(buffer.get());
    unsettled_ = true;
  }
  blocks_.emplace(reinterpret_cast<uintptr_t>(address), Entry{std::move(buffer), bytes, host});
  return std::unique_ptr<gpu::Memory>(std::make_unique<Block>(shared_from_this(), address, bytes));
}

void Blocks::release(const void* address) {
  const auto found = blocks_.find(reinterpret_cast<uintptr_t>(address));
  QUIRE_CHECK(found != blocks_.end(), "a block is released once");
  if (residency_) {
    residency_->removeAllocation(found->second.buffer.get());
    unsettled_ = true;
  }
  blocks_.erase(found);
}

void Blocks::settle() {
  if (!unsettled_) return;
  unsettled_ = false;
  residency_->commit();
  residency_->requestResidency();
}

Place Blocks::find(const void* address, size_t bytes) const {
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  auto found = blocks_.upper_bound(wanted);
  if (found == blocks_.begin()) return {};
  --found;
  const Entry& entry = found->second;
  const size_t offset = wanted - found->first;
  if (offset >= std::max<size_t>(entry.bytes, 1) || bytes > entry.bytes - std::min(offset, entry.bytes)) return {};
  return {entry.buffer.get(), offset, entry.host};
}

Place Blocks::place(const void* address, size_t bytes) const {
  const Place place = find(address, bytes);
  QUIRE_CHECK(place.buffer != nullptr, "the address lies in a block of this device, with room behind it");
  return place;
}

size_t Blocks::free_bytes() const {
  const size_t limit = device_->recommendedMaxWorkingSetSize();
  const size_t used = device_->currentAllocatedSize();
  return limit > used ? limit - used : 0;
}

}  // namespace quire::metal
