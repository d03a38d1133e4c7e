// SPDX-License-Identifier: Apache-2.0
// Loading onto a GPU: random weights that the device makes are those of the host, and a layer's experts share memory.
#include <gtest/gtest.h>

#include <cstdlib>

#include "backend/gpu/gpu_backend.h"
#include "backend/gpu/recording_device.h"
#include "models/golden.h"
#include "models/harness.h"

namespace quire::testing {
namespace {

struct DummyCase {
  std::string golden, overrides;
};

class MadeOnDevice : public ::testing::TestWithParam<DummyCase> {};

TEST_P(MadeOnDevice, GivesTheLogitsOfWeightsThatTheHostMade) {
  llm::Options options = dummy_options(GetParam().golden);
  if (options.device == "cpu") options.device = "emulator";
  options.dtype = "bfloat16";
  options.hf_overrides = GetParam().overrides;
  options.num_gpu_blocks_override = 100;
  std::vector<Trace> traces;
  for (const char* where : {"host", "device"}) {
    setenv("QUIRE_GPU_DUMMY", where, 1);
    const auto engine = make_engine(options);
    unsetenv("QUIRE_GPU_DUMMY");
    ASSERT_NE(engine, nullptr);
    traces.push_back(run(*engine, {greedy_request({5, 3, 200, 41, 7}, 3)}).front());
  }
  EXPECT_EQ(difference(traces[0], traces[1]), "");
}

// Fused, transposed and separate experts, latent attention, recurrences, and tables beside the embedding.
INSTANTIATE_TEST_SUITE_P(
    Families, MadeOnDevice,
    ::testing::Values(DummyCase{"qwen3-moe", ""}, DummyCase{"gpt-oss", ""},
                      DummyCase{"gpt-oss", R"({"quantization_config": {"quant_method": "mxfp4"}})"},
                      DummyCase{"deepseek-v2", ""}, DummyCase{"qwen3.5-moe", ""}, DummyCase{"gemma4", ""}),
    [](const auto& test) { return test_name(test.param.golden) + (test.param.overrides.empty() ? "" : "_mxfp4"); });

// The device's allocations and uploads of a load.
struct LoadCounts {
  size_t allocations = 0, uploads = 0, made = 0;
};
LoadCounts load_counts(const std::string& overrides) {
  llm::Options options = dummy_options("qwen3-moe");
  options.dtype = "bfloat16";
  options.hf_overrides = overrides;
  std::vector<std::string> notes;
  auto device = std::make_unique<gpu::RecordingDevice>(notes);
  const gpu::RecordingDevice& recorder = *device;
  gpu::GpuBackend backend(std::move(device));
  const auto files = llm::open_files(options);
  EXPECT_TRUE(files.ok()) << files.error().message;
  const size_t before = recorder.allocations;
  const auto loaded = model::load_model(*files, {.dtype = options.dtype}, backend);
  EXPECT_TRUE(loaded.ok()) << loaded.error().message;
  LoadCounts out{recorder.allocations - before};
  for (const std::string& note : notes) {
    out.uploads += note == "upload";
    out.made += note == "fill_dummy_bf16";
  }
  return out;
}

TEST(DummyLoad, TakesNoMoreAllocationsOrUploadsForMoreExperts) {
  const LoadCounts few = load_counts(R"({"num_local_experts": 4, "num_experts_per_tok": 2})");
  const LoadCounts many = load_counts(R"({"num_local_experts": 64, "num_experts_per_tok": 2})");
  EXPECT_EQ(many.allocations, few.allocations);
  EXPECT_EQ(many.uploads, few.uploads) << "of norms alone: matrices are made on the device";
  EXPECT_GT(many.made, few.made + 60);
}

}  // namespace
}  // namespace quire::testing
