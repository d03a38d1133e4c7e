// SPDX-License-Identifier: Apache-2.0
// Pooled hidden states have the same bits alone, in a crowd, in chunks, with cached prefixes and after preemption, and
// beside sequences that generate text. Compared by memcmp.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>

#include "models/harness.h"

namespace quire::testing {
namespace {

using engine::Request;
using model::PoolRows;
using Vectors = std::vector<std::vector<float>>;

llm::Options pooling_options(const std::string& name) {
  llm::Options options = dummy_options(name);
  const auto folder = std::filesystem::path(QUIRE_SOURCE_DIR) / "tests" / "pooling" / "goldens" / name;
  if (std::filesystem::exists(folder)) options.model = folder;
  options.dtype = "float32";
  options.max_model_len = "256";
  if (name == "llama") options.runner = "generate", options.convert = "embed";  // both at once
  return options;
}

std::vector<Request> pooling_requests(std::mt19937& rng, bool pairs) {
  std::vector<Request> requests;
  const PoolRows kinds[] = {PoolRows::kFirst, PoolRows::kLast, PoolRows::kMean, PoolRows::kAll};
  for (int i = 0; i < 12; ++i) {
    Request request;
    const size_t length = 1 + rng() % (i % 3 == 0 ? 200 : 20);
    for (size_t t = 0; t < length; ++t) request.prompt.push_back(static_cast<int32_t>(5 + (i % 2 + t) * 7 % 400));
    request.pool = kinds[i % 4];
    if (pairs && i % 5 == 0) request.second_segment = static_cast<int64_t>(length / 2);
    requests.push_back(std::move(request));
  }
  return requests;
}

// The pooled vectors of the requests that pool, and the tokens of the others.
Vectors pool(engine::Engine& engine, const std::vector<Request>& requests) {
  std::map<engine::RequestId, size_t> places;
  Vectors out(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    auto id = engine.add(requests[i]);
    EXPECT_TRUE(id.ok()) << id.error().message;
    if (id.ok()) places[*id] = i;
  }
  while (engine.has_work()) {
    for (const engine::Output& output : engine.step()) {
      std::vector<float>& to = out[places.at(output.id)];
      to.insert(to.end(), output.pooled.begin(), output.pooled.end());
      for (const int32_t token : output.tokens) to.push_back(static_cast<float>(token));
    }
  }
  return out;
}

void expect_equal(const Vectors& truth, const Vectors& found, const std::string& where) {
  for (size_t i = 0; i < truth.size(); ++i) {
    ASSERT_EQ(truth[i].size(), found[i].size()) << where << ", request " << i;
    ASSERT_FALSE(truth[i].empty());
    EXPECT_EQ(std::memcmp(truth[i].data(), found[i].data(), truth[i].size() * sizeof(float)), 0)
        << where << ", request " << i;
  }
}

class PoolingBits : public ::testing::TestWithParam<std::string> {};

TEST_P(PoolingBits, AreTheSameAloneAndInACrowd) {
  const llm::Options options = pooling_options(GetParam());
  const auto single = make_engine(options);
  ASSERT_NE(single, nullptr);
  std::mt19937 rng(7);
  std::vector<Request> requests = pooling_requests(rng, single->model().config().encoder.token_types > 1);
  const bool generates = single->model().config().has_head;
  for (int i = 0; generates && i < 3; ++i) requests.push_back(greedy_request({7, 8, 9 + i}, 9));
  Vectors truth;
  for (const Request& request : requests) truth.push_back(pool(*single, {request})[0]);
  // How many floats there are, so that the comparison is not one of nothing.
  const auto hidden = static_cast<size_t>(single->model().config().hidden);
  EXPECT_EQ(truth[2].size(), hidden);
  EXPECT_EQ(truth[3].size(), hidden * requests[3].prompt.size());
  const bool encoder = single->model().config().encoder.on;
  for (const int64_t tokens : {int64_t{2048}, encoder ? int64_t{256} : int64_t{24}}) {
    for (const bool cached : {false, true}) {
      llm::Options crowd = options;
      crowd.threads = 2;
      crowd.max_num_batched_tokens = tokens;
      crowd.enable_prefix_caching = cached;
      const auto engine = make_engine(crowd);
      ASSERT_NE(engine, nullptr);
      const std::string where = std::to_string(tokens) + " tokens a step, prefix caching " + std::to_string(cached);
      expect_equal(truth, pool(*engine, requests), where);
      expect_equal(truth, pool(*engine, requests), where + ", again");
      if (encoder) continue;
      crowd.num_gpu_blocks_override = 20;  // of 16 positions: sequences are preempted
      const auto few = make_engine(crowd);
      ASSERT_NE(few, nullptr);
      expect_equal(truth, pool(*few, requests), where + ", few pages");
    }
  }
  for (const bool pipeline : {false, true}) {
    if (test_device() != "cpu") break;
    llm::Options ranks = options;
    ranks.threads = 2;
    (pipeline ? ranks.pipeline_parallel_size : ranks.tensor_parallel_size) = 2;
    const auto engine = make_engine(ranks);
    ASSERT_NE(engine, nullptr);
    expect_equal(truth, pool(*engine, requests), pipeline ? "two stages" : "two ranks");
  }
}

std::vector<std::string> pooling_bits_cases() {
  std::vector<std::string> cases = {"bert",  "roberta",          "modernbert",      "nomic-bert",
                                    "llama", "gemma3-embedding", "qwen3-embedding", "mistral-classify"};
  if (test_device() == "cpu") cases.emplace_back("mpnet");  // its bias by distance runs on a CPU alone
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Cases, PoolingBits, ::testing::ValuesIn(pooling_bits_cases()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(Pooling, RefusesWhatTheModelDoesNotDo) {
  const auto one_type = make_engine(pooling_options("roberta"));
  ASSERT_NE(one_type, nullptr);
  Request pair;
  pair.prompt = {5, 6};
  pair.pool = PoolRows::kFirst;
  pair.second_segment = 1;
  EXPECT_FALSE(one_type->add(pair).ok());
  const auto encoder = make_engine(pooling_options("bert"));
  ASSERT_NE(encoder, nullptr);
  const auto text = encoder->add(greedy_request({5, 6}, 4));
  ASSERT_FALSE(text.ok());
  EXPECT_NE(text.error().message.find("generates no text"), std::string::npos);
  llm::Options plain = dummy_options("llama");
  plain.runner = "generate";
  const auto writer = make_engine(plain);
  ASSERT_NE(writer, nullptr);
  Request request;
  request.prompt = {5};
  request.pool = PoolRows::kLast;
  const auto vector = writer->add(request);
  ASSERT_FALSE(vector.ok());
  EXPECT_NE(vector.error().message.find("--runner pooling"), std::string::npos);
}

}  // namespace
}  // namespace quire::testing
