// SPDX-License-Identifier: Apache-2.0
// Session: one GPU's primary context, its streams and its memory.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "backend/cuda/driver.h"
#include "backend/gpu/device.h"

namespace quire::cuda {

// Sizes of blocks by their first address.
using Blocks = std::map<uintptr_t, size_t>;
// Whether [address, address + bytes) lies in one of them.
bool lies_in(const Blocks& blocks, const void* address, size_t bytes);

// Shared by the device and by every block of memory and graph that was made on it, so that they may be freed in any
// order. Used by one thread at a time, not always the same one.
class Session {
 public:
  static Result<std::shared_ptr<Session>> open(std::shared_ptr<const Driver> driver, int index);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const Driver& driver() const { return *driver_; }
  const DriverApi& api() const { return driver_->api(); }
  DeviceId device() const { return device_; }
  Stream stream() const { return stream_; }
  int attribute(int attribute) const;  // 0 where the driver does not know it
  // Makes the context current on the calling thread. Every public function of a device begins with it.
  void bind() const;

  size_t free_bytes() const;
  // Device memory, zeroed on the stream (while that is recording, on a second stream, before the call returns).
  static Result<std::unique_ptr<gpu::Memory>> allocate(const std::shared_ptr<Session>& self, size_t bytes);
  static Result<std::unique_ptr<gpu::Memory>> allocate_host(const std::shared_ptr<Session>& self, size_t bytes);
  // Whether the stream is being captured. Nothing may wait for it then.
  bool recording() const { return recording_; }
  void set_recording(bool recording) { recording_ = recording; }
  const Blocks& device_blocks() const { return device_blocks_; }
  const Blocks& host_blocks() const { return host_blocks_; }

 private:
  class DeviceMemory;
  class HostMemory;

  Session(std::shared_ptr<const Driver> driver, DeviceId device);

  std::shared_ptr<const Driver> driver_;
  DeviceId device_;
  uint64_t serial_;  // two sessions may have had the same context handle, but never the same number
  Context context_ = nullptr;
  Stream stream_ = nullptr, side_ = nullptr;
  bool recording_ = false;
  Blocks device_blocks_, host_blocks_;
};

}  // namespace quire::cuda
