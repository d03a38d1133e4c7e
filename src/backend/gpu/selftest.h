// SPDX-License-Identifier: Apache-2.0
// The self-test of a GPU: makes every kernel of the build ready, then holds every op to the CPU backend.
//
// The CPU's portable level is the reference, so that it is the same on every machine. Inputs are random, small and
// fixed. An op's error is its largest difference divided by the largest value; where one row may go through another
// kernel than many, the two must agree by bits.
#pragma once

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
  double milliseconds = 0;                                        // of the op on the device, its launches included
  std::string note;                                               // what else was wrong
  bool passed() const { return error <= bound && note.empty(); }  // a NaN does not
};

struct BrokenKernel {
  std::string name;
  std::string log;  // the compiler's or the driver's
};

struct SelftestReport {
  size_t kernels = 0;
  double kernel_seconds = 0;
  std::vector<BrokenKernel> broken;
  std::vector<SelftestCheck> checks;  // none where a kernel is broken
  bool passed() const;
};

// One check, to be run on the device and on the CPU (selftest_cases.cc).
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
// CPU all activations are F32, holding values that the case's type holds exactly.
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
  // Both hold the same bits, or the check fails with this note.
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

// `done` is called after each check.
Result<SelftestReport> run_selftest(std::unique_ptr<Device> device,
                                    const std::function<void(const SelftestCheck&)>& done);

}  // namespace quire::gpu
