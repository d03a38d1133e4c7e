// SPDX-License-Identifier: Apache-2.0
// Loading onto a GPU: random weights that the device makes are those of the host, and a layer's experts share memory.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "backend/gpu/gpu_backend.h"
#include "backend/gpu/recording_device.h"
#include "model/layers/decoder.h"

namespace quire::testing {
namespace {

using model::DecoderModel;

std::unique_ptr<model::Model> load_dummy(const std::string& golden, const std::string& overrides, Backend& backend,
                                         const std::string& quantization = "") {
  model::LoadOptions load;
  load.quantization = quantization;
  load.dtype = "bfloat16";
  load.dummy = true;
  load.hf_overrides = overrides;
  const auto files = model::open_model(QUIRE_SOURCE_DIR "/tests/goldens/" + golden, load);
  EXPECT_TRUE(files.ok()) << files.error().message;
  auto loaded = model::load_model(*files, load, backend);
  EXPECT_TRUE(loaded.ok()) << loaded.error().message;
  backend.synchronise();
  return std::move(loaded).value();
}

std::unique_ptr<gpu::GpuBackend> emulator_that_makes(const char* where) {
  setenv("QUIRE_GPU_DUMMY", where, 1);
  auto backend = std::make_unique<gpu::GpuBackend>(gpu::open_emulator().value());
  unsetenv("QUIRE_GPU_DUMMY");
  return backend;
}

// All matrices of a model, in the emulator's memory, which the host may read.
std::vector<std::string> matrices_of(const model::Model& loaded) {
  std::vector<std::string> out;
  const auto add = [&](const PackedMatrix& matrix) {
    out.emplace_back(static_cast<const char*>(gpu::gpu_matrix(&matrix).data), matrix.bytes());
  };
  model::for_each_weight(dynamic_cast<const DecoderModel&>(loaded).weights(), [&]<typename W>(const W& weight) {
    if constexpr (std::is_same_v<W, model::Packed>) {
      if (weight != nullptr) add(*weight);
    } else if constexpr (std::is_same_v<W, model::Linear>) {
      if (!weight.empty()) add(weight.first());
    } else if constexpr (std::is_same_v<W, model::ExpertMatrices>) {
      for (const model::Packed& matrix : weight.matrices) add(*matrix);
    }
  });
  return out;
}

void expect_same_matrices(const std::string& golden, const std::string& overrides, const std::string& quantization) {
  const auto host = emulator_that_makes("host"), device = emulator_that_makes("device");
  ASSERT_FALSE(host->makes(DType::kBF16));
  const auto copied = load_dummy(golden, overrides, *host, quantization),
             made = load_dummy(golden, overrides, *device, quantization);
  const std::vector<std::string> expected = matrices_of(*copied), got = matrices_of(*made);
  ASSERT_EQ(got.size(), expected.size()) << golden;
  EXPECT_GE(got.size(), 10u) << golden;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(got[i] == expected[i]) << golden << " " << overrides << quantization << ", matrix " << i;
  }
}

// Separate, fused and transposed experts, latent attention, recurrences, and tables beside the embedding.
TEST(DummyLoad, WhatTheDeviceMakesIsWhatTheHostMakes) {
  const std::string mxfp4 = R"({"quantization_config": {"quant_method": "mxfp4"}})";
  for (const auto& [golden, overrides] : std::vector<std::pair<std::string, std::string>>{
           {"qwen3-moe", ""}, {"mixtral", ""}, {"gpt-oss", ""}, {"gpt-oss", mxfp4}, {"deepseek-v2", ""}, {"qwen3.5-moe", ""},
           {"nemotron-h", ""}, {"gemma4", ""}}) {
    expect_same_matrices(golden, overrides, "");
  }
}

// Groups that fit and groups that do not, fp8 that is kept and that is expanded, experts of their own and in stacks.
TEST(DummyLoad, QuantisedWeightsOfTheDeviceAreThoseOfTheHost) {
  for (const char* quantization : {"q4_k", "q2_k", "awq", "fp8_per_block"}) {
    expect_same_matrices("qwen3", R"({"hidden_size": 256, "intermediate_size": 512})", quantization);
    expect_same_matrices("qwen3-moe", "", quantization);
    expect_same_matrices("qwen3.5-moe", "", quantization);
  }
  for (const char* golden : {"deepseek-v2", "nemotron-h", "gpt-oss", "gemma4"}) {
    expect_same_matrices(golden, "", "q8_0");
    expect_same_matrices(golden, "", "fp8_per_channel");
  }
}

// The device's allocations and uploads of a load.
struct LoadCounts {
  size_t allocations = 0, uploads = 0, made = 0;
};
LoadCounts load_counts(const std::string& overrides) {
  std::vector<std::string> notes;
  auto device = std::make_unique<gpu::RecordingDevice>(notes);
  const gpu::RecordingDevice& recorder = *device;
  gpu::GpuBackend backend(std::move(device));
  const size_t before = recorder.allocations;
  const auto loaded = load_dummy("qwen3-moe", overrides, backend);
  LoadCounts out{recorder.allocations - before};
  for (const std::string& note : notes) {
    out.uploads += note == "upload" ? 1 : 0;
    out.made += note == "fill_dummy_bf16" ? 1 : 0;
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
