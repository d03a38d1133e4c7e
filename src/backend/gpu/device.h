// SPDX-License-Identifier: Apache-2.0
// Device: the interface that every GPU driver implements: memory, kernels by name, launches in order, graphs.
//
// Memory is referred to by the addresses that kernels see. The host may read and write such an address only where
// `unified` says so, and otherwise uses upload() and download(). Addresses inside a block (base + offset) are as good
// as its base: a driver whose API binds objects finds the block by the address.
//
// Work is queued and runs in the order of the calls: a launch sees what the launches and uploads before it wrote. One
// thread at a time may call a device.
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

#include "base/check.h"
#include "base/result.h"
#include "ops/dtype.h"

namespace quire {
class Backend;
}

namespace quire::gpu {

enum class Api : uint8_t { kCuda, kMetal, kEmulator };

// What a device is and can do. Set when it is opened, and constant from then on.
struct DeviceInfo {
  Api api = Api::kEmulator;
  std::string name;          // "NVIDIA H200", "Apple M4 Max"
  std::string architecture;  // "sm_90", "apple9", "host"
  int compute_units = 1;     // multiprocessors, GPU cores
  int max_threads = 1024;    // per threadgroup
  size_t max_threadgroup_memory = 32768;
  size_t memory_bytes = 0;       // total
  size_t working_set_bytes = 0;  // the most that the system advises to use, or memory_bytes
  bool unified = false;          // the host sees device addresses as they are
  bool graphs = false;           // begin_recording() works
  bool asynchronous = false;     // launches return before the work is done
};

// A zeroed block of device memory, freed with its owner, after the work that was queued before.
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
  int max_threads() const { return max_threads_; }  // that a threadgroup of this kernel may have on this device

 protected:
  std::string name_;
  int max_threads_ = 0;
};

struct Grid {  // threadgroups
  uint32_t x = 1, y = 1, z = 1;
};

// One launch: parameters by value at index 0, then the buffers in the order of the kernel's arguments. A buffer may be
// null if the kernel does not touch that argument.
struct Launch {
  const Kernel* kernel = nullptr;
  const void* params = nullptr;  // at most 4096 bytes
  size_t params_bytes = 0;
  std::span<void* const> buffers;  // at most 16
  Grid grid;                       // none of them 0
  uint32_t threads = 0;            // a multiple of 32
  uint32_t dynamic_memory = 0;     // bytes of threadgroup memory beside the kernel's own; on CUDA only
};

// Recorded launches, which can run again with the same addresses and parameters.
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

// Rows of 16-bit elements as the copy engine of sm_90 reads them: 64 elements of `box` rows at a time, from each of
// `box_halves` halves. Piece c of row r (16 bytes) is stored at c ^ (r % 8); behind the ends there are zeros.
// REQUIRES: `data` and every row begin on 16 bytes.
struct RowsMap {
  const void* data = nullptr;
  int64_t rows = 0, cols = 0, stride = 0;  // elements
  int halves = 1;                          // 1, or 2: the rows are seen as two halves
  int box = 0, box_halves = 1;
};

// Pages of 16-bit K or V as the copy engine of sm_90 reads them: a box has `box_rows` positions of one head, first 64
// elements of each, then the next 64, with pieces of 16 bytes as above. Page b begins at data + b * page_stride.
// REQUIRES: `data` and every page begin on 16 bytes; head_dim is a multiple of 64, and box_rows of 8 and a divisor of
// block_size.
struct PagesMap {
  const void* data = nullptr;
  int64_t page_stride = 0;  // bytes
  int64_t num_pages = 0, block_size = 0, heads = 0, head_dim = 0;
  int64_t box_rows = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  const DeviceInfo& info() const { return info_; }

  virtual size_t free_bytes() const = 0;  // now
  virtual Result<std::unique_ptr<Memory>> allocate(size_t bytes) = 0;
  // Pinned host memory: uploads from it and downloads to it need no copy in between. Kernels may write to it, by the
  // same address. Where memory is unified it is the same as allocate().
  virtual Result<std::unique_ptr<Memory>> allocate_host(size_t bytes) = 0;

  // The kernel of that name, made ready at its first use; an Error carries the compiler's log.
  virtual Result<const Kernel*> kernel(std::string_view name) = 0;
  // Whether the build has that kernel for this device. Drivers that compile kernels do not compile it for the answer.
  virtual bool has_kernel(std::string_view name) { return kernel(name).ok(); }
  // The names of all kernels that the build has for this device.
  virtual std::vector<std::string> kernel_names() const = 0;

  virtual void launch(const Launch& launch) = 0;
  // Queued copies. Host memory of allocate_host() must not change until the copy is done; the source of an upload in
  // other memory is copied before the call returns.
  virtual void upload(void* to, const void* from, size_t bytes) = 0;
  virtual void download(void* to, const void* from, size_t bytes) = 0;
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  virtual void fill(void* to, uint8_t value, size_t bytes) = 0;
  // Queues what another library adds to the device's stream (on CUDA a CUstream), or does it now where work is done
  // when a call returns; recorded like everything else. An Error of `work` is the device's.
  virtual void queue(std::function<Status(void* stream)> /*work*/) {
    QUIRE_CHECK(false, "this device takes no work of other libraries");
  }
  // Writes the descriptor of rows for a kernel's parameters (128 bytes, aligned to 64). False: this device cannot.
  virtual bool map_rows(const RowsMap& /*rows*/, void* /*map*/) { return false; }
  virtual bool map_pages(const PagesMap& /*pages*/, void* /*map*/) { return false; }
  // Waits for all queued work. An Error (a fault on the device, a lost device) is final: nothing works after it.
  virtual Status synchronise() = 0;

  // A point in the queue. The host can wait for it without waiting for what was queued after it.
  virtual uint64_t mark() = 0;
  virtual Status wait(uint64_t mark) = 0;
  // A single point that another thread may look at: whether the queue has come past the last one that was set.
  virtual void set_probe() {}
  virtual bool probe_passed() { return true; }

  // Between the two calls, launches, copies and fills are recorded instead of run. REQUIRES: info().graphs
  virtual void begin_recording() {}
  virtual Result<std::unique_ptr<Graph>> end_recording() { return std::unique_ptr<Graph>(); }
  virtual void run(const Graph&) {}

  // Whether the vendor's library may serve products of this (n, k), because it gives the same bits for every m. Decided
  // at the first call.
  virtual bool library_serves(DType /*type*/, int64_t /*n*/, int64_t /*k*/) { return false; }
  virtual void library_product(const LibraryProduct&) {}
  // From now on the library serves only products for which it gives the same bits as `reference`, quire's own kernels,
  // so that both may serve one weight.
  virtual void set_library_reference(std::function<Status(const LibraryProduct&)> /*reference*/) {}
  // How long the calls of library_serves() took so far.
  virtual double library_seconds() const { return 0; }
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

std::string describe(const DeviceInfo& info);  // "cuda (NVIDIA H200, sm_90)"

// Opens a device. If there is none, or the build lacks the driver, the error says why in one sentence.
Result<std::unique_ptr<Device>> open_cuda(int index);
Result<int> count_cuda();  // how many the driver shows
Result<std::unique_ptr<Device>> open_metal(int index);
Result<std::unique_ptr<Device>> open_emulator();
// The backend on a device: "cuda" (of which `index` is one), "metal" or "emulator"; "auto" takes the first of cuda and
// metal that is present.
Result<std::unique_ptr<Backend>> make_gpu_backend(const std::string& device, int index = 0);

}  // namespace quire::gpu
