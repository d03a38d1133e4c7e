// SPDX-License-Identifier: Apache-2.0
// The device memory that ops keep is in the memory plan and allocated at load: no step allocates more, whatever its
// size.
#include <gtest/gtest.h>

#include <algorithm>

#include "backend/emulator/emulator_device.h"
#include "backend/gpu/gpu_backend.h"
#include "models/golden.h"
#include "models/harness.h"

namespace quire::testing {
namespace {

class Reserved : public ::testing::TestWithParam<std::string> {};

// Block tables of at least 16 pages of 128 positions: attention has two splits, however short the contexts are.
llm::Options reserve_options(const std::string& golden_case) {
  llm::Options options = dummy_options(golden_case);
  options.device = "emulator";
  options.dtype = "bfloat16";
  options.block_size = 128;
  options.max_num_seqs = 6;
  options.max_num_batched_tokens = 96;
  options.num_gpu_blocks_override = 120;
  return options;
}

std::vector<engine::Request> requests(size_t count, size_t length, int64_t max_tokens) {
  std::vector<engine::Request> out;
  for (size_t i = 0; i < count; ++i) {
    std::vector<int32_t> prompt(length + i);
    for (size_t t = 0; t < prompt.size(); ++t) prompt[t] = static_cast<int32_t>((7 * t + 31 * i) % 300);
    out.push_back(greedy_request(std::move(prompt), max_tokens));
  }
  return out;
}

TEST_P(Reserved, NoStepAllocatesMemoryThatTheLoadDidNot) {
  const llm::Options options = reserve_options(GetParam());
  const auto files = llm::open_files(options);
  ASSERT_TRUE(files.ok()) << files.error().message;
  auto backend = std::make_unique<gpu::GpuBackend>(gpu::open_emulator().value());
  gpu::Device& device = backend->device();
  const size_t before = device.free_bytes();
  auto loaded = llm::load_engine(options, *files, std::move(backend), {});
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;

  // Not included: constants (vectors and tables, in blocks of 4 MiB), and staging memory, which is the device's own
  // memory on the emulator.
  const kv::MemoryPlan& plan = loaded->plan;
  EXPECT_LE(before - device.free_bytes(),
            static_cast<size_t>(plan.weights_bytes + plan.kv_bytes + plan.scratch_bytes) + (size_t{44} << 20));

  // Settings and logits that are read back have memory of their own, allocated by the first steps.
  run(*loaded->engine, requests(1, 1, 3));
  const size_t left = device.free_bytes();
  run(*loaded->engine, requests(6, 40, 3));
  EXPECT_EQ(device.free_bytes(), left) << "ops took " << left - device.free_bytes() << " bytes more";
}

INSTANTIATE_TEST_SUITE_P(Families, Reserved,
                         ::testing::Values("qwen3", "qwen3.5-moe", "deepseek-v3", "gpt-oss", "nemotron-h", "gemma4"),
                         [](const auto& test) { return test_name(test.param); });

TEST(Reserve, AStepThatIsTooLargeIsRefusedAtLoad) {
  llm::Options options = reserve_options("qwen3");
  options.max_num_seqs = 1 << 16;
  options.max_num_batched_tokens = 1 << 24;
  const auto files = llm::open_files(options);
  ASSERT_TRUE(files.ok()) << files.error().message;
  const auto loaded =
      llm::load_engine(options, *files, std::make_unique<gpu::GpuBackend>(gpu::open_emulator().value()), {});
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().code, ErrorCode::kExhausted);
  EXPECT_NE(loaded.error().message.find("lower --max-num-batched-tokens"), std::string::npos) << loaded.error().message;
}

}  // namespace
}  // namespace quire::testing
