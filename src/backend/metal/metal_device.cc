// SPDX-License-Identifier: Apache-2.0
// The Metal driver: one queue, launches encoded in order, host and GPU on the same memory.
#define NS_PRIVATE_IMPLEMENTATION
#define MTL_PRIVATE_IMPLEMENTATION
#include "backend/metal/metal_device.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "backend/metal/metal_cores.h"
#include "backend/metal/metal_cpp.h"
#include "backend/metal/metal_memory.h"
#include "backend/metal/metal_pipelines.h"
#include "base/check.h"
#include "base/env.h"
#include "kernels/embedded.h"

namespace quire::metal {
namespace {

using gpu::Kernel;
using gpu::Launch;
using gpu::Memory;

// A step of a model of usual depth fits into one command buffer. A longer step is divided, so that the GPU starts with
// its first part while the host still encodes the rest.
constexpr int kLaunchesPerCommand = 256;
// Most command buffers in flight. A queue has 64 and then blocks; half of that is more than is ever useful.
constexpr size_t kMostRunning = 32;
// Copies between ordinary host memory and memory that queued work uses go through a staging buffer of up to this size.
// A larger copy waits for the work instead, which costs less than holding the data twice.
constexpr size_t kStagingBytes = 1 << 20;
// Metal on a Mac copies and fills whole words of 4 bytes.
constexpr size_t kBlitAlignment = 4;
constexpr size_t kMostParams = 4096;  // the limit of setBytes
constexpr size_t kMostBuffers = 16;

// Host memory for the bytes of uploads and downloads while they wait for the GPU; filled from the front.
struct Staging {
  NS::SharedPtr<MTL::Buffer> buffer;
  size_t used = 0;
};

// A download whose bytes are in staging memory once its command buffer has completed.
struct Arrival {
  void* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;
};

// A command buffer, and what must happen when it completes.
struct Command {
  uint64_t serial = 0;
  NS::SharedPtr<MTL::CommandBuffer> buffer;
  std::vector<Staging> staging;
  std::vector<Arrival> arrivals;
};

std::string words(const NS::Error* error) {
  if (error == nullptr || error->localizedDescription() == nullptr) return "no reason given";
  return error->localizedDescription()->utf8String();
}

// Order. All work goes to one queue. Launches are encoded into one serial compute encoder, in which a dispatch starts
// when the previous one has ended and its writes are visible. Copies and fills go to a blit encoder of the same command
// buffer. Buffers keep Metal's hazard tracking, which orders encoders and command buffers that use the same buffer. (A
// concurrent encoder with barriers would let independent launches overlap. A decoder's layers have hardly any, and no
// test without the hardware could check that all barriers are there.)
//
// Copies by the host. Memory is shared, so an upload is a memcpy if no work in flight could still read what it
// overwrites. Otherwise the bytes wait in staging memory, and a blit copies them in queue order. A download goes the
// other way, and reaches the host's memory when its command buffer is found to be complete. What does not fit (too
// large, or not whole words) first waits for the queue to become empty.
//
// Command buffers are committed when a mark or a wait requires it, or when they are full; never for a single launch.
class MetalDevice final : public gpu::Device {
 public:
  MetalDevice(NS::SharedPtr<MTL::Device> device, NS::SharedPtr<MTL::CommandQueue> queue,
              NS::SharedPtr<MTL::ResidencySet> residency, const OpenOptions& options);
  ~MetalDevice() override;

  size_t free_bytes() const override;
  Result<std::unique_ptr<Memory>> allocate(size_t bytes) override { return allocate(bytes, false); }
  Result<std::unique_ptr<Memory>> allocate_host(size_t bytes) override { return allocate(bytes, true); }
  Result<const Kernel*> kernel(std::string_view name) override;
  bool has_kernel(std::string_view name) override { return pipelines_->has(name); }
  std::vector<std::string> kernel_names() const override;
  void launch(const Launch& launch) override;
  void upload(void* to, const void* from, size_t bytes) override;
  void download(void* to, const void* from, size_t bytes) override;
  void copy(void* to, const void* from, size_t bytes) override;
  void fill(void* to, uint8_t value, size_t bytes) override;
  Status synchronise() override;
  uint64_t mark() override;
  Status wait(uint64_t mark) override;

