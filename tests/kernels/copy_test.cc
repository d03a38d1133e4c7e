// SPDX-License-Identifier: Apache-2.0
// kernels/copy_pages.h and kernels/gather.h on the emulator's device: pages and rows arrive, and nothing else is touched.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "backend/emulator/emulator_device.h"
#include "kernels/params/copy_pages.h"
#include "kernels/params/gather.h"

namespace quire::kernels {
namespace {

struct Block {
  Block(gpu::Device& device, size_t bytes) : memory(std::move(device.allocate(bytes).value())) {}
  template <typename T>
  T* as() const {
    return static_cast<T*>(memory->address());
  }
  std::unique_ptr<gpu::Memory> memory;
};

class Copy : public testing::TestWithParam<int> {
 protected:
  std::unique_ptr<gpu::Device> device_ = std::move(gpu::open_emulator({.order = GetParam(), .workers = 2}).value());
  void launch(const char* name, const void* params, size_t bytes, std::vector<void*> buffers, gpu::Grid grid) {
    gpu::Launch launch;
    launch.kernel = device_->kernel(name).value();
    launch.params = params;
    launch.params_bytes = bytes;
    launch.buffers = buffers;
    launch.grid = grid;
    launch.threads = 64;
    device_->launch(launch);
  }
};

TEST_P(Copy, PagesGoWhereThePairsSay) {
  constexpr int kPages = 7, kWords = 77;
  Block out(*device_, kPages * kWords * 16), in(*device_, kPages * kWords * 16), pairs(*device_, 6 * sizeof(int));
  for (int i = 0; i < kPages * kWords * 4; i++) in.as<int>()[i] = i + 1;
  const std::vector<int> wanted = {6, 0, 2, 5, 3, 3};
  device_->upload(pairs.as<int>(), wanted.data(), wanted.size() * sizeof(int));
  const CopyPagesParams params = {kWords, 3, 2, 64};
  launch("copy_pages", &params, sizeof params, {out.as<void>(), in.as<void>(), pairs.as<void>()}, {3, 2, 1});
  ASSERT_TRUE(device_->synchronise().ok());

  std::vector<int> expected(kPages * kWords * 4);
  for (int pair = 0; pair < 3; pair++) {
    std::iota(&expected[wanted[2 * pair] * kWords * 4], &expected[wanted[2 * pair] * kWords * 4] + kWords * 4,
              wanted[2 * pair + 1] * kWords * 4 + 1);
  }
  EXPECT_EQ(std::memcmp(out.as<int>(), expected.data(), expected.size() * sizeof(int)), 0);
}

TEST_P(Copy, RowsAreGatheredWithStridesInEveryType) {
  constexpr int kRows = 5, kCols = 131, kInStride = 140, kOutStride = 133, kInRows = 9;
  const std::vector<int> wanted = {8, 0, 3, 3, 7};
  const struct {
    const char* name;
    int bytes;
  } types[] = {{"gather_rows_f32", 4}, {"gather_rows_f16", 2}, {"gather_rows_bf16", 2}};
  for (const auto& type : types) {
    SCOPED_TRACE(type.name);
    Block out(*device_, kRows * kOutStride * type.bytes), in(*device_, kInRows * kInStride * type.bytes);
    Block index(*device_, wanted.size() * sizeof(int));
    device_->upload(index.as<int>(), wanted.data(), wanted.size() * sizeof(int));
    for (int i = 0; i < kInRows * kInStride * type.bytes; i++)
      in.as<uint8_t>()[i] = static_cast<uint8_t>(i * 37 + i / 256);
    device_->fill(out.as<void>(), 0x5a, out.memory->bytes());
    const GatherRowsParams params = {kOutStride, kInStride, kRows, kCols, 64};
    launch(type.name, &params, sizeof params, {out.as<void>(), in.as<void>(), index.as<void>()}, {kRows, 1, 1});
    ASSERT_TRUE(device_->synchronise().ok());

    std::vector<uint8_t> expected(out.memory->bytes(), 0x5a);
    for (int row = 0; row < kRows; row++) {
      std::memcpy(&expected[row * kOutStride * type.bytes], in.as<uint8_t>() + wanted[row] * kInStride * type.bytes,
                  kCols * type.bytes);
    }
    EXPECT_EQ(std::memcmp(out.as<uint8_t>(), expected.data(), expected.size()), 0);
  }
}

// A recording holds copies of parameters and addresses, and runs nothing until it is asked to.
TEST_P(Copy, RecordedLaunchesRunAgain) {
  Block out(*device_, 64), in(*device_, 64), index(*device_, sizeof(int));
  {
    const GatherRowsParams params = {16, 16, 1, 16, 64};
    device_->begin_recording();
    device_->fill(out.as<void>(), 0, 64);
    launch("gather_rows_f32", &params, sizeof params, {out.as<void>(), in.as<void>(), index.as<void>()}, {1, 1, 1});
  }
  const auto graph = std::move(device_->end_recording().value());
  for (int run = 1; run <= 2; run++) {
    for (int i = 0; i < 16; i++) in.as<float>()[i] = static_cast<float>(i * run);
    EXPECT_NE(out.as<float>()[3], static_cast<float>(3 * run));
    device_->run(*graph);
    EXPECT_EQ(out.as<float>()[3], static_cast<float>(3 * run));
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, Copy, testing::Values(0, 1, 2));

}  // namespace
}  // namespace quire::kernels
