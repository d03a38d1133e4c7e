// SPDX-License-Identifier: Apache-2.0
// The same bits at every number of ranks: tensor parallel, pipeline parallel and both, of every kind of family, over
// threads. Compared by memcmp.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "base/env.h"
#include "model/config/share.h"
#include "models/golden.h"
#include "models/harness.h"
#include "models/quantised_model.h"
#include "models/visits.h"

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
  for (const size_t length : {1, 30, 9}) {
    std::vector<int32_t> prompt(length);
    for (int32_t& token : prompt) token = static_cast<int32_t>(rng() % static_cast<uint64_t>(vocab));
    requests.push_back(greedy_request(std::move(prompt), 4));
  }
  requests[1].params.prompt_logprobs = 1;
  return requests;
}

void expect_same_bits(const llm::Options& options, const std::vector<Layout>& layouts,
                      const std::vector<engine::Request>& requests) {
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

class RanksOfFamily : public ::testing::TestWithParam<std::string> {};

TEST_P(RanksOfFamily, HaveTheBitsOfOne) {
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
  expect_same_bits(options, layouts, some_requests(500));
}

INSTANTIATE_TEST_SUITE_P(Families, RanksOfFamily,
                         ::testing::Values("llama", "llama-bias-tied", "qwen3", "phi3", "glm4", "olmo2", "cohere",
                                           "granite", "mistral-window", "gemma2", "gemma3", "gemma4", "gemma4-moe",
                                           "mixtral", "qwen3-moe", "glm4-moe", "gpt-oss", "deepseek-v2", "deepseek-v3",
                                           "minicpm3", "qwen3-next", "qwen3.5-moe", "granite-hybrid", "nemotron-h",
                                           "lfm2-moe", "phimoe"),
                         [](const auto& test) { return test_name(test.param); });

// Rows of W in blocks, and GGUF's order of the rows of q and k.
TEST(Ranks, HaveTheBitsOfOneWithQuantisedWeights) {
  for (const DType type : {DType::kQ4_0, DType::kQ6_K, DType::kBF16}) {
    const QuantisedModel model(type);
    llm::Options options = model.options();
    options.threads = 2;
    options.device = "cpu";
    options.num_gpu_blocks_override = 100;
    const auto requests = some_requests(model.vocab());
    expect_same_bits(options, {{2, 1}, {4, 1}, {2, 2}}, requests);
  }
}

// Prompts with a common beginning, in so few pages that sequences are preempted: rank 0 alone knows of both.
class RanksTraffic : public ::testing::TestWithParam<std::string> {};

TEST_P(RanksTraffic, HasTheBitsOfOneRank) {
  std::mt19937 rng(7);
  std::vector<int32_t> shared(700);
  for (int32_t& token : shared) token = static_cast<int32_t>(rng() % 500);
  std::vector<engine::Request> requests;
  for (const size_t length : {700, 700, 650, 400, 699, 700}) {
    std::vector<int32_t> prompt(shared.begin(), shared.begin() + static_cast<ptrdiff_t>(length));
    for (size_t more = rng() % 40; more > 0; --more) prompt.push_back(static_cast<int32_t>(rng() % 500));
    requests.push_back(greedy_request(std::move(prompt), 40));
    requests.back().params.temperature = rng() % 2 == 0 ? 0.0 : 0.8;
    requests.back().params.seed = static_cast<int64_t>(rng());
  }
  llm::Options options = dummy_options(GetParam());
  options.device = "cpu";
  options.threads = 2;
  options.max_model_len = "1024";
  options.enable_prefix_caching = false;
  const auto one = make_engine(options);
  ASSERT_NE(one, nullptr);
  std::vector<Trace> truth;
  for (const engine::Request& request : requests) truth.push_back(run(*one, {request})[0]);

  options.enable_prefix_caching = true;
  options.max_num_batched_tokens = 190;  // a pipeline computes such a step in two parts
  for (const Layout& layout : {Layout{2, 1}, Layout{1, 2}}) {
    options = with(options, layout);
    options.num_gpu_blocks_override = 2;
    while (!fits(options)) options.num_gpu_blocks_override = *options.num_gpu_blocks_override * 5 / 4 + 1;
    const auto engine = make_engine(options);
    ASSERT_NE(engine, nullptr);
    for (int round = 0; round < 2; ++round) {
      const std::vector<Trace> traces = run(*engine, requests, {}, 2);
      for (size_t i = 0; i < requests.size(); ++i) {
        EXPECT_EQ(difference(truth[i], traces[i]), "")
            << "request " << i << ", round " << round << ", tensor parallel " << layout.tensor;
      }
    }
    EXPECT_GT(engine->stats().prefix.hit_tokens, 0);
    // (Hybrids share so many pages here that they are not preempted.)
    if (GetParam() == "llama") {
      EXPECT_GT(engine->stats().preemptions, 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, RanksTraffic, ::testing::Values("llama", "qwen3.5"),
                         [](const auto& test) { return test_name(test.param); });

// With drafts, rows of states are kept and taken back on every rank.
TEST(Ranks, HaveTheBitsOfOneWithDrafts) {
  for (const char* family : {"llama", "qwen3-next"}) {
    llm::Options options = dummy_options(family);
    options.device = "cpu";
    options.threads = 2;
    std::vector<int32_t> prompt;
    for (int32_t i = 0; i < 60; ++i) prompt.push_back(i % 7);
    const std::vector<engine::Request> requests = {greedy_request(prompt, 40), greedy_request({1, 2, 1, 2, 1}, 40)};
    const auto one = make_engine(options);
    ASSERT_NE(one, nullptr);
    const std::vector<Trace> truth = run(*one, requests);
    options.speculative_config =
        R"({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1})";
    for (const Layout& layout : {Layout{2, 1}, Layout{1, 2}}) {
      const auto engine = make_engine(with(options, layout));
      ASSERT_NE(engine, nullptr);
      const std::vector<Trace> traces = run(*engine, requests);
      for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(truth[i].tokens, traces[i].tokens) << family;
    }
  }
}

llm::Options gpu_options(const std::string& family) {
  llm::Options options = dummy_options(family);
  options.device = device_of_gpu_ranks();
  options.dtype = "bfloat16";
  options.num_gpu_blocks_override = 200;
  options.max_model_len = "128";
  return options;
}

struct DraftCase {
  const char* family;
  std::string config;
  bool accepts_all = false;
};
std::vector<DraftCase> draft_cases() {
  const std::string llama = (goldens_folder() / "llama" / "config.json").string();
  const std::string eagle = (goldens_folder() / "llama" / "eagle3" / "config.json").string();
  return {{"llama", R"({"num_speculative_tokens": 3, "model": ")" + llama + "\"}", true},
          {"llama", R"({"method": "eagle3", "num_speculative_tokens": 2, "model": ")" + eagle + "\"}"},
          {"deepseek-v3", R"({"method": "mtp", "num_speculative_tokens": 2})"},
          {"gemma3", R"({"num_speculative_tokens": 2, "model": ")" + llama + "\"}"},
          {"qwen3.5", R"({"method": "mtp", "num_speculative_tokens": 2})"}};
}

// Rank 0 drafts alone, with the whole of the draft model, MTP or EAGLE-3 layer, which see what other stages hand over:
// the logits of its drafts are those of one rank, too.
void expect_same_drafts(llm::Options options, const DraftCase& drafts, const std::vector<Layout>& layouts) {
  using Taps = std::map<std::pair<engine::RequestId, int64_t>, std::vector<float>>;
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 40; ++i) prompt.push_back(i * i % 31);
  std::vector<engine::Request> requests = {greedy_request(prompt, 24), greedy_request({1, 2, 1}, 24)};
  requests[1].params.temperature = 0.7;
  requests[1].params.seed = 5;
  const auto plain = make_engine(options);
  ASSERT_NE(plain, nullptr);
  const std::vector<Trace> truth = run(*plain, requests);
  options.speculative_config = drafts.config;
  Taps of_one;
  for (const Layout& layout : layouts) {
    const std::string what = std::string(drafts.family) + ", tensor parallel " + std::to_string(layout.tensor) +
                             ", pipeline parallel " + std::to_string(layout.pipeline);
    Taps taps;
    const auto engine = make_engine(with(options, layout));
    ASSERT_NE(engine, nullptr) << what;
    engine->set_draft_tap(
        [&taps](engine::RequestId id, int32_t, int64_t position, std::span<const float> row) {
          taps[{id, position}].assign(row.begin(), row.end());
        });
    const std::vector<Trace> traces = run(*engine, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(difference(truth[i], traces[i]), "") << what << ", request " << i;
    }
    const engine::SpeculationStats stats = engine->stats().speculation;
    EXPECT_GT(stats.draft_tokens, 0) << what;
    if (drafts.accepts_all) {
      EXPECT_EQ(stats.accepted_tokens, stats.draft_tokens) << "the draft model is the model";
    }
    if (of_one.empty()) of_one = taps;
    size_t compared = 0;
    for (const auto& [key, row] : taps) {
      const auto other = of_one.find(key);
      if (other == of_one.end()) continue;
      ++compared;
      EXPECT_TRUE(other->second == row) << what << ", position " << key.second;
    }
    EXPECT_GT(compared, 0u) << what;
  }
}

