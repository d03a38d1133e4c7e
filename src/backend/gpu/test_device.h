// SPDX-License-Identifier: Apache-2.0
// Helpers for tests of ops on a GPU: a backend on a device, and tensors that are uploaded and read back.
//
// The device is the emulator, or the one that QUIRE_TEST_DEVICE names (cuda, metal).
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "backend/emulator/emulator_device.h"
#include "backend/gpu/gpu_backend.h"
#include "backend/testing/scalar_math.h"
#include "base/half.h"
#include "base/test_sanitized.h"

namespace quire::gpu {

using cases::rounded;

// Half a unit in the last place, relative.
inline double rounding(DType type) {
  return type == DType::kF16 ? 0x1p-11 : type == DType::kBF16 ? 0x1p-8 : 0x1p-24;
}

// The name of the device that is tested.
inline std::string test_device_name() {
  const char* named = std::getenv("QUIRE_TEST_DEVICE");
  return named == nullptr ? "emulator" : named;
}
inline bool on_emulator() {
  return test_device_name() == "emulator";
}

// A matrix on the host: floats that its type can represent exactly, with a gap between rows.
struct HostMatrix {
  HostMatrix(int64_t rows, int64_t cols, DType type, uint32_t seed, float range = 2.0f, int64_t gap = 4)
      : rows(rows), cols(cols), stride(cols + gap), type(type), values(static_cast<size_t>(rows * stride)) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> uniform(-range, range);
    for (float& x : values) x = rounded(uniform(random), type);
  }
  float at(int64_t row, int64_t col) const { return values[static_cast<size_t>(row * stride + col)]; }
  std::span<const float> part(int64_t row, int64_t begin, int64_t count) const {
    return std::span(values).subspan(static_cast<size_t>(row * stride + begin), static_cast<size_t>(count));
  }
  float& at(int64_t row, int64_t col) { return values[static_cast<size_t>(row * stride + col)]; }

  int64_t rows, cols, stride;
  DType type;
  std::vector<float> values;
};

class TestDevice {
 public:
  // `order`: in which the emulator runs lanes. Real devices ignore it.
  explicit TestDevice(int order) {
    const std::string name = test_device_name();
    auto opened = name == "cuda"    ? open_cuda(0)
                  : name == "metal" ? open_metal(0)
                                    : open_emulator(emulator::EmulatorOptions{.order = order});
    if (!opened.ok()) ADD_FAILURE() << opened.error().message;
    QUIRE_CHECK(opened.ok(), "the tests have no device");
    backend_ = std::make_unique<GpuBackend>(std::move(opened).value());
  }

  explicit TestDevice(std::unique_ptr<GpuBackend> backend) : backend_(std::move(backend)) {}

  GpuBackend& ops() { return *backend_; }
  Device& device() { return backend_->device(); }
  // Frees everything that put() and room() have allocated.
  void clear() {
    backend_->synchronise();
    blocks_.clear();
  }

  template <typename T>
  T* put(const std::vector<T>& values) {
    return static_cast<T*>(put(values.data(), values.size() * sizeof(T)));
  }
  Tensor put(const HostMatrix& m) {
    const size_t element = static_cast<size_t>(info(m.type).block_bytes);
    std::vector<uint8_t> bytes(m.values.size() * element);
    for (size_t i = 0; i < m.values.size(); ++i) {
      const float x = m.values[i];
      const uint16_t bits = m.type == DType::kF16 ? float_to_fp16(x) : float_to_bf16(x);
      std::memcpy(bytes.data() + i * element, m.type == DType::kF32 ? static_cast<const void*>(&x) : &bits, element);
    }
    return {put(bytes.data(), bytes.size()), m.type, m.rows, m.cols, m.stride};
  }
  // A tensor of kUntouched bytes, for an op to write.
  Tensor room(int64_t rows, int64_t cols, DType type, int64_t gap = 4) {
    const std::vector<uint8_t> bytes(static_cast<size_t>(rows * (cols + gap) * info(type).block_bytes), kUntouched);
    return {put(bytes.data(), bytes.size()), type, rows, cols, cols + gap};
  }

