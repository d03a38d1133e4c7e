// SPDX-License-Identifier: Apache-2.0
// Groups of devices by a group of the host, without NCCL.
#include <algorithm>
#include <vector>

#include "backend/gpu/exchange.h"

namespace quire::gpu {
namespace {

using distributed::DeviceGroup;
using distributed::Group;

std::span<const std::byte> span_of(const void* data, size_t bytes) {
  return {static_cast<const std::byte*>(data), bytes};
}
std::span<std::byte> span_of(void* data, size_t bytes) {
  return {static_cast<std::byte*>(data), bytes};
}

// merge_scatter() of the host: all blocks go everywhere, and each rank merges its own.
void merge(Group& host, std::span<const std::byte> blocks, std::span<std::byte> mine) {
  std::vector<std::byte> all(blocks.size() * static_cast<size_t>(host.size()));
  host.all_gather(blocks, all);
  std::ranges::fill(mine, std::byte{});
  const size_t first = mine.size() * static_cast<size_t>(host.rank());
  for (size_t at = first; at < all.size(); at += blocks.size()) {
    for (size_t i = 0; i < mine.size(); ++i) mine[i] |= all[at + i];
  }
}

class SharedMemoryGroup final : public DeviceGroup {
 public:
  explicit SharedMemoryGroup(Group& host) : host_(host) {}
  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  std::string describe() const override { return host_.describe(); }
  Status all_gather(const void* mine, void* all, size_t bytes, void*) override {
    host_.all_gather(span_of(mine, bytes), span_of(all, bytes * static_cast<size_t>(size())));
    return {};
  }
  Status merge_scatter(const void* blocks, void* mine, size_t bytes, void*) override {
    merge(host_, span_of(blocks, bytes * static_cast<size_t>(size())), span_of(mine, bytes));
    return {};
  }
  Status broadcast(void* data, size_t bytes, int root, void*) override {
    host_.broadcast(span_of(data, bytes), root);
    return {};
  }
  Status send(const void* data, size_t bytes, int to, void*) override {
    host_.send(span_of(data, bytes), to);
    return {};
  }
  Status receive(void* data, size_t bytes, int from, void*) override {
    host_.receive(span_of(data, bytes), from);
    return {};
  }
  bool waits() const override { return true; }
  Status check() const override { return {}; }

 private:
  Group& host_;
};

// Memory of the host is reused from call to call: the wait of a call is also that for the copies of the one before.
class CopiedGroup final : public DeviceGroup {
 public:
  CopiedGroup(Device& device, Group& host) : device_(device), host_(host) {}
  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  std::string describe() const override { return host_.describe() + ", through the host's memory"; }

  Status all_gather(const void* mine, void* all, size_t bytes, void*) override {
    const size_t whole = bytes * static_cast<size_t>(size());
    QUIRE_TRY(take(whole));
    std::byte* own = room() + bytes * static_cast<size_t>(rank());
    QUIRE_TRY(fetch(own, mine, bytes));
    host_.all_gather({own, bytes}, {room(), whole});
    device_.upload(all, room(), whole);
    return {};
  }
  Status merge_scatter(const void* blocks, void* mine, size_t bytes, void*) override {
    const size_t whole = bytes * static_cast<size_t>(size());
    QUIRE_TRY(take(whole + bytes));
    QUIRE_TRY(fetch(room(), blocks, whole));
    merge(host_, {room(), whole}, {room() + whole, bytes});
    device_.upload(mine, room() + whole, bytes);
    return {};
  }
  Status broadcast(void* data, size_t bytes, int root, void*) override {
    QUIRE_TRY(take(bytes));
    QUIRE_TRY(fetch(room(), data, bytes));
    host_.broadcast({room(), bytes}, root);
    if (root != rank()) device_.upload(data, room(), bytes);
    return {};
  }
  Status send(const void* data, size_t bytes, int to, void*) override {
    QUIRE_TRY(take(bytes));
    QUIRE_TRY(fetch(room(), data, bytes));
    host_.send({room(), bytes}, to);
    return {};
  }
  Status receive(void* data, size_t bytes, int from, void*) override {
    QUIRE_TRY(take(bytes));
    QUIRE_TRY(device_.synchronise());
    host_.receive({room(), bytes}, from);
    device_.upload(data, room(), bytes);
    return {};
  }
  bool waits() const override { return true; }
  Status check() const override { return {}; }

 private:
  std::byte* room() const { return static_cast<std::byte*>(pinned_->address()); }
  Status take(size_t bytes) {
    if (pinned_ != nullptr && pinned_->bytes() >= bytes) return {};
    QUIRE_TRY(device_.synchronise());
    QUIRE_ASSIGN(pinned_, device_.allocate_host(bytes));
    return {};
  }
  Status fetch(std::byte* to, const void* from, size_t bytes) {
    device_.download(to, from, bytes);
    return device_.synchronise();
  }

  Device& device_;
  Group& host_;
  std::unique_ptr<Memory> pinned_;
};

}  // namespace

std::unique_ptr<DeviceGroup> make_shared_memory_group(Group& host) {
  return std::make_unique<SharedMemoryGroup>(host);
}

std::unique_ptr<DeviceGroup> make_copied_group(Device& device, Group& host) {
  return std::make_unique<CopiedGroup>(device, host);
}

}  // namespace quire::gpu