 private:
  Result<std::unique_ptr<Memory>> allocate(size_t bytes, bool host);
  void describe();
  Command& open_command();
  MTL::ComputeCommandEncoder* compute();
  MTL::BlitCommandEncoder* blit();
  void end_encoders();
  void commit();
  void reap();       // handles all commands that have completed
  void await_one();  // waits for the oldest command
  void finish(Command command);
  void finish_all();
  bool idle();
  void blit_copy(const Place& to, const Place& from, size_t bytes);
  Place stage(size_t bytes);
  Status status() const { return fault_ ? Status(*fault_) : Status(); }

  NS::SharedPtr<MTL::Device> device_;
  NS::SharedPtr<MTL::CommandQueue> queue_;
  NS::SharedPtr<MTL::ResidencySet> residency_;
  std::shared_ptr<Blocks> blocks_;
  std::unique_ptr<Pipelines> pipelines_;
  NS::SharedPtr<MTL::Buffer> nothing_;  // bound for null buffers, because Metal requires every argument to be bound

  std::optional<Command> open_;  // the one being encoded
  NS::SharedPtr<MTL::ComputeCommandEncoder> compute_;
  NS::SharedPtr<MTL::BlitCommandEncoder> blit_;
  const MTL::ComputePipelineState* pipeline_ = nullptr;  // the pipeline that compute_ has set
  std::array<Place, kMostBuffers> bound_;                // the buffers that compute_ has bound
  int encoded_ = 0;                                      // launches and copies in open_

