// SPDX-License-Identifier: Apache-2.0
// Tiers below the KV cache change no bit: random traffic with few pages, restarts between, compared by memcmp with runs
// that have no tier.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <random>

#include "base/test_folder.h"
#include "kv/offload.h"
#include "models/harness.h"

namespace quire::testing {
namespace {

// Some prompts share long beginnings, so that there is something to restore.
std::vector<engine::Request> sharing_requests(std::mt19937& rng, int count) {
  std::vector<std::vector<int32_t>> shared(3);
  const auto token = [&] { return static_cast<int32_t>(rng() % 500); };
  for (auto& text : shared) {
    for (int i = 0; i < 200; ++i) text.push_back(token());
  }
  std::vector<engine::Request> requests;
  for (int i = 0; i < count; ++i) {
    const auto& text = shared[rng() % shared.size()];
    std::vector<int32_t> prompt(text.begin(), text.begin() + 60 + static_cast<long>(rng() % 140));
    for (size_t t = 1 + rng() % 20; t > 0; --t) prompt.push_back(token());
    engine::Request request = greedy_request(std::move(prompt), 1 + static_cast<int64_t>(rng() % 20));
    request.params.temperature = rng() % 2 == 0 ? 0.0 : 0.9;
    request.params.seed = static_cast<int64_t>(rng());
    if (rng() % 5 == 0) request.cache_salt = "salt";
    if (rng() % 6 == 0) request.params.prompt_logprobs = 1;
    requests.push_back(std::move(request));
  }
  return requests;
}

llm::Options with_fewest_pages(llm::Options options) {
  options.num_gpu_blocks_override = 16;
  while (!fits(options)) options.num_gpu_blocks_override = *options.num_gpu_blocks_override * 5 / 4 + 1;
  return options;
}

class OffloadBits : public ::testing::TestWithParam<std::string> {
 protected:
  // Runs all requests in rounds with engines that share the tier, and compares each answer with the one alone.
  void compare(llm::Options options, int count, int rounds, bool expect_disk) {
    options.max_model_len = "320";
    options.dtype = "float32";
    options.threads = 2;
    std::mt19937 rng(7);
    const std::vector<engine::Request> requests = sharing_requests(rng, count);
    llm::Options plain = options;
    plain.enable_prefix_caching = false;
    plain.kv_offload_dir.clear();
    plain.kv_offload_size.clear();
    plain.kv_offload_host_bytes.clear();
    const auto reference = make_engine(plain);
    ASSERT_NE(reference, nullptr);
    std::vector<Trace> truth;
    for (const engine::Request& request : requests) truth.push_back(run(*reference, {request})[0]);
    int64_t restored = 0, loaded = 0;
    for (int round = 0; round < rounds; ++round) {
      options.max_num_batched_tokens = round % 2 == 0 ? 64 : 200;
      const auto engine = make_engine(with_fewest_pages(options));
      ASSERT_NE(engine, nullptr);
      std::vector<size_t> order(requests.size());
      for (size_t i = 0; i < order.size(); ++i) order[i] = i;
      for (int again = 0; again < 2; ++again) {
        std::shuffle(order.begin(), order.end(), rng);
        const std::vector<Trace> traces = run(*engine, requests, order, static_cast<int>(rng() % 3));
        for (size_t i = 0; i < requests.size(); ++i) {
          EXPECT_EQ(difference(truth[i], traces[i]), "") << "request " << i << ", round " << round;
        }
        engine->offload()->flush();
      }
      restored += engine->stats().prefix.offload_hit_tokens;
      loaded += engine->offload()->stats().loaded_pages;
      EXPECT_EQ(engine->offload()->stats().disk.refused, 0);
      EXPECT_EQ(engine->stats().kv_usage, 0) << "no page is left behind";
    }
    EXPECT_GT(restored, 0);
    if (expect_disk) {
      EXPECT_GT(loaded, 0);
    }
  }
};

TEST_P(OffloadBits, FromDisk) {
  const TempFolder folder;
  llm::Options options = dummy_options(GetParam());
  options.kv_offload_dir = folder.path();
  options.kv_offload_size = "64MiB";
  compare(options, 10, 2, true);
}

INSTANTIATE_TEST_SUITE_P(Families, OffloadBits,
                         ::testing::Values("llama", "mistral-window", "gemma3", "qwen3.5", "granite-hybrid", "lfm2",
                                           "deepseek-v3"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace_if(name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
                           return name;
                         });

// Each rank keeps its own part of a page.
class OffloadOfRanks : public OffloadBits {};

TEST_P(OffloadOfRanks, FromDisk) {
  llm::Options options = dummy_options(GetParam());
  options.device = "cpu";
  options.kv_offload_size = "64MiB";
  for (const auto& [tensor, pipeline] : {std::pair(2, 1), std::pair(1, 2)}) {
    const TempFolder folder;
    options.kv_offload_dir = folder.path();
    options.tensor_parallel_size = tensor;
    options.pipeline_parallel_size = pipeline;
    compare(options, 8, 2, true);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, OffloadOfRanks, ::testing::Values("llama", "qwen3.5"),
                         [](const auto& info) { return info.param == "llama" ? "dense" : "hybrid"; });

// Ranks of a GPU keep pages in host memory as well, each its own: they come back from there, and from the disk of an
// engine that has ended.
TEST(OffloadRanks, OfGpusHaveTheBitsOfOneFromHostMemoryAndDisk) {
  llm::Options options = dummy_options("llama");
  options.device = device_of_gpu_ranks();
  if (!llm::make_backend(options).ok()) GTEST_SKIP() << "this build has no emulator";
  options.max_model_len = "96";
  options.num_gpu_blocks_override = 8;  // of one request
  std::vector<engine::Request> requests(2);
  for (int32_t r = 0; r < 2; ++r) {
    std::vector<int32_t> prompt;
    for (int32_t i = 0; i < 65; ++i) prompt.push_back(i * (7 + r) % 500);
    requests[static_cast<size_t>(r)] = greedy_request(std::move(prompt), 6);
  }
  const auto one = make_engine(options);
  ASSERT_NE(one, nullptr);
  std::vector<Trace> truth;
  for (const engine::Request& request : requests) truth.push_back(run(*one, {request})[0]);
  // Returns how many tokens came from a tier.
  const auto restored = [&](int rounds) {
    const auto engine = make_engine(options);
    if (engine == nullptr) return int64_t{-1};
    for (int round = 0; round < rounds; ++round) {
      for (size_t i = 0; i < requests.size(); ++i) {
        EXPECT_EQ(difference(truth[i], run(*engine, {requests[i]})[0]), "") << "request " << i << ", round " << round;
      }
    }
    EXPECT_EQ(engine->stats().kv_usage, 0);
    return engine->stats().prefix.offload_hit_tokens;
  };
  std::optional<int64_t> from_host;  // of one rank
  for (const auto& [tensor, pipeline] : {std::pair(1, 1), std::pair(2, 1), std::pair(1, 2)}) {
    const TempFolder folder;
    options.tensor_parallel_size = tensor;
    options.pipeline_parallel_size = pipeline;
    options.kv_offload_host_bytes = "64MiB";
    options.kv_offload_dir.clear();
    options.kv_offload_size.clear();
    const int64_t found = restored(2);
    EXPECT_EQ(found, from_host.value_or(found)) << tensor << " x " << pipeline;
    EXPECT_GE(found, 64);
    from_host = found;
    options.kv_offload_host_bytes.clear();
    options.kv_offload_dir = folder.path();
    options.kv_offload_size = "64MiB";
    restored(1);
    EXPECT_EQ(restored(1), 2 * 64);
  }
}

// A page that one rank does not have any more is computed again by all of them, and stored again.
TEST(OffloadRanks, APageThatOneRankLacksIsComputed) {
  const TempFolder folder;
  llm::Options options = dummy_options("llama");
  options.device = "cpu";
  options.threads = 2;
  options.max_model_len = "320";
  options.num_gpu_blocks_override = 100;
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 200; ++i) prompt.push_back(i * 7 % 500);
  const std::vector<engine::Request> requests = {greedy_request(prompt, 6)};
  const auto one = make_engine(options);
  ASSERT_NE(one, nullptr);
  const Trace truth = run(*one, requests)[0];
  options.kv_offload_dir = folder.path();
  options.kv_offload_size = "64MiB";
  options.tensor_parallel_size = 2;
  const std::filesystem::path other = folder.path() / "rank-1-of-2";
  const auto restored = [&] {
    const auto engine = make_engine(options);
    EXPECT_NE(engine, nullptr);
    EXPECT_EQ(difference(truth, run(*engine, requests)[0]), "");
    EXPECT_EQ(engine->stats().kv_usage, 0);
    return engine->stats().prefix.offload_hit_tokens;
  };
  EXPECT_EQ(restored(), 0);
  EXPECT_TRUE(std::filesystem::exists(other));
  EXPECT_EQ(restored(), 192);
  std::filesystem::remove_all(other);
  EXPECT_EQ(restored(), 0);
  EXPECT_EQ(restored(), 192);
  options.tensor_parallel_size = 4;  // other shares are other pages
  EXPECT_EQ(restored(), 0);
}

class OffloadHost : public OffloadBits {};

TEST_P(OffloadHost, FromHostMemoryAndDiskOfAGpu) {
  llm::Options options = dummy_options(GetParam());
  if (options.device == "cpu") options.device = "emulator";
  if (!llm::make_backend(options).ok()) GTEST_SKIP() << "this build has no emulator";
  options.kv_offload_host_bytes = "64MiB";
  compare(options, 4, 1, false);
  if (GetParam() != "llama") return;  // the emulator takes its time
  const TempFolder folder;
  options.kv_offload_host_bytes.clear();
  options.kv_offload_dir = folder.path();
  options.kv_offload_size = "64MiB";
  compare(options, 4, 2, true);
}

INSTANTIATE_TEST_SUITE_P(Gpu, OffloadHost, ::testing::Values("llama", "qwen3.5"), [](const auto& info) {
  return info.param == "llama" ? "llama" : "qwen3_5";
});

}  // namespace
}  // namespace quire::testing