TEST(Ranks, HaveTheBitsOfOneWithDraftsByAModel) {
  for (const DraftCase& drafts : draft_cases()) {
    llm::Options options = dummy_options(drafts.family);
    options.device = "cpu";
    options.threads = 2;
    options.max_model_len = "128";
    options.num_gpu_blocks_override = 400;
    std::vector<Layout> layouts = {{1, 1}};
    for (const Layout& layout : {Layout{2, 1}, Layout{1, 2}, Layout{2, 3}}) {
      if (possible(with(options, layout))) layouts.push_back(layout);
    }
    EXPECT_GE(layouts.size(), 3u) << drafts.family;
    expect_same_drafts(options, drafts, layouts);
  }
}

class RanksOnGpus : public ::testing::TestWithParam<std::string> {};

TEST_P(RanksOnGpus, HaveTheBitsOfOne) {
  llm::Options options = gpu_options(GetParam());
  options.max_num_batched_tokens = 24;
  std::vector<Layout> layouts;
  for (const Layout& layout : {Layout{2, 1}, Layout{4, 1}, Layout{1, 2}}) {
    if (possible(with(options, layout))) layouts.push_back(layout);
  }
  EXPECT_GE(layouts.size(), 2u);
  expect_same_bits(options, layouts, some_requests(500));
  if (test_device() != "cpu" || GetParam() != "qwen3") return;
  // What each rank sends is the same, whether a step was recorded or not.
  std::vector<int64_t> sent;
  for (const int64_t tokens : {8, 16, 24}) {
    const auto engine = make_engine(with(options, {2, 1}));
    ASSERT_NE(engine, nullptr);
    (void)run(*engine, {greedy_request({1, 2, 3}, tokens)});
    const std::vector<metrics::RankTotals> ranks = engine->model().rank_totals();
    ASSERT_EQ(ranks.size(), 2u);
    sent.push_back(ranks[1].sent_bytes);
  }
  EXPECT_GT(sent[1], sent[0]);
  EXPECT_EQ(sent[2] - sent[1], sent[1] - sent[0]);
}

