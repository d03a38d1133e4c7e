// SPDX-License-Identifier: Apache-2.0
// The fake's objects: the state of each class of Foundation and Metal.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "backend/emulator/emulator.h"
#include "fake_metal.h"
#include "runtime.h"

namespace fakemetal {

using Kernel = quire::emulator::KernelRecord;

constexpr size_t kMostThreadgroupMemory = 32768;  // of all Apple GPUs

// A counted reference. take() adds one; adopt() takes over the caller's.
template <typename T>
class Ref {
 public:
  Ref() = default;
  static Ref take(T* object) {
    if (object != nullptr) retain(object);
    return adopt(object);
  }
  static Ref adopt(T* object) {
    Ref made;
    made.object_ = object;
    return made;
  }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() {
    if (object_ != nullptr) release(object_);
  }
  T* get() const { return object_; }
  T* operator->() const { return object_; }

 private:
  T* object_ = nullptr;
};

struct String : Object {
  std::string text;
};
struct Error : Object {
  long code = 0;
  std::string words;
};
struct Array : Object {
  std::vector<Ref<Object>> items;
};
struct Url : Object {
  std::filesystem::path path;
};

struct Device : Object {
  size_t allocated = 0;
};
// Pages of its own, which are unmapped with the buffer: a late access crashes, as on a Mac.
struct Buffer : Object {
  Ref<Device> device;
  unsigned char* contents = nullptr;
  size_t length = 0;
  ~Buffer();
};

struct CompileOptions : Object {
  bool fast = true;  // Metal's default
  uintptr_t language = 0;
};
struct Library : Object {
  std::map<std::string, const Kernel*> kernels;
};
struct Function : Object {
  std::string name;
  const Kernel* kernel = nullptr;
};
struct ArchiveDescriptor : Object {
  std::filesystem::path path;
};
struct Archive : Object {
  std::set<std::string> names;
};
struct PipelineDescriptor : Object {
  Ref<Function> function;
  Ref<Array> archives;
};
struct Pipeline : Object {
  std::string name;
  const Kernel* kernel = nullptr;
  size_t most_threads = 0;
  size_t threadgroup_bytes = 0;  // that the kernel itself declares
};

using Resident = std::shared_ptr<const std::set<Object*>>;
struct ResidencySet : Object {
  std::set<Object*> allocations;  // kept alive by the entries of `held`
  std::vector<Ref<Object>> held;
  Resident resident = std::make_shared<std::set<Object*>>();  // the allocations as of the last commit
};

enum Status : uintptr_t { kNotEnqueued = 0, kCommitted = 2, kCompleted = 4, kFailed = 5 };

struct Queue : Object {
  Ref<Device> device;
  long uncompleted = 0;  // command buffers handed out and not completed
  std::map<ResidencySet*, Ref<ResidencySet>> residency;
};
struct CommandBuffer : Object {
  Ref<Queue> queue;
  Status status = kNotEnqueued;
  bool encoding = false;
  std::vector<std::function<void()>> work;
  std::map<Object*, Ref<Object>> held;  // everything that the work uses
  std::vector<Resident> resident;       // what the queue's residency sets held when it was committed
  Ref<Error> error;
  ~CommandBuffer();
};
struct Encoder : Object {
  Ref<CommandBuffer> command;
  bool ended = false;
  ~Encoder();
};
struct Binding {
  Buffer* buffer = nullptr;  // held by the command buffer
  size_t offset = 0;
  std::vector<unsigned char> bytes;  // of setBytes
};
struct ComputeEncoder : Encoder {
  Pipeline* pipeline = nullptr;  // held by the command buffer
  std::array<Binding, 31> bindings;
  std::array<size_t, 31> threadgroup_bytes{};  // of setThreadgroupMemoryLength
};
struct BlitEncoder : Encoder {};

// While it lives, only the buffers that the command may use can be read and written: those that its encoders were given
// and those of the queue's residency sets. Any other access ends the program, whatever address the kernel took it from.
class OnlyResident {
 public:
  explicit OnlyResident(const CommandBuffer& command);
  ~OnlyResident();
  OnlyResident(const OnlyResident&) = delete;
  OnlyResident& operator=(const OnlyResident&) = delete;

 private:
  std::vector<Buffer*> closed_;
};
// The name of the kernel that runs, for the message of such an access; null after it.
void set_running_kernel(const char* name);

// The declarations of metal-cpp.
struct __attribute__((packed)) Size {
  uintptr_t width, height, depth;
};
struct __attribute__((packed)) Range {
  uintptr_t location, length;
};

String* make_string(const std::string& text);  // autoreleased
// Sets *to, if it is not null, to a new autoreleased error.
void report(Error** to, const std::string& words, long code = 1);

// A method, given as a lambda without captures whose first two parameters are the object and the selector.
template <typename Lambda>
void method(const char* class_name, const char* selector, Lambda lambda, int macos = 0) {
  add_method(class_named(class_name), selector, reinterpret_cast<Method>(+lambda), macos);
}
template <typename Lambda>
void class_method(const char* class_name, const char* selector, Lambda lambda, int macos = 0) {
  add_class_method(class_named(class_name), selector, reinterpret_cast<Method>(+lambda), macos);
}

Counts& counters();
void install_foundation();
void install_compiler();
void install_memory();
void install_commands();

}  // namespace fakemetal
