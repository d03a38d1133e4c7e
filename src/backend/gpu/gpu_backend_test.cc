// SPDX-License-Identifier: Apache-2.0
// Staging and the kernel table of a GPU backend.
#include <gmock/gmock.h>

#include <numeric>

#include "backend/gpu/recording_device.h"
#include "backend/gpu/test_device.h"

namespace quire::gpu {
namespace {

TEST(GpuBackend, AStepsArraysMayBeLargerThanTheFirstStagingArea) {
  TestDevice& device = test_device();
  GpuBackend& gpu = device.ops();
  std::vector<int32_t> small(100), large(5'000'000);  // 20 MB
  std::iota(small.begin(), small.end(), 7);
  std::iota(large.begin(), large.end(), -3);
  for (int step = 0; step < 3; ++step) {
    gpu.begin_step();
    gpu.reserve_stage((small.size() + large.size()) * sizeof(int32_t), 2);
    const void* a = gpu.stage(std::as_bytes(std::span(small)));
    const void* b = gpu.stage(std::as_bytes(std::span(large)));
    EXPECT_FALSE(gpu.replay_step({}));
    const auto bytes_of = [](const std::vector<int32_t>& values) {
      const auto* begin = reinterpret_cast<const uint8_t*>(values.data());
      return std::vector<uint8_t>(begin, begin + values.size() * sizeof(int32_t));
    };
    EXPECT_TRUE(device.get(a, small.size() * sizeof(int32_t)) == bytes_of(small)) << "step " << step;
    EXPECT_TRUE(device.get(b, large.size() * sizeof(int32_t)) == bytes_of(large)) << "step " << step;
    gpu.end_step();
    small[3] += 1;
    large[4'999'999] += 1;
  }
}

// Ranks record the same steps, whether or not one of them runs a draft model between them.
TEST(GpuBackend, StepsBesideDoNotChangeWhichOnesAreRecorded) {
  const auto recorded = [](bool beside) {
    std::vector<std::string> calls;
    auto device = std::make_unique<RecordingDevice>(calls);
    GpuBackend gpu(std::move(device));
    std::vector<bool> out;
    const GraphKey shape{&out, 1, 1, 1}, other{&calls, 1, 1, 1};
    for (int step = 0; step < 8; ++step) {
      if (beside && step % 3 != 1) {
        gpu.begin_step_beside();
        if (!gpu.replay_step(other)) gpu.queue([](void*) { return Status(); });
        gpu.end_step();
      }
      gpu.begin_step();
      out.push_back(gpu.replay_step(shape));
      if (!out.back()) gpu.queue([](void*) { return Status(); });
      gpu.end_step();
    }
    return out;
  };
  EXPECT_EQ(recorded(true), recorded(false));
  EXPECT_TRUE(recorded(false).back());
}

TEST(GpuBackend, PadsBlockTablesToFewWidths) {
  const GpuBackend& gpu = test_device().ops();
  EXPECT_EQ(gpu.table_width(1, 16), 16);  // 256 positions
  EXPECT_EQ(gpu.table_width(17, 16), 32);
  EXPECT_EQ(gpu.table_width(1, 576), 1);  // large pages, as hybrids have them
  EXPECT_EQ(gpu.table_width(3, 576), 4);
}

TEST(GpuBackend, NamesAMissingKernelAtLoad) {
  EXPECT_TRUE(test_device().ops().check_kernels().ok());
  std::vector<std::string> calls;
  auto device = std::make_unique<RecordingDevice>(calls);
  device->missing = {"rms_norm_bf16_f32", "hopper_stage_step"};
  const GpuBackend gpu(std::move(device));
  ASSERT_FALSE(gpu.check_kernels().ok());
  EXPECT_THAT(gpu.check_kernels().error().message, testing::HasSubstr("rms_norm_bf16_f32"));
  EXPECT_THAT(gpu.check_kernels().error().message, testing::Not(testing::HasSubstr("hopper"))) << "these are optional";
}

}  // namespace
}  // namespace quire::gpu
