// SPDX-License-Identifier: Apache-2.0
// Random weights of quantised configs: every format generates, with logits like those of plain weights, and with the
// same weights on a CPU and on a GPU and at every number of ranks.
#include <gtest/gtest.h>

#include <cmath>

#include "models/harness.h"

namespace quire::testing {
namespace {

struct DummyFormat {
  std::string golden;
  std::string overrides;     // of config.json
  std::string quantization;  // the flag
  friend std::ostream& operator<<(std::ostream& out, const DummyFormat& format) {
    return out << format.golden << " " << format.overrides << format.quantization;
  }
};

std::string with_quantization(const std::string& quantization_config) {
  return R"({"hidden_size": 256, "intermediate_size": 512, "quantization_config": )" + quantization_config + "}";
}

std::vector<DummyFormat> dummy_formats() {
  std::vector<DummyFormat> out;
  for (const char* config :
       {R"({"quant_method": "awq", "bits": 4, "group_size": 64})",
        R"({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": true})",
        R"({"quant_method": "gptq", "bits": 3, "group_size": -1})",
        R"({"quant_method": "gptq", "bits": 8, "group_size": 48, "desc_act": false})",
        R"({"quant_method": "fp8", "weight_block_size": [64, 64]})",
        R"({"quant_method": "fp8", "activation_scheme": "static"})", R"({"quant_method": "fbgemm_fp8"})",
        R"({"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["model.layers.0*"]})",
        R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"], "config_groups":
           {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "strategy": "group",
            "group_size": 128, "actorder": "group"}}}})",
        R"({"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups":
           {"group_0": {"targets": ["re:.*mlp.*"], "weights": {"num_bits": 8, "type": "int", "strategy": "channel"}},
            "group_1": {"targets": ["re:.*q_proj"], "weights": {"num_bits": 8, "type": "float", "strategy":
            "tensor"}}}})",
        R"({"bits": 5, "group_size": 64, "model.layers.1.mlp.down_proj": {"bits": 2, "group_size": 32}})",
        R"({"bits": 4, "group_size": 32, "mode": "mxfp4"})"}) {
    out.push_back({"qwen3", with_quantization(config), ""});
  }
  const std::string wide = R"({"hidden_size": 256, "intermediate_size": 512})";
  for (const char* type : {"q4_k", "Q6_K", "q3_k", "iq4_xs", "q5_1", "mxfp4"}) out.push_back({"qwen3", wide, type});
  out.push_back({"gpt-oss", R"({"quantization_config": {"quant_method": "mxfp4"}})", ""});
  for (const char* golden : {"qwen3-moe", "deepseek-v2", "qwen3.5-moe"}) {
    for (const char* type : {"awq", "fp8_per_block", "q4_k"}) out.push_back({golden, "", type});
  }
  return out;
}

std::vector<engine::Request> requests_of_formats() {
  return {greedy_request({5, 6, 7, 301, 20, 3, 77}, 3), greedy_request({100}, 2)};
}

llm::Options options_of_format(const DummyFormat& format, const std::string& device) {
  llm::Options options = dummy_options(format.golden);
  options.device = device;
  options.threads = 1;
  options.hf_overrides = format.overrides;
  options.quantization = format.quantization;
  options.num_gpu_blocks_override = 40;
  options.max_model_len = "64";
  return options;
}

double spread_of_logits(const std::vector<Trace>& traces) {
  double sum = 0, count = 0;
  for (const Trace& trace : traces) {
    for (const auto& [position, logits] : trace.logits) {
      for (const float logit : logits) sum += static_cast<double>(logit) * logit, count += 1;
    }
  }
  return std::sqrt(sum / count);
}

class DummyFormats : public ::testing::TestWithParam<DummyFormat> {};

TEST_P(DummyFormats, GenerateOnOneRankAsOnTwo) {
  llm::Options options = options_of_format(GetParam(), "cpu");
  options.dtype = "auto";
  const auto one = make_engine(options);
  ASSERT_NE(one, nullptr);
  const std::vector<Trace> truth = run(*one, requests_of_formats());
  options.tensor_parallel_size = 2;
  const auto two = make_engine(options);
  ASSERT_NE(two, nullptr);
  const std::vector<Trace> traces = run(*two, requests_of_formats());
  for (size_t i = 0; i < truth.size(); ++i) EXPECT_EQ(difference(truth[i], traces[i]), "") << "request " << i;

  DummyFormat plain = GetParam();
  plain.quantization.clear();
  if (const size_t at = plain.overrides.find(R"(, "quantization_config")"); at != plain.overrides.npos) {
    plain.overrides = plain.overrides.substr(0, at) + "}";
  } else if (plain.overrides.find("quantization_config") != plain.overrides.npos) {
    plain.overrides.clear();
  }
  options = options_of_format(plain, "cpu");
  const auto other = make_engine(options);
  ASSERT_NE(other, nullptr);
  const double size = spread_of_logits(truth), expected = spread_of_logits(run(*other, requests_of_formats()));
  EXPECT_TRUE(std::isfinite(size));
  EXPECT_GT(size, 0.5 * expected);
  EXPECT_LT(size, 2 * expected);
}

// In floats, so that equal weights give nearly equal logits.
TEST_P(DummyFormats, HaveTheWeightsOfTheCpuOnAGpu) {
  const auto cpu = make_engine(options_of_format(GetParam(), "cpu"));
  const auto gpu = make_engine(options_of_format(GetParam(), test_device() == "cpu" ? "emulator" : test_device()));
  ASSERT_NE(cpu, nullptr);
  ASSERT_NE(gpu, nullptr);
  const std::vector<Trace> expected = run(*cpu, requests_of_formats()), got = run(*gpu, requests_of_formats());
  const double within = 1e-3 * spread_of_logits(expected);
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(got[i].tokens, expected[i].tokens);
    for (const auto& [position, logits] : expected[i].logits) {
      const std::vector<float>& ours = got[i].logits.at(position);
      for (size_t v = 0; v < logits.size(); ++v) {
        ASSERT_NEAR(ours[v], logits[v], within) << "position " << position << ", token " << v;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, DummyFormats, ::testing::ValuesIn(dummy_formats()),
                         [](const auto& test) { return "n" + std::to_string(test.index); });

}  // namespace
}  // namespace quire::testing
