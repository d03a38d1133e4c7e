// SPDX-License-Identifier: Apache-2.0
// The same bits at every number of ranks: tensor parallel, pipeline parallel and both, of every kind of family, over
// threads. Compared by memcmp.
#include <gtest/gtest.h>

#include <random>

#include "model/config/share.h"
#include "models/golden.h"
#include "models/harness.h"
#include "models/quantised_model.h"

namespace quire::testing {
namespace {

struct Layout {
  int64_t tensor, pipeline;
};
constexpr Layout kLayouts[] = {{2, 1}, {4, 1}, {1, 2}, {2, 2}};

llm::Options with(llm::Options options, const Layout& layout) {
  options.tensor_parallel_size = layout.tensor;
  options.pipeline_parallel_size = layout.pipeline;
  return options;
}

// Whether the model's heads and layers allow the layout.
bool possible(const llm::Options& options) {
  const auto files = llm::open_files(options);
  if (!files.ok()) return false;
  model::Share share;
  share.ranks = options.tensor_parallel_size;
  share.stages = options.pipeline_parallel_size;
  return model::share_of(files->config, share).ok();
}

std::vector<engine::Request> some_requests(int64_t vocab) {
  std::mt19937 rng(3);
  std::vector<engine::Request> requests;
  for (const size_t length : {1, 37, 12}) {
    std::vector<int32_t> prompt(length);
    for (int32_t& token : prompt) token = static_cast<int32_t>(rng() % static_cast<uint64_t>(vocab));
    requests.push_back(greedy_request(std::move(prompt), 5));
  }
  requests[1].params.prompt_logprobs = 1;
  return requests;
}

void expect_same_bits(const llm::Options& options, const std::vector<Layout>& layouts) {
  const auto requests = some_requests(500);
  const auto one = make_engine(options);
  ASSERT_NE(one, nullptr);
  const std::vector<Trace> truth = run(*one, requests);
  for (const Layout& layout : layouts) {
    const auto engine = make_engine(with(options, layout));
    ASSERT_NE(engine, nullptr);
    const std::vector<Trace> traces = run(*engine, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(difference(truth[i], traces[i]), "")
          << "request " << i << ", tensor parallel " << layout.tensor << ", pipeline parallel " << layout.pipeline;
    }
  }
}

class Ranks : public ::testing::TestWithParam<std::string> {};

TEST_P(Ranks, HaveTheBitsOfOne) {
  llm::Options options = dummy_options(GetParam());
  options.device = "cpu";
  options.threads = 1;
  options.max_num_batched_tokens = 24;  // a prompt is cut
  options.num_gpu_blocks_override = 200;
  options.max_model_len = "128";
  std::vector<Layout> layouts;
  for (const Layout& layout : kLayouts) {
    if (possible(with(options, layout))) layouts.push_back(layout);
  }
  EXPECT_GE(layouts.size(), 1u);
  expect_same_bits(options, layouts);
}

INSTANTIATE_TEST_SUITE_P(Families, Ranks,
                         ::testing::Values("llama", "llama-bias-tied", "qwen3", "phi3", "glm4", "olmo2", "cohere",
                                           "granite", "mistral-window", "gemma2", "gemma3", "gemma4", "gemma4-moe",
                                           "mixtral", "qwen3-moe", "glm4-moe", "gpt-oss", "deepseek-v2", "deepseek-v3",
                                           "minicpm3", "qwen3-next", "qwen3.5-moe", "granite-hybrid", "nemotron-h",
                                           "lfm2-moe", "phimoe"),
                         [](const auto& test) { return test_name(test.param); });

}  // namespace
}  // namespace quire::testing
