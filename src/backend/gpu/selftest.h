// SPDX-License-Identifier: Apache-2.0
// The self-test of a GPU: makes every kernel of the build ready, then compares every op with the CPU backend.
//
// The reference is the CPU's portable level, because it is the same on every machine. Inputs are random, small and
// fixed. An op's error is its largest difference divided by the largest value. Where one row may take another kernel
// than many rows, both must give the same bits.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/gpu/device.h"
#include "backend/gpu/gpu_backend.h"

namespace quire::gpu {

struct SelftestCheck {
  std::string op;
  std::string types;
  double error = 0;
  double bound = 0;
  double milliseconds = 0;                                        // on the device, launches included
  std::string note;                                               // what else was wrong
  bool passed() const { return error <= bound && note.empty(); }  // false for a NaN
};

struct BrokenKernel {
  std::string name;
  std::string log;  // the compiler's or the driver's
};

struct SelftestReport {
  size_t kernels = 0;
  double kernel_seconds = 0;
  std::vector<BrokenKernel> broken;
  std::vector<SelftestCheck> checks;  // empty if a kernel is broken
  bool passed() const {
    return broken.empty() && !checks.empty() &&
           std::all_of(checks.begin(), checks.end(), [](const SelftestCheck& check) { return check.passed(); });
  }
};

// One check, which runs on the device and on the CPU (selftest_cases.cc).
class SelftestSide;
struct SelftestCase {
  std::string op;
  std::string types;
  DType activation;
  double bound;
  std::function<std::vector<float>(SelftestSide&)> run;
};
std::vector<SelftestCase> selftest_cases();

// What a case sees of a backend: tensors whose values are the same on both sides, and a way to read them back. On the
// CPU all activations are F32, with values that the case's type can represent exactly.
class SelftestSide {
 public:
  SelftestSide(Backend& backend, GpuBackend* gpu, DType activation) : ops(backend), gpu(gpu), type(activation) {}

  Tensor random(int64_t rows, int64_t cols, uint32_t seed, float range, DType type);
  Tensor random(int64_t rows, int64_t cols, uint32_t seed, float range = 1.0f) {
    return random(rows, cols, seed, range, type);
  }
  Tensor room(int64_t rows, int64_t cols, DType type);
  Tensor room(int64_t rows, int64_t cols) { return room(rows, cols, type); }
  const float* floats(int64_t count, uint32_t seed, float low, float high);
  void* zeros(size_t bytes);
  std::span<const int32_t> ints(std::vector<int32_t> values);
  std::span<const int64_t> longs(std::vector<int64_t> values);

  // Runs ops and waits for them.
  void go(const std::function<void(Backend&)>& run);
  std::vector<float> read(const Tensor& t);
  // The check fails with this note unless both have the same bits.
  void expect_same(const std::vector<float>& a, const std::vector<float>& b, const char* note);

  Backend& ops;
  GpuBackend* gpu;  // null: the CPU
  DType type;
  double milliseconds = 0;
  std::string note;

 private:
  void* put(const void* values, size_t bytes);
  std::vector<std::unique_ptr<Buffer>> memory_;
  std::vector<std::vector<int32_t>> ints_;
  std::vector<std::vector<int64_t>> longs_;
};

// Calls `done` after each check.
Result<SelftestReport> run_selftest(std::unique_ptr<Device> device,
                                    const std::function<void(const SelftestCheck&)>& done);

}  // namespace quire::gpu
