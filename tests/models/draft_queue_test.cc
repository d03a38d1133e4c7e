// SPDX-License-Identifier: Apache-2.0
// Drafts of a model on a device that samples: its passes are queued one after another, steps with drafts are recorded and
// run again, and neither changes a bit. The emulator runs all of this, or the GPU that QUIRE_TEST_DEVICE names.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/file.h"
#include "base/json.h"
#include "base/test_folder.h"
#include "models/golden.h"
#include "models/harness.h"

namespace quire::testing {
namespace {

// The config of a golden case with some members replaced, in a file of its own.
std::string changed_config(const TempFolder& folder, const std::string& golden_case, const std::string& changes) {
  json::Value config = json::parse(read_file(goldens_folder() / golden_case / "config.json").value()).value();
  const json::Value members = json::parse(changes).value();
  for (const auto& [name, value] : members.as_object()) config.set(name, value);
  return folder.write(std::filesystem::path(golden_case) / "config.json", json::dump(config)).string();
}

// Heads of 64 in bfloat16, as Hopper's kernels take them: there the products of a layer add to the residual stream, and
// a step of few rows is one launch. "llama" has an EAGLE-3 layer; the dense layers of "glm4-moe" are followed by an MTP
// layer, and so are the recurrent ones of "qwen3.5".
llm::Options options_with_layer(const TempFolder& folder, const std::string& family) {
  constexpr const char* kWide = R"({"head_dim": 64, "hidden_size": 128, "intermediate_size": 256})";
  llm::Options options = dummy_options(family);
  if (options.device == "cpu") options.device = "emulator";
  options.dtype = "bfloat16";
  options.enable_prefix_caching = false;
  std::string layer = R"("method": "mtp")";
  if (family == "llama") {
    options.model = changed_config(folder, family, kWide);
    layer = R"("method": "eagle3", "model": ")" + changed_config(folder, "llama/eagle3", kWide) + "\"";
  } else if (family == "glm4-moe") {
    options.model = changed_config(folder, family, R"({"head_dim": 64, "hidden_size": 128, "intermediate_size": 256,
                                                       "first_k_dense_replace": 3})");
  }
  options.speculative_config = "{" + layer + R"(, "num_speculative_tokens": 3})";
  return options;
}

using DraftRows = std::vector<std::pair<int64_t, std::vector<float>>>;  // positions and logits, in order

class LayerOnDevice : public ::testing::TestWithParam<std::string> {};

// Each request runs alone, a few times, so that its steps are recorded and run again, and then together with others,
// where steps have other shapes. Answers have the logits that they have without drafts, and drafts have the same logits
// every time: what the layer sees of the model is whole, whichever kernels computed it.
TEST_P(LayerOnDevice, DraftsHaveTheSameBitsInRecordedSteps) {
  const TempFolder folder;
  llm::Options options = options_with_layer(folder, GetParam());
  std::vector<engine::Request> requests = {greedy_request({1, 2, 3}, 12), greedy_request({4, 5}, 12),
                                           greedy_request({6, 7, 8, 9}, 12)};
  requests[1].params.temperature = 1;
  requests[1].params.seed = 3;
  const auto engine = make_engine(options);
  options.speculative_config.clear();
  const auto plain = make_engine(options);
  ASSERT_TRUE(plain != nullptr && engine != nullptr);
  const std::vector<Trace> truth = run(*plain, requests);
  std::map<engine::RequestId, DraftRows> seen;
  engine->set_draft_tap([&](engine::RequestId id, int32_t, int64_t position, std::span<const float> row) {
    seen[id].emplace_back(position, std::vector<float>(row.begin(), row.end()));
  });
  std::vector<DraftRows> first;
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < requests.size(); ++i) {
      seen.clear();
      EXPECT_EQ(difference(truth[i], run(*engine, {requests[i]})[0]), "") << "request " << i << ", round " << round;
      ASSERT_EQ(seen.size(), 1u);
      if (round == 0) first.push_back(seen.begin()->second);
      EXPECT_TRUE(seen.begin()->second == first[i]) << "drafts of request " << i << ", round " << round;
    }
  }
  seen.clear();
  const std::vector<Trace> together = run(*engine, requests);
  ASSERT_EQ(seen.size(), requests.size());
  size_t i = 0;
  for (const auto& [id, rows] : seen) {
    EXPECT_EQ(difference(truth[i], together[i]), "") << "request " << i << " of several";
    EXPECT_TRUE(rows == first[i]) << "drafts of request " << i << " of several";
    ++i;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, LayerOnDevice, ::testing::Values("llama", "glm4-moe", "qwen3.5"),
                         [](const auto& test) { return test_name(test.param); });

// The passes of a draft model are queued: each samples before the tokens of the one before it are read. With settings
// that look at these tokens, the sampling waits for them. Both propose what single passes propose (a tap has those).
TEST(DraftQueue, PassesDoNotWaitForTheirTokens) {
  llm::Options options = dummy_options("llama");
  if (options.device == "cpu") options.device = "emulator";
  options.speculative_config = R"({"num_speculative_tokens": 4, "model": ")" +
                               (goldens_folder() / "llama" / "config.json").string() + "\"}";
  std::vector<engine::Request> requests = {greedy_request({1, 2, 3}, 16), greedy_request({4, 5}, 16)};
  requests[1].params.temperature = 1;
  requests[1].params.seed = 3;
  for (const bool looks_back : {false, true}) {
    if (looks_back) requests[0].params.frequency_penalty = 1.5;
    std::vector<engine::SpeculationStats> stats;
    for (const bool tapped : {true, false}) {
      const auto engine = make_engine(options);
      ASSERT_NE(engine, nullptr);
      if (tapped) engine->set_draft_tap([](engine::RequestId, int32_t, int64_t, std::span<const float>) {});
      const std::vector<SpanTimes> spans = spans_of([&] {
        for (const engine::Request& request : requests) EXPECT_TRUE(engine->add(request).ok());
        while (engine->has_work()) engine->step();
      });
      stats.push_back(engine->stats().speculation);
      EXPECT_EQ(stats.back().accepted_tokens, stats.back().draft_tokens) << "the model is its own draft model";
      // Rounds of drafts with a pass that was sampled before the one before it was read.
      int queued = 0;
      for (const SpanTimes& round : spans) {
        if (!round.name.starts_with("draft for")) continue;
        int sampled = 0;
        for (const SpanTimes& span : spans) {
          if (span.begin < round.begin || span.end > round.end) continue;
          if (span.name.starts_with("read ")) break;
          sampled += span.name.starts_with("logits and sampling") ? 1 : 0;
        }
        queued += sampled > 1 ? 1 : 0;
      }
      EXPECT_EQ(queued > 0, !tapped && !looks_back) << "tap " << tapped << ", penalty " << looks_back;
    }
    EXPECT_EQ(stats[0].draft_tokens, stats[1].draft_tokens);
    EXPECT_EQ(stats[0].accepted_per_position, stats[1].accepted_per_position);
  }
}

}  // namespace
}  // namespace quire::testing
