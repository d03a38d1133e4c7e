// SPDX-License-Identifier: Apache-2.0
// Runs the self-test's checks on a device and on the CPU, and compares them.
#include "backend/gpu/selftest.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "base/half.h"

namespace quire::gpu {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

float as_type(float x, DType type) {
  if (type == DType::kF16) return fp16_to_float(float_to_fp16(x));
  if (type == DType::kBF16) return bf16_to_float(float_to_bf16(x));
  return x;
}

// The largest difference divided by the largest value; NaN if only one side has a NaN, or the sizes differ.
double error_of(const std::vector<float>& got, const std::vector<float>& want) {
  double largest = 0, difference = 0;
  if (got.size() != want.size()) return std::numeric_limits<double>::quiet_NaN();
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(want[i])) continue;
    if (std::isnan(got[i]) || std::isnan(want[i])) return std::numeric_limits<double>::quiet_NaN();
    largest = std::max(largest, std::fabs(double{want[i]}));
    if (got[i] != want[i]) difference = std::max(difference, std::fabs(double{got[i]} - double{want[i]}));
  }
  return difference == 0 ? 0 : difference / largest;
}

SelftestCheck check(const SelftestCase& c, GpuBackend& gpu, Backend& cpu) {
  SelftestSide here(cpu, nullptr, c.activation), there(gpu, &gpu, c.activation);
  gpu.begin_step();
  const std::vector<float> want = c.run(here), got = c.run(there);
  SelftestCheck out{c.op, c.types, error_of(got, want), c.bound, there.milliseconds, there.note};
  // A reference of zeros would prove nothing.
  if (std::all_of(want.begin(), want.end(), [](float x) { return x == 0; })) out.note = "nothing was compared";
  return out;
}

}  // namespace

void* SelftestSide::zeros(size_t bytes) {
  auto buffer = ops.allocate(std::max<size_t>(bytes, 16));
  QUIRE_CHECK(buffer.ok(), "no memory for the self-test");
  memory_.push_back(std::move(buffer).value());
  return memory_.back()->data();
}

void* SelftestSide::put(const void* values, size_t bytes) {
  void* at = zeros(bytes);
  if (gpu == nullptr) {
    std::memcpy(at, values, bytes);
  } else {
    gpu->device().upload(at, values, bytes);
  }
  return at;
}

Tensor SelftestSide::random(int64_t rows, int64_t cols, uint32_t seed, float range, DType as) {
  std::mt19937 words(seed);
  const DType stored = gpu == nullptr ? DType::kF32 : as;
  const auto element = static_cast<size_t>(info(stored).block_bytes);
  std::vector<std::byte> bytes(static_cast<size_t>(rows * cols) * element);
  for (size_t i = 0; i < bytes.size(); i += element) {
    const float x = as_type(range * (static_cast<float>(words() >> 8) * 0x1p-23f - 1.0f), as);
    const uint16_t half = stored == DType::kF16 ? float_to_fp16(x) : float_to_bf16(x);
    if (stored == DType::kF32) {
      std::memcpy(bytes.data() + i, &x, 4);
    } else {
      std::memcpy(bytes.data() + i, &half, 2);
    }
  }
  return {put(bytes.data(), bytes.size()), stored, rows, cols, cols};
}

Tensor SelftestSide::room(int64_t rows, int64_t cols, DType as) {
  const DType stored = gpu == nullptr ? DType::kF32 : as;
  return {zeros(static_cast<size_t>(rows * cols * info(stored).block_bytes)), stored, rows, cols, cols};
}

const float* SelftestSide::floats(int64_t count, uint32_t seed, float low, float high) {
  std::mt19937 words(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& x : values) x = low + (high - low) * (static_cast<float>(words() >> 8) * 0x1p-24f);
  return static_cast<const float*>(put(values.data(), values.size() * sizeof(float)));
}

std::span<const int32_t> SelftestSide::ints(std::vector<int32_t> values) {
  ints_.push_back(std::move(values));
  const std::span<const int32_t> all(ints_.back());
  return {static_cast<const int32_t*>(ops.stage(std::as_bytes(all))), all.size()};
}

std::span<const int64_t> SelftestSide::longs(std::vector<int64_t> values) {
  longs_.push_back(std::move(values));
  const std::span<const int64_t> all(longs_.back());
  return {static_cast<const int64_t*>(ops.stage(std::as_bytes(all))), all.size()};
}

void SelftestSide::go(const std::function<void(Backend&)>& run) {
  ops.synchronise();
  const auto start = std::chrono::steady_clock::now();
  run(ops);
  ops.synchronise();
  milliseconds += 1e3 * seconds_since(start);
}

std::vector<float> SelftestSide::read(const Tensor& t) {
  QUIRE_CHECK(t.stride == t.cols);
  const auto count = static_cast<size_t>(t.rows * t.cols);
  const auto element = static_cast<size_t>(info(t.dtype).block_bytes);
  std::vector<std::byte> bytes(count * element);
  if (gpu == nullptr) {
    std::memcpy(bytes.data(), t.data, bytes.size());
  } else {
    gpu->device().download(bytes.data(), t.data, bytes.size());
    gpu->synchronise();
  }
  std::vector<float> out(count);
  for (size_t i = 0; i < count; ++i) {
    uint16_t half = 0;
    std::memcpy(t.dtype == DType::kF32 ? static_cast<void*>(&out[i]) : &half, bytes.data() + i * element, element);
    if (t.dtype != DType::kF32) out[i] = t.dtype == DType::kF16 ? fp16_to_float(half) : bf16_to_float(half);
  }
  return out;
}

void SelftestSide::expect_same(const std::vector<float>& a, const std::vector<float>& b, const char* what) {
  if (a.size() != b.size() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) != 0) note = what;
}

Result<SelftestReport> run_selftest(std::unique_ptr<Device> device,
                                    const std::function<void(const SelftestCheck&)>& done) {
  QUIRE_ASSIGN(const std::unique_ptr<Backend> cpu, make_cpu_backend({1, "portable"}));
  SelftestReport report;
  const auto start = std::chrono::steady_clock::now();
  for (const std::string& name : device->kernel_names()) {
    ++report.kernels;
    const auto kernel = device->kernel(name);
    if (!kernel.ok()) report.broken.push_back({name, kernel.error().message});
  }
  report.kernel_seconds = seconds_since(start);
  if (!report.broken.empty()) return report;
  GpuBackend gpu(std::move(device));
  QUIRE_TRY(gpu.check_kernels());
  for (const SelftestCase& c : selftest_cases()) {
    report.checks.push_back(check(c, gpu, *cpu));
    done(report.checks.back());
  }
  return report;
}

}  // namespace quire::gpu