  std::deque<Command> running_;  // committed, oldest first
  std::vector<Staging> spare_;   // staging memory that no command uses
  uint64_t last_serial_ = 0;
  std::optional<Error> fault_;  // the GPU's first failure; final
};

MetalDevice::MetalDevice(NS::SharedPtr<MTL::Device> device, NS::SharedPtr<MTL::CommandQueue> queue,
                         NS::SharedPtr<MTL::ResidencySet> residency, const OpenOptions& options)
    : device_(std::move(device)),
      queue_(std::move(queue)),
      residency_(std::move(residency)),
      blocks_(std::make_shared<Blocks>(device_, residency_)),
      pipelines_(std::make_unique<Pipelines>(device_, options.texts, options.archive_folder)),
      nothing_(NS::TransferPtr(device_->newBuffer(256, MTL::ResourceStorageModeShared))) {
  if (residency_) queue_->addResidencySet(residency_.get());
  describe();
}

MetalDevice::~MetalDevice() {
  const AutoreleasePool pool;
  finish_all();
  if (residency_) queue_->removeResidencySet(residency_.get());
}

void MetalDevice::describe() {
  const AutoreleasePool pool;
  info_.api = gpu::Api::kMetal;
  info_.name = device_->name()->utf8String();
  for (int family = MTL::GPUFamilyApple10; family >= MTL::GPUFamilyApple7; family--) {
    if (device_->supportsFamily(static_cast<MTL::GPUFamily>(family))) {
      info_.architecture = fmt::format("apple{}", family - MTL::GPUFamilyApple1 + 1);
      break;
    }
  }
  const int cores = gpu_cores();
  info_.compute_units = cores > 0 ? cores : 8;  // the smallest chips of the first generation have 7 or 8
  info_.max_threads = static_cast<int>(device_->maxThreadsPerThreadgroup().width);
  info_.max_threadgroup_memory = device_->maxThreadgroupMemoryLength();
  info_.memory_bytes = NS::ProcessInfo::processInfo()->physicalMemory();
  info_.working_set_bytes = device_->recommendedMaxWorkingSetSize();
  info_.unified = true;
  info_.graphs = false;
  info_.asynchronous = true;
}

// --- memory and kernels

size_t MetalDevice::free_bytes() const {
  const AutoreleasePool pool;
  return blocks_->free_bytes();
}

Result<std::unique_ptr<Memory>> MetalDevice::allocate(size_t bytes, bool host) {
  // Freed blocks are still held by the commands that use them, so wait for these before reporting failure.
  if (bytes > free_bytes()) {
    QUIRE_TRY(synchronise());
    spare_.clear();
  }
  return blocks_->allocate(bytes, host);
}

Result<const Kernel*> MetalDevice::kernel(std::string_view name) {
  QUIRE_ASSIGN(const MetalKernel* found, pipelines_->kernel(name));
  return static_cast<const Kernel*>(found);
}

std::vector<std::string> MetalDevice::kernel_names() const {
  return pipelines_->names();
}

// --- encoding

Command& MetalDevice::open_command() {
  if (open_) return *open_;
  const AutoreleasePool pool;
  open_.emplace();
  open_->serial = ++last_serial_;
  open_->buffer = NS::RetainPtr(queue_->commandBuffer());
  QUIRE_CHECK(static_cast<bool>(open_->buffer), "a queue has 64 command buffers, and fewer are in flight");
  encoded_ = 0;
  return *open_;
}

MTL::ComputeCommandEncoder* MetalDevice::compute() {
  if (compute_) return compute_.get();
  Command& command = open_command();
  const AutoreleasePool pool;
  end_encoders();
  compute_ = NS::RetainPtr(command.buffer->computeCommandEncoder(MTL::DispatchTypeSerial));
  pipeline_ = nullptr;
  bound_.fill({});
  return compute_.get();
}

MTL::BlitCommandEncoder* MetalDevice::blit() {
  if (blit_) return blit_.get();
  Command& command = open_command();
  const AutoreleasePool pool;
  end_encoders();
  blit_ = NS::RetainPtr(command.buffer->blitCommandEncoder());
  return blit_.get();
}

void MetalDevice::end_encoders() {
  if (compute_) compute_->endEncoding();
  if (blit_) blit_->endEncoding();
  compute_.reset();
  blit_.reset();
}

// No autorelease pool here: the calls below create no objects, and a step makes hundreds of them.
void MetalDevice::launch(const Launch& launch) {
  if (fault_) return;
  QUIRE_CHECK(launch.kernel != nullptr && launch.params_bytes > 0 && launch.params_bytes <= kMostParams);
  QUIRE_CHECK(launch.buffers.size() <= kMostBuffers && launch.dynamic_memory == 0);
  QUIRE_CHECK(launch.grid.x > 0 && launch.grid.y > 0 && launch.grid.z > 0, "a launch has threadgroups");
  QUIRE_CHECK(launch.threads > 0 && launch.threads % 32 == 0 &&
                  static_cast<int>(launch.threads) <= launch.kernel->max_threads(),
              launch.kernel->name().c_str());
  MTL::ComputeCommandEncoder* const encoder = compute();
  const auto* pipeline = static_cast<const MetalKernel*>(launch.kernel)->pipeline();
  if (pipeline != pipeline_) encoder->setComputePipelineState(pipeline);
  pipeline_ = pipeline;
  encoder->setBytes(launch.params, launch.params_bytes, 0);
  for (size_t i = 0; i < launch.buffers.size(); i++) {
    const void* address = launch.buffers[i];
    const Place place = address == nullptr ? Place{nothing_.get(), 0, false} : blocks_->place(address, 0);
    Place& bound = bound_[i];
    if (place.buffer != bound.buffer) {
      encoder->setBuffer(place.buffer, place.offset, i + 1);
    } else if (place.offset != bound.offset) {
      encoder->setBufferOffset(place.offset, i + 1);
    }
    bound = place;
  }
  encoder->dispatchThreadgroups(MTL::Size(launch.grid.x, launch.grid.y, launch.grid.z),
                                MTL::Size(launch.threads, 1, 1));
  if (++encoded_ >= kLaunchesPerCommand) commit();
}

// --- copies

bool MetalDevice::idle() {
  reap();
  return !open_ && running_.empty();
}

void MetalDevice::blit_copy(const Place& to, const Place& from, size_t bytes) {
  blit()->copyFromBuffer(from.buffer, from.offset, to.buffer, to.offset, bytes);
  if (++encoded_ >= kLaunchesPerCommand) commit();
}

// Returns room for `bytes` in shared memory, valid until the open command has completed.
Place MetalDevice::stage(size_t bytes) {
  std::vector<Staging>& staging = open_command().staging;
  if (staging.empty() || staging.back().used + bytes > kStagingBytes) {
    if (spare_.empty()) {
      spare_.push_back({NS::TransferPtr(device_->newBuffer(kStagingBytes, MTL::ResourceStorageModeShared)), 0});
      QUIRE_CHECK(static_cast<bool>(spare_.back().buffer), "no memory for a staging buffer");
    }
    staging.push_back(std::move(spare_.back()));
    spare_.pop_back();
  }
  Staging& last = staging.back();
  const Place place{last.buffer.get(), last.used, true};
  last.used += (bytes + 15) & ~size_t{15};
  return place;
}

bool whole_words(const Place& to, const Place& from, size_t bytes) {
  return (to.offset | from.offset | bytes) % kBlitAlignment == 0;
}

void MetalDevice::upload(void* to, const void* from, size_t bytes) {
  if (bytes == 0 || fault_) return;
  const Place target = blocks_->place(to, bytes);
  if (!idle()) {
    const AutoreleasePool pool;
    const Place source = blocks_->find(from, bytes);
    if (source.host && whole_words(target, source, bytes)) return blit_copy(target, source, bytes);
    if (bytes <= kStagingBytes && whole_words(target, {}, bytes)) {
      const Place staged = stage(bytes);
      std::memcpy(static_cast<std::byte*>(staged.buffer->contents()) + staged.offset, from, bytes);
      return blit_copy(target, staged, bytes);
    }
    finish_all();
  }
  std::memcpy(to, from, bytes);
}

void MetalDevice::download(void* to, const void* from, size_t bytes) {
  if (bytes == 0 || fault_) return;
  const Place source = blocks_->place(from, bytes);
  if (!idle()) {
    const AutoreleasePool pool;
    const Place target = blocks_->find(to, bytes);
    if (target.host && whole_words(target, source, bytes)) return blit_copy(target, source, bytes);
    if (bytes <= kStagingBytes && whole_words(source, {}, bytes)) {
      const Place staged = stage(bytes);
      const void* arrived = static_cast<const std::byte*>(staged.buffer->contents()) + staged.offset;
      open_->arrivals.push_back({to, arrived, bytes});
      return blit_copy(staged, source, bytes);
    }
    finish_all();
    if (fault_) return;
  }
  std::memcpy(to, from, bytes);
}

void MetalDevice::copy(void* to, const void* from, size_t bytes) {
  if (bytes == 0 || fault_) return;
  const AutoreleasePool pool;
  const Place target = blocks_->place(to, bytes);
  const Place source = blocks_->place(from, bytes);
  if (whole_words(target, source, bytes)) return blit_copy(target, source, bytes);
  finish_all();
  std::memmove(to, from, bytes);
}

void MetalDevice::fill(void* to, uint8_t value, size_t bytes) {
  if (bytes == 0 || fault_) return;
  const AutoreleasePool pool;
  const Place target = blocks_->place(to, bytes);
  if (!whole_words(target, {}, bytes)) finish_all();
  if (idle()) {
    std::memset(to, value, bytes);
    return;
  }
  blit()->fillBuffer(target.buffer, NS::Range(target.offset, bytes), value);
  if (++encoded_ >= kLaunchesPerCommand) commit();
}

// --- committing and waiting

void MetalDevice::commit() {
  if (!open_) return;
  const AutoreleasePool pool;
  end_encoders();
  blocks_->settle();
  open_->buffer->commit();
  running_.push_back(std::move(*open_));
  open_.reset();
  reap();
  while (running_.size() >= kMostRunning) await_one();
}

void MetalDevice::reap() {
  while (!running_.empty() && running_.front().buffer->status() >= MTL::CommandBufferStatusCompleted) {
    Command done = std::move(running_.front());
    running_.pop_front();
    finish(std::move(done));
  }
}

void MetalDevice::await_one() {
  running_.front().buffer->waitUntilCompleted();
  Command done = std::move(running_.front());
  running_.pop_front();
  finish(std::move(done));
}

// `command` has completed: finishes its downloads, releases its staging memory, and records its failure.
void MetalDevice::finish(Command command) {
  if (command.buffer->status() == MTL::CommandBufferStatusError && !fault_) {
    const AutoreleasePool pool;
    const NS::Error* error = command.buffer->error();
    const bool memory = error != nullptr && error->code() == MTL::CommandBufferErrorOutOfMemory;
    fault_ = Error{memory ? ErrorCode::kExhausted : ErrorCode::kUnavailable,
                   fmt::format("the Metal device failed: {}{}", words(error),
                               memory ? "; lower --kv-cache-memory-bytes or --max-num-seqs" : "")};
  }
  if (!fault_) {
    for (const Arrival& arrival : command.arrivals) std::memcpy(arrival.to, arrival.from, arrival.bytes);
  }
  for (Staging& staging : command.staging) {
    staging.used = 0;
    spare_.push_back(std::move(staging));
  }
}

void MetalDevice::finish_all() {
  const AutoreleasePool pool;
  commit();
  while (!running_.empty()) await_one();
}

Status MetalDevice::synchronise() {
  finish_all();
  return status();
}

uint64_t MetalDevice::mark() {
  commit();
  return last_serial_;
}

Status MetalDevice::wait(uint64_t mark) {
  QUIRE_CHECK(mark <= last_serial_ && (!open_ || mark < open_->serial), "mark() gave this value");
  const AutoreleasePool pool;
  while (!running_.empty() && running_.front().serial <= mark) await_one();
  return status();
}

// Opens the device of that number, if it can run the kernels.
Result<NS::SharedPtr<MTL::Device>> find_device(int index) {
  const auto all = NS::TransferPtr(MTL::CopyAllDevices());
  const int count = all ? static_cast<int>(all->count()) : 0;
  if (count == 0) return unavailable("Metal found no GPU; it needs macOS on Apple silicon");
  if (index < 0 || index >= count) {
    return invalid_argument(
        fmt::format("there is no Metal device {}: this machine has {}, counted from 0", index, count));
  }
  auto device = NS::RetainPtr(all->object<MTL::Device>(static_cast<NS::UInteger>(index)));
  if (!device->hasUnifiedMemory() || !device->supportsFamily(MTL::GPUFamilyApple7)) {
    return unsupported(
        fmt::format("the Metal device {} is not an Apple silicon GPU (M1 or newer), which the kernels need",
                    device->name()->utf8String()));
  }
  return device;
}

// Keeps all blocks wired while there is work, instead of making each buffer resident for each command buffer. This is
// only an optimisation.
NS::SharedPtr<MTL::ResidencySet> make_residency_set(MTL::Device* device) {
  auto descriptor = NS::TransferPtr(MTL::ResidencySetDescriptor::alloc()->init());
  NS::Error* error = nullptr;
  return NS::TransferPtr(device->newResidencySet(descriptor.get(), &error));  // null: not used
}

}  // namespace

Result<std::unique_ptr<gpu::Device>> open(const OpenOptions& options) {
  const AutoreleasePool pool;
  const int system = macos_major();
  if (system < 14) {
    return unsupported(
        fmt::format("the Metal kernels need macOS 14 or newer (bfloat16), and this is macOS {}", system));
  }
  QUIRE_ASSIGN(auto device, find_device(options.index));
  auto queue = NS::TransferPtr(device->newCommandQueue());
  if (!queue) return unavailable("Metal could not create a command queue");
  NS::SharedPtr<MTL::ResidencySet> residency;
  if (system >= 15) residency = make_residency_set(device.get());
  return std::unique_ptr<gpu::Device>(
      std::make_unique<MetalDevice>(std::move(device), std::move(queue), std::move(residency), options));
}

}  // namespace quire::metal

namespace quire::gpu {

Result<std::unique_ptr<Device>> open_metal(int index) {
  return metal::open({index, kernels::metal_texts(), home_folder() / "metal"});
}

}  // namespace quire::gpu
