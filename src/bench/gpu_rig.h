// SPDX-License-Identifier: Apache-2.0
// GpuRig: a GPU backend with random tensors on it, and the time of ops.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backend/gpu/gpu_backend.h"
#include "backend/testing/linear_cases.h"

namespace quire::bench {

// Owned by one measurement, used from one thread. Memory that it hands out lives until release().
class GpuRig {
 public:
  static Result<std::unique_ptr<GpuRig>> open(const std::string& device, int64_t samples);

  Backend& backend() { return *backend_; }
  gpu::Device& device() { return *device_; }

  // Memory for a tensor, filled with random values.
  Result<Tensor> tensor(DType type, int64_t rows, int64_t cols, uint64_t seed);
  Result<void*> memory(size_t bytes);
  // Plain random elements from `address` on.
  void randomise(void* address, DType type, int64_t elements, uint64_t seed);
  // As many copies of a random weight as fill the memory that repeated calls walk through.
  Result<std::vector<const PackedMatrix*>> weights(DType type, int64_t n, int64_t k, size_t most);
  template <typename T>
  std::span<const T> stage(const std::vector<T>& values) {
    return {static_cast<const T*>(backend_->stage(std::as_bytes(std::span(values)))), values.size()};
  }
  void release();

  // Seconds of one call: the median over samples of a run of call(0), call(1) ... call(calls - 1), recorded where the
  // device can; `plain`: never, for ops that wait or take memory.
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
