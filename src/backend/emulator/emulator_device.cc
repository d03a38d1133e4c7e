// SPDX-License-Identifier: Apache-2.0
// The emulator's device: blocks with guard bytes at both ends, launches checked against the kernel's record, recorded
// graphs.
#include "backend/emulator/emulator_device.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>

#include "backend/emulator/fiber.h"
#include "base/check.h"

#ifdef QUIRE_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace quire::gpu {
namespace {

constexpr size_t kGuard = 256;  // bytes before and after a block; also its alignment
constexpr unsigned char kGuardByte = 0xfb;

// Misuse of a kernel is our own bug: it aborts and names the kernel.
void require(bool holds, std::string_view kernel, const char* what) {
  if (!holds) [[unlikely]] {
    const std::string message = "emulator: launch of " + std::string(kernel) + ": " + what;
    check_failed(__FILE__, __LINE__, "launch", message.c_str());
  }
}

// Zeroed lazily, by calloc. Writes just outside the block are found by AddressSanitizer, or else when the block is
// freed.
class EmulatorMemory final : public Memory {
 public:
  EmulatorMemory(size_t bytes, size_t* in_use) : in_use_(in_use) {
    block_.reset(static_cast<unsigned char*>(std::calloc(1, bytes + 3 * kGuard)));
    if (block_ == nullptr) return;
    const uintptr_t start = reinterpret_cast<uintptr_t>(block_.get()) + kGuard;
    data_ = block_.get() + ((start + kGuard - 1) / kGuard * kGuard - (start - kGuard));
    address_ = data_;
    bytes_ = bytes;
    *in_use_ += bytes;
    std::memset(data_ - kGuard, kGuardByte, kGuard);
    std::memset(data_ + bytes, kGuardByte, kGuard);
#ifdef QUIRE_ASAN
    __asan_poison_memory_region(data_ - kGuard, kGuard);
    __asan_poison_memory_region(data_ + bytes, kGuard);
#endif
  }
  ~EmulatorMemory() override {
    if (data_ == nullptr) return;
#ifdef QUIRE_ASAN
    __asan_unpoison_memory_region(data_ - kGuard, kGuard);
    __asan_unpoison_memory_region(data_ + bytes_, kGuard);
#endif
    *in_use_ -= bytes_;
    const auto whole = [](const unsigned char* guard) {
      return std::all_of(guard, guard + kGuard, [](unsigned char byte) { return byte == kGuardByte; });
    };
    QUIRE_CHECK(whole(data_ - kGuard), "something wrote before the start of a block of the emulator");
    QUIRE_CHECK(whole(data_ + bytes_), "something wrote past the end of a block of the emulator");
  }

 private:
  struct Free {
    void operator()(unsigned char* block) const { std::free(block); }
  };
  std::unique_ptr<unsigned char, Free> block_;
  unsigned char* data_ = nullptr;
  size_t* in_use_;
};

class EmulatorKernel final : public Kernel {
 public:
  explicit EmulatorKernel(const emulator::KernelRecord& from) : record(from) {
    name_ = from.name;
    max_threads_ = from.max_threads;
  }
  const emulator::KernelRecord& record;
};

// The recorded calls, with copies of their arguments.
class EmulatorGraph final : public Graph {
 public:
  std::vector<std::function<void()>> steps;
};

class EmulatorDevice final : public Device {
 public:
  explicit EmulatorDevice(const emulator::EmulatorOptions& options)
      : emulator_(options), launches_to_stall_(options.stall) {
    info_.api = Api::kEmulator;
    info_.name = "emulator (lane order " + std::to_string(emulator_.order()) + ")";
    info_.architecture = "host";
    info_.compute_units = emulator_.workers();
    const size_t physical = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
    info_.memory_bytes = info_.working_set_bytes = std::min(physical / 2, size_t{8} << 30);
    info_.unified = true;
    info_.graphs = true;
    for (const emulator::KernelRecord* record : emulator::all_kernels()) {
      kernels_.emplace(record->name, std::make_unique<EmulatorKernel>(*record));
    }
  }

  size_t free_bytes() const override { return info_.memory_bytes - std::min(in_use_, info_.memory_bytes); }

  Result<std::unique_ptr<Memory>> allocate(size_t bytes) override {
    if (bytes > free_bytes()) {
      return exhausted({"the emulator has ", free_bytes(), " bytes left, ", bytes, " were asked for"});
    }
    auto memory = std::make_unique<EmulatorMemory>(bytes, &in_use_);
    if (memory->address() == nullptr) {
      return exhausted({"could not allocate ", bytes, " bytes for the emulator"});
    }
    return std::unique_ptr<Memory>(std::move(memory));
  }
  Result<std::unique_ptr<Memory>> allocate_host(size_t bytes) override { return allocate(bytes); }

  Result<const Kernel*> kernel(std::string_view name) override {
    const auto found = kernels_.find(name);
    if (found == kernels_.end()) return not_found({"the emulator has no kernel ", name});
    return static_cast<const Kernel*>(found->second.get());
  }
  std::vector<std::string> kernel_names() const override {
    std::vector<std::string> names;
    for (const auto& [name, kernel] : kernels_) names.push_back(name);
    return names;
  }

