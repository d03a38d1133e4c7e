// SPDX-License-Identifier: Apache-2.0
// The fake's devices, buffers and residency sets.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

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
    counters().resident_bytes = 0;
    for (Object* one : self->allocations) counters().resident_bytes += static_cast<Buffer*>(one)->length;
  });
  method("MTLResidencySet", "requestResidency", [](ResidencySet*, SEL) {});
}

}  // namespace

Buffer::~Buffer() {
  device->allocated -= length;
  munmap(contents, length);
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
