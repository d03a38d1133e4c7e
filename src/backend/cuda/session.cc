// SPDX-License-Identifier: Apache-2.0
// Context, streams and memory of one GPU.
#include "backend/cuda/session.h"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <utility>

namespace quire::cuda {
namespace {

thread_local uint64_t bound_session = 0;

std::string gigabytes(size_t bytes) {
  char text[48];
  std::snprintf(text, sizeof text, "%.2f GiB", static_cast<double>(bytes) / (1 << 30));
  return text;
}

void forget(Blocks& blocks, const void* address) {
  blocks.erase(reinterpret_cast<uintptr_t>(address));
}

}  // namespace

bool lies_in(const Blocks& blocks, const void* address, size_t bytes) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  auto next = blocks.upper_bound(at);
  if (next == blocks.begin()) return false;
  --next;
  return at - next->first <= next->second && bytes <= next->second - (at - next->first);
}

class Session::DeviceMemory : public gpu::Memory {
 public:
  DeviceMemory(std::shared_ptr<Session> session, Address address, size_t bytes) : session_(std::move(session)) {
    address_ = reinterpret_cast<void*>(address);
    bytes_ = bytes;
    session_->device_blocks_[address] = bytes;
  }
  ~DeviceMemory() override {
    session_->bind();
    forget(session_->device_blocks_, address_);
    session_->api().cuMemFree_v2(reinterpret_cast<Address>(address_));  // waits for what was queued before
  }

 private:
  std::shared_ptr<Session> session_;
};

class Session::HostMemory : public gpu::Memory {
 public:
  HostMemory(std::shared_ptr<Session> session, void* address, size_t bytes) : session_(std::move(session)) {
    address_ = address;
    bytes_ = bytes;
    session_->host_blocks_[reinterpret_cast<uintptr_t>(address)] = bytes;
  }
  ~HostMemory() override {
    session_->bind();
    // A queued copy may still read or write it.
    if (!session_->recording_) session_->api().cuStreamSynchronize(session_->stream_);
    forget(session_->host_blocks_, address_);
    session_->api().cuMemFreeHost(address_);
  }

 private:
  std::shared_ptr<Session> session_;
};

Session::Session(std::shared_ptr<const Driver> driver, DeviceId device)
    : driver_(std::move(driver)), device_(device), serial_([] {
        static std::atomic<uint64_t> next{1};
        return next++;
      }()) {}

Result<std::shared_ptr<Session>> Session::open(std::shared_ptr<const Driver> driver, int index) {
  const DriverApi& api = driver->api();
  DeviceId device = 0;
  if (const Code code = api.cuDeviceGet(&device, index)) return driver->error("cuDeviceGet", code);
  const std::shared_ptr<Session> out(new Session(std::move(driver), device));
  if (const Code code = api.cuDevicePrimaryCtxRetain(&out->context_, device)) {
    return out->driver().error("cuDevicePrimaryCtxRetain", code);
  }
  out->bind();
  for (Stream* stream : {&out->stream_, &out->side_}) {
    if (const Code code = api.cuStreamCreate(stream, kStreamNonBlocking)) {
      return out->driver().error("cuStreamCreate", code);
    }
  }
  return out;
}

Session::~Session() {
  if (context_ == nullptr) return;
  bind();
  for (Stream stream : {stream_, side_}) {
    if (stream != nullptr) api().cuStreamDestroy_v2(stream);
  }
  api().cuDevicePrimaryCtxRelease_v2(device_);
  bound_session = 0;
}

int Session::attribute(int attribute) const {
  int value = 0;
  return api().cuDeviceGetAttribute(&value, attribute, device_) == kSuccess ? value : 0;
}

void Session::bind() const {
  if (bound_session == serial_) return;
  api().cuCtxSetCurrent(context_);
  bound_session = serial_;
}

size_t Session::free_bytes() const {
  bind();
  size_t free = 0, total = 0;
  return api().cuMemGetInfo_v2(&free, &total) == kSuccess ? free : 0;
}

Result<std::unique_ptr<gpu::Memory>> Session::allocate(const std::shared_ptr<Session>& self, size_t bytes) {
  self->bind();
  const DriverApi& api = self->api();
  Address address = 0;
  if (const Code code = api.cuMemAlloc_v2(&address, bytes == 0 ? 1 : bytes)) {
    std::string advice;
    if (code == kOutOfMemory) {
      advice = gigabytes(bytes) + " were asked for and " + gigabytes(self->free_bytes()) +
               " are free; free memory on the GPU, or ask for less (--kv-cache-memory-bytes)";
    }
    return self->driver().error("cuMemAlloc", code, advice);
  }
  auto out = std::make_unique<DeviceMemory>(self, address, bytes);
  const Stream stream = self->recording_ ? self->side_ : self->stream_;
  if (bytes > 0) {
    if (const Code code = api.cuMemsetD8Async(address, 0, bytes, stream)) {
      return self->driver().error("cuMemsetD8Async", code);
    }
  }
  if (self->recording_) {
    if (const Code code = api.cuStreamSynchronize(stream)) return self->driver().error("cuStreamSynchronize", code);
  }
  return std::unique_ptr<gpu::Memory>(std::move(out));
}

Result<std::unique_ptr<gpu::Memory>> Session::allocate_host(const std::shared_ptr<Session>& self, size_t bytes) {
  self->bind();
  void* address = nullptr;
  if (const Code code = self->api().cuMemHostAlloc(&address, bytes == 0 ? 1 : bytes, 0)) {
    return self->driver().error(
        "cuMemHostAlloc", code,
        code == kOutOfMemory ? "the system would not lock " + gigabytes(bytes) + " of memory" : "");
  }
  std::memset(address, 0, bytes);
  return std::unique_ptr<gpu::Memory>(std::make_unique<HostMemory>(self, address, bytes));
}

}  // namespace quire::cuda
