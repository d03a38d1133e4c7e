// SPDX-License-Identifier: Apache-2.0
// The fake's queue, command buffers and encoders. What Metal's validation would refuse ends the program.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <numeric>
#include <optional>

#include "kernels/compat/dialect.h"
#include "objects.h"

namespace fakemetal {
namespace {

constexpr long kMostCommandBuffers = 64;  // a queue has no more and then blocks
constexpr long kInvalidResource = 9;      // of MTLCommandBufferError
constexpr size_t kMostInlineBytes = 4096, kBlitAlignment = 4;

struct Failure {
  long code;
  std::string words;
};
std::optional<Failure> next_failure;
std::deque<Ref<CommandBuffer>> committed;  // committed but not yet run, oldest first

std::string number(size_t value) {
  return std::to_string(value);
}

void run_oldest() {
  const Ref<CommandBuffer> command = std::move(committed.front());
  committed.pop_front();
  command->queue->uncompleted--;
  {
    const OnlyResident only(*command.get());
    for (const auto& one : command->work) {
      if (!next_failure) one();
    }
  }
  if (next_failure) {
    auto* error = make<Error>("NSError");
    error->code = next_failure->code;
    error->words = next_failure->words;
    command->error = Ref<Error>::adopt(error);
    next_failure.reset();
  }
  command->status = command->error.get() == nullptr ? kCompleted : kFailed;
  command->work.clear();
  command->held.clear();
}

void run_kernel(const Kernel& kernel, Size grid, size_t threads, const void* params, void* const* buffers) {
  static quire::emulator::Emulator emulator(quire::emulator::settle({}).value());
  const std::array<uint32_t, 3> groups = {static_cast<uint32_t>(grid.width), static_cast<uint32_t>(grid.height),
                                          static_cast<uint32_t>(grid.depth)};
  counters().dispatches++;
  set_running_kernel(kernel.name);
  const quire::Status ran = emulator.run(kernel, groups, static_cast<uint32_t>(threads), params, buffers);
  set_running_kernel(nullptr);
  if (!ran.ok()) next_failure = Failure{kInvalidResource, ran.error().message};
}

void commit(CommandBuffer* self, SEL) {
  if (self->encoding) misuse("commit of a command buffer with an open encoder");
  if (self->status != kNotEnqueued) misuse("commit of a command buffer that was committed before");
  self->status = kCommitted;
  for (const auto& [set, held] : self->queue->residency) self->resident.push_back(set->resident);
  counters().command_buffers++;
  committed.push_back(Ref<CommandBuffer>::take(self));
  if (std::getenv("FAKE_METAL_DEFER") == nullptr) run_oldest();
}

void wait_until_completed(CommandBuffer* self, SEL) {
  if (self->status == kNotEnqueued) misuse("waitUntilCompleted before commit: it would never return");
  while (self->status == kCommitted) run_oldest();
}

template <typename T>
T* new_encoder(CommandBuffer* command, const char* class_name) {
  if (command->status != kNotEnqueued) misuse("an encoder of a command buffer that was committed");
  if (command->encoding) misuse("an encoder while another one of the command buffer is open");
  command->encoding = true;
  auto* encoder = autoreleased(make<T>(class_name));
  encoder->command = Ref<CommandBuffer>::take(command);
  return encoder;
}

void check_open(const Encoder* encoder, const char* what) {
  if (encoder->ended) misuse(std::string(what) + " after endEncoding");
}

// A command buffer keeps everything alive that its work uses.
void hold(Encoder* encoder, Object* object) {
  encoder->command->held.try_emplace(object, Ref<Object>::take(object));
}

// --- compute

Binding& binding(ComputeEncoder* encoder, size_t index, const char* what) {
  check_open(encoder, what);
  if (index >= encoder->bindings.size()) misuse(std::string(what) + " at index " + number(index) + ", the last is 30");
  return encoder->bindings[index];
}

void check_offset(const Buffer* buffer, size_t offset, size_t index) {
  if (offset >= buffer->length) {
    misuse("buffer " + number(index) + ": offset " + number(offset) + " is beyond its " + number(buffer->length) +
           " bytes");
  }
}

void set_buffer(ComputeEncoder* self, SEL, Buffer* buffer, uintptr_t offset, uintptr_t index) {
  Binding& to = binding(self, index, "setBuffer");
  if (buffer != nullptr) {
    check_offset(buffer, offset, index);
    hold(self, buffer);
  }
  to = {buffer, offset, {}};
}

void set_buffer_offset(ComputeEncoder* self, SEL, uintptr_t offset, uintptr_t index) {
  Binding& to = binding(self, index, "setBufferOffset");
  if (to.buffer == nullptr) misuse("setBufferOffset at index " + number(index) + ", where no buffer is bound");
  check_offset(to.buffer, offset, index);
  to.offset = offset;
}

void set_bytes(ComputeEncoder* self, SEL, const unsigned char* bytes, uintptr_t length, uintptr_t index) {
  Binding& to = binding(self, index, "setBytes");
  if (length == 0 || length > kMostInlineBytes) misuse("setBytes of " + number(length) + " bytes");
  to = {nullptr, 0, {bytes, bytes + length}};
}

void set_threadgroup_memory_length(ComputeEncoder* self, SEL, uintptr_t length, uintptr_t index) {
  binding(self, index, "setThreadgroupMemoryLength");
  if (length % 16 != 0) misuse("setThreadgroupMemoryLength of " + number(length) + " bytes, no multiple of 16");
  self->threadgroup_bytes[index] = length;
}

// Makes a buffer resident for the command buffer; kernels may then reach it by an address in other memory.
void use_resource(ComputeEncoder* self, SEL, Buffer* buffer, uintptr_t /*usage*/) {
  check_open(self, "useResource");
  hold(self, buffer);
}

void check_dispatch(const ComputeEncoder* self, Size grid, Size group) {
  check_open(self, "dispatch");
  if (self->pipeline == nullptr) misuse("dispatch without a pipeline");
  const Pipeline& pipeline = *self->pipeline;
  const size_t threads = group.width * group.height * group.depth;
  if (threads == 0 || threads > pipeline.most_threads) {
    misuse(pipeline.name + ": " + number(threads) + " threads in a threadgroup, the most are " +
           number(pipeline.most_threads));
  }
  if (threads % 32 != 0) misuse(pipeline.name + ": the threadgroup is not made of whole simdgroups");
  if (grid.width == 0 || grid.height == 0 || grid.depth == 0) misuse(pipeline.name + ": an empty grid");
  const size_t memory =
      std::accumulate(self->threadgroup_bytes.begin(), self->threadgroup_bytes.end(), pipeline.threadgroup_bytes);
  if (memory > kMostThreadgroupMemory) {
    misuse(pipeline.name + ": " + number(memory) + " bytes of threadgroup memory, the most are " +
           number(kMostThreadgroupMemory));
  }
  for (int i = 0; i <= pipeline.kernel->buffers; i++) {
    const Binding& one = self->bindings[static_cast<size_t>(i)];
    if (one.buffer == nullptr && one.bytes.empty()) {
      misuse(pipeline.name + ": nothing is bound at index " + std::to_string(i));
    }
  }
  if (self->bindings[0].bytes.size() < pipeline.kernel->params_bytes) {
    misuse(pipeline.name + ": its parameters have " + number(pipeline.kernel->params_bytes) + " bytes, " +
           number(self->bindings[0].bytes.size()) + " are bound");
  }
}

void dispatch(ComputeEncoder* self, SEL, Size grid, Size group) {
  check_dispatch(self, grid, group);
  const Kernel* kernel = self->pipeline->kernel;
  std::vector<void*> buffers;
  for (int i = 1; i <= kernel->buffers; i++) {
    Binding& one = self->bindings[static_cast<size_t>(i)];
    if (one.buffer == nullptr) misuse(self->pipeline->name + ": argument " + std::to_string(i) + " is no buffer");
    buffers.push_back(one.buffer->contents + one.offset);
  }
  const size_t threads = group.width * group.height * group.depth;
  self->command->work.push_back([=, buffers = std::move(buffers), params = self->bindings[0].bytes] {
    run_kernel(*kernel, grid, threads, params.data(), buffers.data());
  });
}

// --- blits

void check_range(const Buffer* buffer, size_t offset, size_t bytes, const char* what) {
  if (bytes == 0) misuse(std::string(what) + " of no bytes");
  if (offset > buffer->length || bytes > buffer->length - offset)
    misuse(std::string(what) + " beyond the buffer's end");
  if ((offset | bytes) % kBlitAlignment != 0) misuse(std::string(what) + " that is not made of whole words of 4 bytes");
}

void copy(BlitEncoder* self, SEL, Buffer* from, uintptr_t from_offset, Buffer* to, uintptr_t to_offset,
          uintptr_t bytes) {
  check_open(self, "a copy");
  check_range(from, from_offset, bytes, "a copy");
  check_range(to, to_offset, bytes, "a copy");
  if (from == to && from_offset < to_offset + bytes && to_offset < from_offset + bytes) {
    misuse("a copy whose source and target overlap");
  }
  hold(self, from);
  hold(self, to);
  self->command->work.push_back([=] {
    counters().blits++;
    std::memcpy(to->contents + to_offset, from->contents + from_offset, bytes);
  });
}

void fill(BlitEncoder* self, SEL, Buffer* buffer, Range range, uint8_t value) {
  check_open(self, "a fill");
  check_range(buffer, range.location, range.length, "a fill");
  hold(self, buffer);
  self->command->work.push_back([=] {
    counters().blits++;
    std::memset(buffer->contents + range.location, value, range.length);
  });
}

void end_encoding(Encoder* self, SEL) {
  if (self->ended) misuse("endEncoding twice");
  self->ended = true;
  self->command->encoding = false;
}

void install_queue() {
  method("MTLDevice", "newCommandQueue", [](Device* self, SEL) {
    auto* queue = make<Queue>("MTLCommandQueue");
    queue->device = Ref<Device>::take(self);
    return queue;
  });
  method(
      "MTLCommandQueue", "addResidencySet:",
      [](Queue* self, SEL, ResidencySet* set) {
        self->residency.try_emplace(set, Ref<ResidencySet>::take(set));
      },
      15);
  method(
      "MTLCommandQueue", "removeResidencySet:", [](Queue* self, SEL, ResidencySet* set) { self->residency.erase(set); },
      15);
  method("MTLCommandQueue", "commandBuffer", [](Queue* self, SEL) {
    if (self->uncompleted >= kMostCommandBuffers)
      misuse("more than 64 command buffers under way: the queue would block");
    self->uncompleted++;
    auto* command = autoreleased(make<CommandBuffer>("MTLCommandBuffer"));
    command->queue = Ref<Queue>::take(self);
    return command;
  });
  method("MTLCommandBuffer", "commit", commit);
  method("MTLCommandBuffer", "waitUntilCompleted", wait_until_completed);
  method("MTLCommandBuffer", "status", [](CommandBuffer* self, SEL) -> uintptr_t { return self->status; });
  method("MTLCommandBuffer", "error", [](CommandBuffer* self, SEL) { return self->error.get(); });
  method("MTLCommandBuffer", "blitCommandEncoder",
         [](CommandBuffer* self, SEL) { return new_encoder<BlitEncoder>(self, "MTLBlitCommandEncoder"); });
  method("MTLCommandBuffer", "computeCommandEncoderWithDispatchType:", [](CommandBuffer* self, SEL, uintptr_t type) {
    if (type != 0) misuse("the fake knows serial dispatch alone");
    return new_encoder<ComputeEncoder>(self, "MTLComputeCommandEncoder");
  });
}

void install_encoders() {
  method("MTLComputeCommandEncoder", "setComputePipelineState:", [](ComputeEncoder* self, SEL, Pipeline* pipeline) {
    check_open(self, "setComputePipelineState");
    hold(self, pipeline);
    self->pipeline = pipeline;
  });
  method("MTLComputeCommandEncoder", "setBuffer:offset:atIndex:", set_buffer);
  method("MTLComputeCommandEncoder", "setBufferOffset:atIndex:", set_buffer_offset);
  method("MTLComputeCommandEncoder", "setBytes:length:atIndex:", set_bytes);
  method("MTLComputeCommandEncoder", "setThreadgroupMemoryLength:atIndex:", set_threadgroup_memory_length);
  method("MTLComputeCommandEncoder", "useResource:usage:", use_resource);
  method("MTLComputeCommandEncoder", "dispatchThreadgroups:threadsPerThreadgroup:", dispatch);
  method("MTLComputeCommandEncoder", "endEncoding", end_encoding);
  method("MTLBlitCommandEncoder", "copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:", copy);
  method("MTLBlitCommandEncoder", "fillBuffer:range:value:", fill);
  method("MTLBlitCommandEncoder", "endEncoding", end_encoding);
}

}  // namespace

CommandBuffer::~CommandBuffer() {
  if (status == kNotEnqueued) queue->uncompleted--;
}

Encoder::~Encoder() {
  if (!ended) misuse("an encoder was released without endEncoding");
}

void fail_next_command(long code, const std::string& words) {
  next_failure = Failure{code, words};
}

void install_commands() {
  install_queue();
  install_encoders();
}

}  // namespace fakemetal
