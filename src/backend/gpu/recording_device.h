// SPDX-License-Identifier: Apache-2.0
// A fake Hopper GPU for tests of what is launched, and in which order.
#pragma once

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "backend/gpu/device.h"

namespace quire::gpu {

// Runs nothing and records the names of the kernels and copies that it is asked for.
class RecordingDevice final : public Device {
 public:
  explicit RecordingDevice(std::vector<std::string>& notes, Status status = {})
      : notes_(notes), status_(std::move(status)) {
    info_.api = Api::kCuda;
    info_.architecture = "sm_90";
    info_.compute_units = 132;
    info_.max_threadgroup_memory = 227 << 10;
    info_.memory_bytes = info_.working_set_bytes = size_t{1} << 30;
    info_.graphs = true;
  }
  size_t free_bytes() const override { return info_.memory_bytes; }
  Result<std::unique_ptr<Memory>> allocate(size_t bytes) override {
    ++allocations;
    return std::unique_ptr<Memory>(std::make_unique<HostBlock>(bytes));
  }
  Result<std::unique_ptr<Memory>> allocate_host(size_t bytes) override { return allocate(bytes); }
  Result<const Kernel*> kernel(std::string_view name) override {
    if (missing.contains(name)) return not_found({"there is no kernel ", name});
    auto& kernel = kernels_[std::string(name)];
    if (kernel == nullptr) kernel = std::make_unique<NamedKernel>(name);
    return static_cast<const Kernel*>(kernel.get());
  }
  std::vector<std::string> kernel_names() const override { return {}; }
  void launch(const Launch& launch) override {
    if (!whole_launches) return note(launch.kernel->name());
    const Grid& grid = launch.grid;
    note(launch.kernel->name() + " " + std::to_string(grid.x) + "x" + std::to_string(grid.y) + "x" +
         std::to_string(grid.z) + " " + std::to_string(launch.threads) + " " + std::to_string(launch.dynamic_memory) +
         " " + std::string(static_cast<const char*>(launch.params), launch.params_bytes));
  }
  void upload(void* to, const void* from, size_t bytes) override {
    std::memcpy(to, from, bytes);
    note("upload");
  }
  void download(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void copy(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void fill(void* to, uint8_t value, size_t bytes) override { std::memset(to, value, bytes); }
  void queue(std::function<Status(void* stream)> work) override { (void)work(nullptr); }
  bool map_rows(const RowsMap&, void*) override { return true; }
  bool map_pages(const PagesMap&, void*) override { return true; }
  bool library_serves(DType type, int64_t, int64_t) override { return has_library && type != DType::kF32; }
  void library_product(const LibraryProduct&) override { note("library"); }
  Status synchronise() override { return {}; }
  uint64_t mark() override { return 1; }
  Status wait(uint64_t) override { return status_; }
  bool probe_passed() override { return passed; }
  void begin_recording() override { recording_ = true; }
  Result<std::unique_ptr<Graph>> end_recording() override {
    recording_ = false;
    return std::make_unique<Graph>();
  }
  void run(const Graph&) override { note("graph"); }

  size_t allocations = 0;
  std::atomic<bool> passed = true;  // what it says of its probe
  bool has_library = false;
  bool whole_launches = false;                 // also note their grids and parameters
  std::set<std::string, std::less<>> missing;  // kernels that it lacks

 private:
  struct HostBlock final : Memory {
    explicit HostBlock(size_t bytes) : held(bytes / 16 + 1) {
      address_ = held.data();
      bytes_ = bytes;
    }
    struct alignas(16) Piece {
      char bytes[16] = {};
    };
    std::vector<Piece> held;
  };
  struct NamedKernel final : Kernel {
    explicit NamedKernel(std::string_view name) {
      name_ = name;
      max_threads_ = 1024;
    }
  };
  void note(const std::string& what) {
    if (!recording_) notes_.push_back(what);
  }

  std::vector<std::string>& notes_;
  Status status_;  // what every wait returns
  std::map<std::string, std::unique_ptr<NamedKernel>> kernels_;
  bool recording_ = false;
};

}  // namespace quire::gpu
