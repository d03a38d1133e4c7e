// SPDX-License-Identifier: Apache-2.0
// dialect_kernels.h through the host's, Metal's and CUDA's branch of the dialect, under several lane orders.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "backend/emulator/emulator.h"
#include "base/half.h"
#include "tests/kernels/dialect_params.h"

namespace quire::emulator {
const KernelRecord* kernels_of_dialect_host();
const KernelRecord* kernels_of_dialect_cuda();
const KernelRecord* kernels_of_msl_dialect_kernels();
}  // namespace quire::emulator

namespace quire::kernels {
namespace {

enum class Branch { kHost, kMetal, kCuda };

const emulator::KernelRecord& record(Branch branch, const std::string& name) {
  const emulator::KernelRecord* list = branch == Branch::kHost    ? emulator::kernels_of_dialect_host()
                                       : branch == Branch::kMetal ? emulator::kernels_of_msl_dialect_kernels()
                                                                  : emulator::kernels_of_dialect_cuda();
  while (list != nullptr && list->name != name) list = list->next;
  if (list == nullptr) throw std::runtime_error("no kernel " + name);
  return *list;
}

std::vector<float> random_floats(size_t count, unsigned seed, float scale = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator) * scale;
  return values;
}

class Dialect : public testing::TestWithParam<std::tuple<Branch, int>> {
 protected:
  static void run_on(Branch branch, int order, const std::string& name, std::array<uint32_t, 3> grid, uint32_t threads,
                     DialectParams params, std::vector<void*> buffers) {
    const emulator::KernelRecord& kernel = record(branch, name);
    ASSERT_EQ(kernel.buffers, static_cast<int>(buffers.size()));
    ASSERT_EQ(kernel.params_bytes, sizeof params);
    ASSERT_LE(threads, static_cast<uint32_t>(kernel.max_threads));
    emulator::Emulator emulator({.order = order, .workers = 2});
    const Status status = emulator.run(kernel, grid, threads, &params, buffers.data());
    ASSERT_TRUE(status.ok()) << status.error().message;
  }
  // Runs this case's branch into `out` and the host's into the result: `out` as it must be.
  template <typename T>
  std::vector<T> run(const std::string& name, std::array<uint32_t, 3> grid, uint32_t threads, DialectParams params,
                     std::vector<T>& out, std::vector<void*> inputs) {
    std::vector<T> host = out;
    const auto [branch, order] = GetParam();
    inputs.insert(inputs.begin(), out.data());
    run_on(branch, order, name, grid, threads, params, inputs);
    inputs[0] = host.data();
    run_on(Branch::kHost, 0, name, grid, threads, params, inputs);
    return host;
  }
};
INSTANTIATE_TEST_SUITE_P(Branches, Dialect,
                         testing::Combine(testing::Values(Branch::kHost, Branch::kMetal, Branch::kCuda),
                                          testing::Values(0, 1, 2, 7)));

// The butterfly 16, 8, 4, 2, 1, written out.
float butterfly(const float* v) {
  float t[32];
  std::memcpy(t, v, sizeof t);
  for (int width = 16; width > 0; width /= 2) {
    for (int i = 0; i < width; i++) t[i] += t[i + width];
  }
  return t[0];
}

TEST_P(Dialect, SimdOperationsSeeAllThirtyTwoLanes) {
  auto in = random_floats(64, 1);
  in[3] = 2.5f;    // any in the first simdgroup
  in[40] = -2.5f;  // not all in the second
  std::vector<float> out(64 * 8);
  run("simd_ops", {1, 1, 1}, 64, {}, out, {in.data()});
  for (uint32_t tid = 0; tid < 64; tid++) {
    const float *group = &in[tid / 32 * 32], *mine = &out[tid * 8];
    const uint32_t lane = tid % 32;
    EXPECT_EQ(mine[0], butterfly(group));
    EXPECT_EQ(mine[1], *std::max_element(group, group + 32));
    EXPECT_EQ(mine[2], *std::min_element(group, group + 32));
    EXPECT_EQ(mine[3], group[(lane * 7 + 3) % 32]);
    EXPECT_EQ(mine[4], group[lane ^ 5]);
    EXPECT_EQ(mine[5], tid < 32 ? 496.0f + 31.0f + 0.0f : 1520.0f + 63.0f + 32.0f);
    EXPECT_EQ(mine[6], std::any_of(group, group + 32, [](float v) { return v > 2.0f; }) ? 1.0f : 0.0f);
    EXPECT_EQ(mine[7], std::all_of(group, group + 32, [](float v) { return v > -2.0f; }) ? 1.0f : 0.0f);
  }
}

TEST_P(Dialect, BarriersAndTheGridAreWhatTheyAreElsewhere) {
  std::vector<float> out(27 * 128);
  const auto host = run("opposite", {3, 3, 3}, 128, {3, 128}, out, {});
  for (int group = 0; group < 27; group++) {
    for (int i = 0; i < 128; i++) {
      EXPECT_EQ(out[group * 128 + i],
                static_cast<float>(127 - i + group % 3 * 1000 + group / 3 % 3 * 10000 + group / 9 * 100000));
    }
  }
}

TEST_P(Dialect, CopiesArriveAfterTheirWait) {
  struct alignas(16) Words {
    uint32_t word[256];
  };
  std::vector<Words> in(1), out(1);
  for (uint32_t i = 0; i < 256; i++) in[0].word[i] = i;
  run("async_copy", {1, 1, 1}, 32, {}, out, {in.data()});
  for (uint32_t i = 0; i < 256; i++) EXPECT_EQ(out[0].word[i], i / 128 * 128 + (31 - i % 128 / 4) * 4 + i % 4);
}

// Functions of one argument have the same bits on every branch; math_test.cc says how good they are.
TEST_P(Dialect, FunctionsHaveTheSameBitsOnEveryBranch) {
  auto in = random_floats(300, 5, 4.0f);
  for (const float x : {0.0f, -0.0f, 1.0f, -88.0f, 89.0f, -200.0f, 1e-30f, 1e30f}) in.push_back(x);
  std::vector<float> out(in.size() * 12);
  const auto host = run("values", {1, 1, 1}, 64, {static_cast<int>(in.size()), 64}, out, {in.data()});
  EXPECT_EQ(std::memcmp(out.data(), host.data(), out.size() * sizeof(float)), 0);
  EXPECT_FLOAT_EQ(out[12 * 7 + 7], std::tanh(in[7]));
}

TEST_P(Dialect, SixteenBitTypesRoundToNearestEven) {
  auto in = random_floats(300, 6, 100.0f);
  for (const float x : {0.0f, 65519.0f, 65520.0f, 1e-7f, 6e-8f, 1e-40f, 3e38f, 1.00048828125f}) in.push_back(x);
  for (const bool bf16 : {false, true}) {
    std::vector<uint16_t> out(in.size());
    std::vector<float> back(in.size());
    run(bf16 ? "convert_bf16" : "convert_f16", {1, 1, 1}, 64, {static_cast<int>(in.size()), 64}, out,
        {back.data(), in.data()});
    for (size_t i = 0; i < in.size(); i++) {
      EXPECT_EQ(out[i], bf16 ? float_to_bf16(in[i]) : float_to_fp16(in[i])) << in[i];
      EXPECT_EQ(back[i], -(bf16 ? bf16_to_float(out[i]) : fp16_to_float(out[i]))) << in[i];
    }
  }
}

// Tiles against doubles: every element, its rows' maxima and sums, and the result used as an operand.
TEST_P(Dialect, TilesMultiplyAsDoublesDo) {
  for (const std::string name : {"tile_f16", "tile_f16_trans", "tile_bf16", "tile_bf16_trans"}) {
    SCOPED_TRACE(name);
    const bool bf16 = name.find("bf16") != std::string::npos, trans = name.ends_with("_trans");
    const auto round = [&](float f) { return bf16 ? float_to_bf16(f) : float_to_fp16(f); };
    const auto widen = [&](uint16_t h) { return bf16 ? bf16_to_float(h) : fp16_to_float(h); };
    std::vector<uint16_t> a, b;
    for (const float f : random_floats(16 * 32, 3)) a.push_back(round(f));
    for (const float f : random_floats(16 * 32, 4)) b.push_back(round(f));
    const auto b_at = [&](int k, int n) { return widen(trans ? b[n * 32 + k] : b[k * 16 + n]); };
    std::vector<float> out(288 + 256);
    run(name, {1, 1, 1}, 32, {}, out, {a.data(), b.data()});
    for (int row = 0; row < 16; row++) {
      const float* values = &out[row * 16];
      double sum = 0, sum_norm = 0;
      for (int col = 0; col < 16; col++) {
        double expected = 0, norm = 0;
        for (int k = 0; k < 32; k++) {
          const double term = static_cast<double>(widen(a[row * 32 + k])) * b_at(k, col);
          expected += term;
          norm += std::abs(term);
        }
        EXPECT_NEAR(values[col], expected, norm * 32 * 0x1p-24) << row << ", " << col;
        sum += values[col];
        sum_norm += std::abs(values[col]);
        double again = 1, again_norm = 1;
        for (int k = 0; k < 16; k++) {
          const double term = static_cast<double>(widen(round(values[k]))) * b_at(16 + k, col);
          again += term;
          again_norm += std::abs(term);
        }
        EXPECT_NEAR(out[288 + row * 16 + col], again, again_norm * 32 * 0x1p-24) << row << ", " << col;
      }
      EXPECT_EQ(out[256 + row], *std::max_element(values, values + 16));
      EXPECT_NEAR(out[272 + row], sum, sum_norm * 16 * 0x1p-24);
    }
  }
}

}  // namespace
}  // namespace quire::kernels