INSTANTIATE_TEST_SUITE_P(Families, RanksOnGpus,
                         ::testing::Values("qwen3", "gemma3", "qwen3-moe", "deepseek-v3", "granite-hybrid"),
                         [](const auto& test) { return test_name(test.param); });

TEST(Ranks, OnGpusHaveTheBitsOfOneWithDraftsByAModel) {
  const std::vector<DraftCase> cases = draft_cases();
  for (const DraftCase& drafts : {cases[0], cases[1], cases[2]}) {
    expect_same_drafts(gpu_options(drafts.family), drafts, {{1, 1}, {2, 1}, {1, 2}});
  }
}

// Steps that are queued before the tokens of the last one are known: rank 0 samples, and the others get the tokens.
TEST(Ranks, OnGpusHaveTheTokensOfOneWhenStepsRunAhead) {
  std::mt19937 rng(5);
  const std::vector<Visit> visits = random_visits(rng, 4);
  llm::Options options = gpu_options("llama");
  options.max_num_batched_tokens = 70;  // a pipeline computes such a step in two parts
  const auto one = make_engine(options);
  ASSERT_NE(one, nullptr);
  const AllSeen truth = run_visits(*one, visits);
  for (const Layout& layout : {Layout{2, 1}, Layout{1, 2}}) {
    const auto engine = make_engine(with(options, layout));
    ASSERT_NE(engine, nullptr);
    expect_equal(truth, run_visits(*engine, visits), "pipeline of " + std::to_string(layout.pipeline));
  }
}