  std::vector<uint8_t> get(const void* address, size_t bytes) {
    std::vector<uint8_t> out(bytes);
    device().download(out.data(), address, bytes);
    backend_->synchronise();
    return out;
  }
  // The rows without the gaps between them, which must be as room() left them. Without that check nothing behind the
  // last row is read, so that t may be some columns of a tensor.
  std::vector<uint8_t> rows_of(const Tensor& t, bool check_gaps = true) {
    const auto element = static_cast<size_t>(info(t.dtype).block_bytes);
    const auto row = static_cast<size_t>(t.cols) * element, stride = static_cast<size_t>(t.stride) * element;
    const size_t whole = static_cast<size_t>(t.rows) * stride;
    const std::vector<uint8_t> all = get(t.data, check_gaps || whole == 0 ? whole : whole - stride + row);
    std::vector<uint8_t> out;
    for (size_t at = 0; at < all.size(); at += stride) {
      out.insert(out.end(), all.begin() + static_cast<ptrdiff_t>(at), all.begin() + static_cast<ptrdiff_t>(at + row));
      for (size_t i = at + row; check_gaps && i < at + stride; ++i) {
        if (all[i] != kUntouched) ADD_FAILURE() << "byte " << i - at << " behind a row of " << row << " was written";
      }
    }
    return out;
  }

  static constexpr uint8_t kUntouched = 0x5a;

 private:
  void* put(const void* values, size_t bytes) {
    auto block = device().allocate(std::max<size_t>(bytes, 1));
    QUIRE_CHECK(block.ok(), "no device memory for a test");
    blocks_.push_back(std::move(block).value());
    device().upload(blocks_.back()->address(), values, bytes);
    backend_->synchronise();
    return blocks_.back()->address();
  }

  std::unique_ptr<GpuBackend> backend_;
  std::vector<std::unique_ptr<Memory>> blocks_;
};

// Two devices that must give the same bits: the emulator with two orders of its lanes. A sanitizer sees nothing new in
// the second one.
inline constexpr int kDevices = kSanitized ? 1 : 2;
inline TestDevice& test_device(int which = 0) {
  static TestDevice devices[] = {TestDevice(0), TestDevice(7)};
  return devices[which];
}

inline std::vector<float> floats_of(const std::vector<uint8_t>& bytes, DType type) {
  const auto element = static_cast<size_t>(info(type).block_bytes);
  std::vector<float> out(bytes.size() / element);
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t bits = 0;
    if (type == DType::kF32) {
      std::memcpy(&out[i], bytes.data() + 4 * i, 4);
    } else {
      std::memcpy(&bits, bytes.data() + 2 * i, 2);
      out[i] = type == DType::kF16 ? fp16_to_float(bits) : bf16_to_float(bits);
    }
  }
  return out;
}

// Runs an op on rows [first, first + count) of its inputs: all of them, each alone, and under another order of lanes.
// Every row must have the same bits each time; returns them as floats.
using RunRows = std::function<std::vector<uint8_t>(TestDevice&, int64_t first, int64_t count)>;
inline std::vector<float> run_rows(int64_t rows, DType type, const RunRows& run, const std::string& what) {
  const std::vector<uint8_t> whole = run(test_device(), 0, rows);
  const auto row = static_cast<ptrdiff_t>(whole.size()) / rows;
  for (int64_t r = 0; r < rows; r += kSanitized ? 4 : 1) {
    const std::vector<uint8_t> alone = run(test_device(), r, 1);
    EXPECT_EQ(alone, std::vector<uint8_t>(whole.begin() + r * row, whole.begin() + (r + 1) * row))
        << what << ": row " << r << " alone";
  }
  if (kDevices > 1) {
    EXPECT_EQ(run(test_device(1), 0, rows), whole) << what << ": another order of lanes";
    test_device(1).clear();
  }
  test_device().clear();
  return floats_of(whole, type);
}

// The types of activations, and of inputs and outputs of ops that convert.
inline constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
struct TypePair {
  DType in, out;
};
inline constexpr TypePair kPairs[] = {
    {DType::kF32, DType::kF32}, {DType::kF32, DType::kF16},   {DType::kF32, DType::kBF16}, {DType::kF16, DType::kF16},
    {DType::kF16, DType::kF32}, {DType::kBF16, DType::kBF16}, {DType::kBF16, DType::kF32}};

inline std::string text(const char* op, DType in, DType out, int64_t size) {
  return std::string(op) + " " + name(in) + " to " + name(out) + ", " + std::to_string(size);
}

// |got - truth| is at most the rounding of the output plus `floats` roundings of floats of size `size`.
inline void expect_close(float got, double truth, DType out, double size, double floats, const std::string& what) {
  const double bound = std::fabs(truth) * rounding(out) * 1.01 + size * floats * 0x1p-24 +
                       (out == DType::kF16 ? 0x1p-25 : 0x1p-140);  // subnormals
  ASSERT_NEAR(double{got}, truth, bound) << what;
}

}  // namespace quire::gpu
