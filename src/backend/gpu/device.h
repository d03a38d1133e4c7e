// SPDX-License-Identifier: Apache-2.0
// Device: what every GPU's API looks like from the host side: memory, kernels by name, launches in order, graphs.
//
// Memory is named by addresses, as kernels see it. An address belongs to the device: the host reads or writes it only
// where `unified` says so, and otherwise through upload() and download(). Addresses inside a block (base + offset) are
// as good as its base: a driver whose API binds objects finds the block by the address.
//
// Work is queued and runs in the order of the calls: a launch sees what the launches and uploads before it wrote. All
// calls come from one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "ops/dtype.h"

namespace quire::gpu {

enum class Api : uint8_t { kCuda, kMetal, kEmulator };

// What a device is and can do; fixed when it is opened.
struct DeviceInfo {
  Api api = Api::kEmulator;
  std::string name;          // "NVIDIA H200", "Apple M4 Max"
  std::string architecture;  // "sm_90", "apple9", "host"
  int compute_units = 1;     // multiprocessors, GPU cores
  int max_threads = 1024;    // in a threadgroup
  size_t max_threadgroup_memory = 32768;
  size_t memory_bytes = 0;       // all of it
  size_t working_set_bytes = 0;  // what the system advises to use at most; memory_bytes where it says nothing
  bool unified = false;          // the host sees device addresses as they are
  bool graphs = false;           // begin_recording() works
  bool asynchronous = false;     // launches return before the work is done
};

// Device memory, zeroed, freed with its owner (after the work that was queued before).
class Memory {
 public:
  virtual ~Memory() = default;
  void* address() const { return address_; }
  size_t bytes() const { return bytes_; }

 protected:
  void* address_ = nullptr;
  size_t bytes_ = 0;
};

// A kernel that is ready to run. Owned by the device.
class Kernel {
 public:
  virtual ~Kernel() = default;
  const std::string& name() const { return name_; }
  int max_threads() const { return max_threads_; }  // that this kernel may have in a threadgroup, on this device

 protected:
  std::string name_;
  int max_threads_ = 0;
};

struct Grid {  // threadgroups
  uint32_t x = 1, y = 1, z = 1;
};

// One launch: parameters by value at index 0, then the buffers in the order of the kernel's arguments. A null buffer is
// allowed where the kernel does not touch that argument.
struct Launch {
  const Kernel* kernel = nullptr;
  const void* params = nullptr;  // at most 4096 bytes
  size_t params_bytes = 0;
  std::span<void* const> buffers;  // at most 16
  Grid grid;                       // none of them 0
  uint32_t threads = 0;            // a multiple of 32
  uint32_t dynamic_memory = 0;     // bytes of threadgroup memory beside the kernel's own; CUDA's variants only
};

// A recorded run of launches, to be run again with the same addresses and parameters.
class Graph {
 public:
  virtual ~Graph() = default;
};

// y[M, N] = x[M, K] W[N, K]^T by the vendor's library, sums in float.
struct LibraryProduct {
  const void* x = nullptr;  // row stride x_stride elements
  const void* w = nullptr;  // [n, k]
  void* y = nullptr;
  DType type = DType::kBF16;      // of x and w: F16 or BF16
  DType out_type = DType::kBF16;  // F32, or as `type`
  int64_t m = 0, n = 0, k = 0;
  int64_t x_stride = 0, y_stride = 0;
};

// Rows of 16-bit elements as the copy engine of sm_90 takes them: 64 elements of `box` rows at a time, of each of
// `box_halves` halves; piece c of row r (16 bytes) at c ^ (r % 8), zeros behind the ends. On 16-byte boundaries.
struct RowsMap {
  const void* data = nullptr;
  int64_t rows = 0, cols = 0, stride = 0;  // elements
  int halves = 1;                          // into which the rows are cut: 1 or 2
  int box = 0, box_halves = 1;
};

class Device {
 public:
  virtual ~Device() = default;
  const DeviceInfo& info() const { return info_; }

  // Bytes that are free now, and how many blocks are alive (for tests: nothing may leak).
  virtual size_t free_bytes() const = 0;
  virtual Result<std::unique_ptr<Memory>> allocate(size_t bytes) = 0;
  // Host memory from which uploads and to which downloads are quick and need no copy in between (pinned). Where memory
  // is unified it is as good as allocate(). Kernels may write to it, by the same address.
  virtual Result<std::unique_ptr<Memory>> allocate_host(size_t bytes) = 0;

  // The kernel of that name, made ready at its first use; an Error carries the compiler's log.
  virtual Result<const Kernel*> kernel(std::string_view name) = 0;
  // All the names that this device's build holds.
  virtual std::vector<std::string> kernel_names() const = 0;

  virtual void launch(const Launch& launch) = 0;
  // Queued copies. The host's side must stay as it is until the work before the next synchronise() is done, unless
  // upload()'s source is not of allocate_host(): then it is copied before the call returns.
  virtual void upload(void* to, const void* from, size_t bytes) = 0;
  virtual void download(void* to, const void* from, size_t bytes) = 0;
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  virtual void fill(void* to, uint8_t value, size_t bytes) = 0;
  // Writes the description of rows that a kernel's parameters hold (128 bytes, on a multiple of 64). False: not here.
  virtual bool map_rows(const RowsMap& /*rows*/, void* /*map*/) { return false; }
  // Waits for all queued work. An Error (a fault on the device, a lost device) is final: nothing after it works.
  virtual Status synchronise() = 0;

  // A point in the queue that the host can wait for, without waiting for what was queued after it.
  virtual uint64_t mark() = 0;
  virtual Status wait(uint64_t mark) = 0;

  // Between the two calls, launches, copies and fills are recorded instead of run. Only where info().graphs.
  virtual void begin_recording() {}
  virtual Result<std::unique_ptr<Graph>> end_recording() { return std::unique_ptr<Graph>(); }
  virtual void run(const Graph&) {}

  // Whether the vendor's library may serve products of this (n, k): it gives the same bits for every m. Decided once.
  virtual bool library_serves(DType /*type*/, int64_t /*n*/, int64_t /*k*/) { return false; }
  virtual void library_product(const LibraryProduct&) {}
  // Says how the own kernels multiply: from now on the library serves only what they give the same bits to, so that
  // both may serve one weight.
  virtual void hold_library_to(std::function<Status(const LibraryProduct&)> /*own*/) {}
  // For benchmarks: the library's name and version, empty where there is no library, and what it proposes for products
  // of this shape, at most `most` algorithms, its first choice first. They may add up in any order.
  virtual std::string library_version() { return {}; }
  virtual std::vector<std::function<Status(const LibraryProduct&)>> library_algorithms(const LibraryProduct& /*shape*/,
                                                                                       size_t /*most*/) {
    return {};
  }

 protected:
  DeviceInfo info_;
};

// Each driver's door. A driver that finds no device (or whose API the build lacks) says why in one sentence.
Result<std::unique_ptr<Device>> open_cuda(int index);
Result<std::unique_ptr<Device>> open_metal(int index);
Result<std::unique_ptr<Device>> open_emulator();

}  // namespace quire::gpu
