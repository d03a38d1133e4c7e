// SPDX-License-Identifier: Apache-2.0
// GpuRig: a GPU backend, random tensors on it, and a timer for ops.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backend/gpu/gpu_backend.h"
#include "backend/testing/linear_cases.h"

namespace quire::bench {

// Owned by one measurement, used by one thread. Memory that it returns lives until release().
class GpuRig {
 public:
  static Result<std::unique_ptr<GpuRig>> open(const std::string& device, int64_t samples);

  Backend& backend() { return *backend_; }
  gpu::Device& device() { return *device_; }

  // A tensor filled with random values.
  Result<Tensor> tensor(DType type, int64_t rows, int64_t cols, uint64_t seed);
  Result<void*> memory(size_t bytes);
  // Writes random elements, not quantised, starting at `address`.
  void randomise(void* address, DType type, int64_t elements, uint64_t seed);
  // Copies of one random weight, enough that calls that use them in turn read from memory and not from a cache.
  Result<std::vector<const PackedMatrix*>> weights(DType type, int64_t n, int64_t k, size_t most);
  template <typename T>
  std::span<const T> stage(const std::vector<T>& values) {
    return {static_cast<const T*>(backend_->stage(std::as_bytes(std::span(values)))), values.size()};
  }
  void release();

  // Seconds per call: the median over samples of a run of call(0), call(1) ... call(calls - 1), recorded as a graph if
  // the device can do so. With `plain`, it is never recorded, for ops that wait or allocate memory.
  Result<double> time(size_t calls, const std::function<void(size_t)>& call, bool plain = false) {
    return time(calls, call, samples_, plain);
  }
  Result<double> time(size_t calls, const std::function<void(size_t)>& call, int64_t samples, bool plain);

 private:
  GpuRig() = default;

  std::unique_ptr<Backend> backend_;
  gpu::Device* device_ = nullptr;
  int64_t samples_ = 0;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<std::unique_ptr<PackedMatrix>> packed_;
};

}  // namespace quire::bench