  void launch(const Launch& launch) override {
    check(launch);
    const auto& record = static_cast<const EmulatorKernel*>(launch.kernel)->record;
    if (recording_ == nullptr) {
      execute(record, launch.grid, launch.threads, launch.params, launch.buffers.data());
      return;
    }
    const auto* params = static_cast<const unsigned char*>(launch.params);
    recording_->steps.push_back([this, &record, grid = launch.grid, threads = launch.threads,
                                 params = std::vector<unsigned char>(params, params + launch.params_bytes),
                                 buffers = std::vector<void*>(launch.buffers.begin(), launch.buffers.end())] {
      execute(record, grid, threads, params.data(), buffers.data());
    });
  }

  void upload(void* to, const void* from, size_t bytes) override { move(to, from, bytes); }
  void download(void* to, const void* from, size_t bytes) override { move(to, from, bytes); }
  void copy(void* to, const void* from, size_t bytes) override { move(to, from, bytes); }
  void fill(void* to, uint8_t value, size_t bytes) override {
    when_run([=] { std::memset(to, value, bytes); });
  }

  void queue(std::function<Status(void*)> work) override {
    when_run([this, work = std::move(work)] {
      if (fault_) return;
      const Status done = work(nullptr);
      if (!done.ok()) fault_ = done.error();
    });
  }

  Status synchronise() override { return fault_ ? Status(*fault_) : Status(); }
  uint64_t mark() override { return ++marks_; }
  Status wait(uint64_t mark) override {
    QUIRE_CHECK(mark <= marks_, "the emulator was asked to wait for a mark that it never gave");
    return synchronise();
  }

  void begin_recording() override {
    QUIRE_CHECK(recording_ == nullptr, "the emulator records already");
    recording_ = std::make_unique<EmulatorGraph>();
  }
  Result<std::unique_ptr<Graph>> end_recording() override {
    QUIRE_CHECK(recording_ != nullptr, "end_recording() without begin_recording()");
    return std::unique_ptr<Graph>(std::move(recording_));
  }
  void run(const Graph& graph) override {
    QUIRE_CHECK(recording_ == nullptr, "a graph cannot be part of a recording");
    for (const auto& step : static_cast<const EmulatorGraph&>(graph).steps) step();
  }

 private:
  static void check(const Launch& launch) {
    QUIRE_CHECK(launch.kernel != nullptr, "a launch without a kernel");
    const auto& record = static_cast<const EmulatorKernel*>(launch.kernel)->record;
    require(launch.params != nullptr && launch.params_bytes == record.params_bytes, record.name,
            "the size of the parameters is not the kernel's");
    require(launch.buffers.size() == static_cast<size_t>(record.buffers), record.name,
            "the number of buffers is not the kernel's");
    require(launch.grid.x > 0 && launch.grid.y > 0 && launch.grid.z > 0, record.name, "an empty grid");
    require(launch.threads > 0 && launch.threads % 32 == 0, record.name, "threads must be whole simdgroups of 32");
    require(launch.threads <= static_cast<uint32_t>(record.max_threads), record.name,
            "more threads than the kernel's kThreads");
    require(launch.dynamic_memory == 0, record.name, "the emulator has no dynamic threadgroup memory");
  }

  void execute(const emulator::KernelRecord& record, Grid grid, uint32_t threads, const void* params,
               void* const* buffers) {
    if (fault_) return;  // a fault is final, as on a real device
    if (launches_to_stall_ > 0 && --launches_to_stall_ == 0) {
      for (;;) ::pause();
    }
    const std::array<uint32_t, 3> groups = {grid.x, grid.y, grid.z};
    const Status done = emulator_.run(record, groups, threads, params, buffers);
    if (!done.ok()) fault_ = done.error();
  }

  // Runs `step` now, or in each run of the graph that is being recorded.
  template <typename Step>
  void when_run(Step step) {
    if (recording_ != nullptr) {
      recording_->steps.push_back(step);
    } else {
      step();
    }
  }
  void move(void* to, const void* from, size_t bytes) {
    when_run([=] {
      if (bytes > 0) std::memmove(to, from, bytes);
    });
  }

  emulator::Emulator emulator_;
  std::map<std::string, std::unique_ptr<EmulatorKernel>, std::less<>> kernels_;
  std::unique_ptr<EmulatorGraph> recording_;
  std::optional<Error> fault_;
  size_t in_use_ = 0;
  uint64_t marks_ = 0;
  int launches_to_stall_;
};

}  // namespace

Result<std::unique_ptr<Device>> open_emulator(const emulator::EmulatorOptions& options) {
  QUIRE_ASSIGN(const emulator::EmulatorOptions settled, emulator::settle(options));
  return std::unique_ptr<Device>(std::make_unique<EmulatorDevice>(settled));
}
Result<std::unique_ptr<Device>> open_emulator() {
  return open_emulator(emulator::EmulatorOptions());
}

}  // namespace quire::gpu