// The calls of NCCL, by the fake of it, whose GPUs are those of the emulator.
TEST(Ranks, OverNcclHaveTheBitsOfOne) {
  if (test_device() != "cpu") GTEST_SKIP() << "the fake moves the host's memory";
  const char* const fake = std::getenv("QUIRE_FAKE_NCCL");
  if (fake == nullptr) GTEST_SKIP() << "QUIRE_FAKE_NCCL must name the fake of NCCL (ctest sets it)";
  setenv("QUIRE_LIBNCCL", fake, 1);
  setenv("QUIRE_GPU_EXCHANGE", "nccl", 1);
  expect_same_bits(gpu_options("mixtral"), {{2, 1}, {1, 2}}, some_requests(500));
  unsetenv("QUIRE_LIBNCCL");
  unsetenv("QUIRE_GPU_EXCHANGE");
}

// Of many rows of experts each rank gets a part of the columns; here of any number, with NCCL's calls and without.
TEST(Ranks, OnGpusHaveTheBitsOfOneWhenRowsOfExpertsAreScattered) {
  setenv("QUIRE_SCATTER_BYTES", "0", 1);
  expect_same_bits(gpu_options("qwen3-moe"), {{2, 1}, {4, 1}}, some_requests(500));
  const char* const fake = std::getenv("QUIRE_FAKE_NCCL");
  if (test_device() == "cpu" && fake != nullptr) {
    setenv("QUIRE_LIBNCCL", fake, 1);
    setenv("QUIRE_GPU_EXCHANGE", "nccl", 1);
    expect_same_bits(gpu_options("deepseek-v3"), {{2, 1}}, some_requests(500));
    unsetenv("QUIRE_LIBNCCL");
    unsetenv("QUIRE_GPU_EXCHANGE");
  }
  unsetenv("QUIRE_SCATTER_BYTES");
}

// A single rank that makes the calls of several (QUIRE_GATHER_ALONE) measures their cost, and changes no bit.
TEST(Ranks, OneThatGathersAloneHasTheSameBits) {
  const llm::Options options = gpu_options("qwen3-moe");
  const auto requests = some_requests(500);
  const auto one = make_engine(options);
  ASSERT_NE(one, nullptr);
  const std::vector<Trace> truth = run(*one, requests);
  setenv("QUIRE_GATHER_ALONE", "1", 1);
  const auto alone = make_engine(options);
  unsetenv("QUIRE_GATHER_ALONE");
  ASSERT_NE(alone, nullptr);
  const std::vector<Trace> traces = run(*alone, requests);
  for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(difference(truth[i], traces[i]), "") << "request " << i;
}

std::string refusal(const llm::Options& options) {
  const auto files = llm::open_files(options);
  auto backend = llm::make_backend(options);
  if (!files.ok() || !backend.ok()) return "cannot open";
  const auto loaded = llm::load_engine(options, *files, std::move(*backend), {});
  return loaded.ok() ? "" : loaded.error().message;
}

TEST(Ranks, AreRefusedInOneSentence) {
  llm::Options options = dummy_options("llama");
  options.device = "cpu";
  const auto expect_words = [](const llm::Options& refused, const std::string& words) {
    const std::string message = refusal(refused);
    EXPECT_NE(message.find(words), std::string::npos) << message;
  };
  expect_words(with(options, {3, 1}), "--tensor-parallel-size is 3, but the model has 4 attention heads");
  expect_words(with(options, {0, 1}), "--tensor-parallel-size is 0");
  expect_words(with(options, {1, 9}), "--pipeline-parallel-size is 9, but the model has only 3 layers");
  expect_words(with(options, {1 << 20, 1}), "it must be 1 to 1024");
  llm::Options other = with(dummy_options("llama-bias-tied"), {2, 1});
  expect_words(other, "3 KV heads");
  other = with(dummy_options("gemma4"), {1, 2});
  expect_words(other, "reads the K and V of layer");
  other = with(options, {2, 1});
  other.kv_offload_host_bytes = "1GiB";
  expect_words(other, "--kv-offload-host-bytes");
  // What one rank cannot do, none does: there is no room for one request.
  other = with(options, {2, 2});
  other.num_gpu_blocks_override = 2;
  EXPECT_NE(refusal(other), "");
}

}  // namespace
}  // namespace quire::testing
