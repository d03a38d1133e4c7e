// SPDX-License-Identifier: Apache-2.0
// The fake's devices, buffers and residency sets.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <mutex>

#include "backend/metal/metal_cores.h"
#include "objects.h"

namespace quire::metal {

int gpu_cores() {
  return 0;  // there is no registry to ask
}

}  // namespace quire::metal

namespace fakemetal {
namespace {

constexpr uintptr_t kApple1 = 1001, kApple7 = 1007;
size_t working_set = size_t{2} << 30;
size_t longest_buffer = size_t{1} << 30;

// The buffers that exist, and those of them that nothing may touch at the moment.
struct Buffers {
  std::mutex mutex;
  std::set<Buffer*> all;
  std::atomic<const std::vector<Buffer*>*> closed = nullptr;
};
Buffers& buffers() {
  static Buffers* const made = new Buffers;  // never destroyed: global objects may be released after main()
  return *made;
}
std::atomic<const char*> running_kernel = nullptr;

// A fault in the pages of a closed buffer gets its own message. All others are as they were without the fake.
void at_fault(int signal, siginfo_t* info, void*) {
  const auto* at = static_cast<const unsigned char*>(info->si_addr);
  if (const std::vector<Buffer*>* closed = buffers().closed) {
    for (const Buffer* one : *closed) {
      if (at < one->contents || at >= one->contents + one->length) continue;
      const char* kernel = running_kernel;
      misuse(std::string(kernel == nullptr ? "a copy" : kernel) + ": touches a buffer of " +
             std::to_string(one->length) + " bytes that is not resident: no encoder uses it, no residency set holds it");
    }
  }
  std::signal(signal, SIG_DFL);
}

void watch_faults() {
  static const bool done = [] {
    struct sigaction action = {};
    action.sa_sigaction = at_fault;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, nullptr);
    return true;
  }();
  (void)done;
}

Buffer* new_buffer(Device* device, size_t length) {
  if (length == 0) misuse("a buffer of no bytes");
  if (length > longest_buffer) misuse("a buffer of " + std::to_string(length) + " bytes, longer than maxBufferLength");
  // Pages are zeroed, as Metal guarantees, and allocated when they are touched.
  void* pages = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) return nullptr;
  auto* buffer = make<Buffer>("MTLBuffer");
  buffer->device = Ref<Device>::take(device);
  buffer->contents = static_cast<unsigned char*>(pages);
  buffer->length = length;
  device->allocated += length;
  watch_faults();
  const std::lock_guard lock(buffers().mutex);
  buffers().all.insert(buffer);
  return buffer;
}

void install_device() {
  method("MTLDevice", "name", [](Device*, SEL) { return make_string("Apple M0 (fake)"); });
  method("MTLDevice", "hasUnifiedMemory", [](Device*, SEL) { return true; });
  method("MTLDevice",
         "supportsFamily:", [](Device*, SEL, uintptr_t family) { return family >= kApple1 && family <= kApple7; });
  method("MTLDevice", "maxThreadgroupMemoryLength", [](Device*, SEL) -> uintptr_t { return 32768; });
  method("MTLDevice", "maxThreadsPerThreadgroup", [](Device*, SEL) { return Size{1024, 1024, 1024}; });
  method("MTLDevice", "recommendedMaxWorkingSetSize", [](Device*, SEL) -> uint64_t { return working_set; });
  method("MTLDevice", "maxBufferLength", [](Device*, SEL) -> uintptr_t { return longest_buffer; });
  method("MTLDevice", "currentAllocatedSize", [](Device* self, SEL) -> uintptr_t { return self->allocated; });
  method("MTLDevice", "newBufferWithLength:options:", [](Device* self, SEL, uintptr_t length, uintptr_t) {
    return new_buffer(self, length);
  });
  method("MTLBuffer", "contents", [](Buffer* self, SEL) -> void* { return self->contents; });
  method("MTLBuffer", "gpuAddress", [](Buffer* self, SEL) { return reinterpret_cast<uint64_t>(self->contents); });
  method("MTLBuffer", "length", [](Buffer* self, SEL) -> uintptr_t { return self->length; });
}

void install_residency() {
  class_method(
      "MTLResidencySetDescriptor", "alloc", [](Class, SEL) { return make<Object>("MTLResidencySetDescriptor"); }, 15);
  method(
      "MTLDevice", "newResidencySetWithDescriptor:error:",
      [](Device*, SEL, Object*, Error**) { return make<ResidencySet>("MTLResidencySet"); }, 15);
  method("MTLResidencySet", "addAllocation:", [](ResidencySet* self, SEL, Object* one) {
    if (!self->allocations.insert(one).second) misuse("addAllocation: of what the residency set holds already");
    self->held.push_back(Ref<Object>::take(one));
  });
  method("MTLResidencySet", "removeAllocation:", [](ResidencySet* self, SEL, Object* one) {
    if (self->allocations.erase(one) == 0) misuse("removeAllocation: of what the residency set does not hold");
    std::erase_if(self->held, [one](const Ref<Object>& held) { return held.get() == one; });
  });
  method("MTLResidencySet", "commit", [](ResidencySet* self, SEL) {
    self->resident = std::make_shared<std::set<Object*>>(self->allocations);
    counters().resident_bytes = 0;
    for (Object* one : self->allocations) counters().resident_bytes += static_cast<Buffer*>(one)->length;
  });
  method("MTLResidencySet", "requestResidency", [](ResidencySet*, SEL) {});
}

}  // namespace

Buffer::~Buffer() {
  {
    const std::lock_guard lock(buffers().mutex);
    buffers().all.erase(this);
  }
  device->allocated -= length;
  munmap(contents, length);
}

OnlyResident::OnlyResident(const CommandBuffer& command) {
  const std::lock_guard lock(buffers().mutex);
  for (Buffer* buffer : buffers().all) {
    const bool resident = std::any_of(command.resident.begin(), command.resident.end(),
                                      [buffer](const Resident& set) { return set->contains(buffer); });
    if (resident || command.held.contains(buffer)) continue;
    if (mprotect(buffer->contents, buffer->length, PROT_NONE) == 0) closed_.push_back(buffer);
  }
  buffers().closed = &closed_;
}

OnlyResident::~OnlyResident() {
  buffers().closed = nullptr;
  for (const Buffer* buffer : closed_) mprotect(buffer->contents, buffer->length, PROT_READ | PROT_WRITE);
}

void set_running_kernel(const char* name) {
  running_kernel = name;
}

void set_working_set(size_t bytes) {
  working_set = bytes;
}

void set_longest_buffer(size_t bytes) {
  longest_buffer = bytes;
}

void install_memory() {
  install_device();
  install_residency();
}

}  // namespace fakemetal

extern "C" {

fakemetal::Array* MTLCopyAllDevices() {
  auto* all = fakemetal::make<fakemetal::Array>("NSArray");
  all->items.push_back(fakemetal::Ref<fakemetal::Object>::adopt(fakemetal::make<fakemetal::Device>("MTLDevice")));
  return all;
}

// Symbols that metal-cpp refers to.
void* MTLCreateSystemDefaultDevice() {
  return fakemetal::make<fakemetal::Device>("MTLDevice");
}
void* MTLCopyAllDevicesWithObserver(void**, void*) {
  fakemetal::misuse("MTLCopyAllDevicesWithObserver is unknown to the fake");
}
void MTLRemoveDeviceObserver(const void*) {}

}  // extern "C"
