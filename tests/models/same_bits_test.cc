// SPDX-License-Identifier: Apache-2.0
// The same-bits contract: a request's logits and tokens have the same bits alone or in a batch, prefilled whole or in
// chunks, on one thread or all, cached or not, preempted or not, at any page size, in any order. Compared by memcmp.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "model/families/family.h"
#include "models/fake_constraint.h"
#include "models/harness.h"
#include "models/quantised_model.h"

namespace quire::testing {
namespace {

// What a run may vary without changing any bit.
struct Circumstances {
  int64_t threads = 1;
  int64_t batched_tokens = 2048;
  int64_t block_size = 16;
  int64_t blocks = 400;
  bool prefix_caching = false;
  bool shuffled = false;
  int stagger = 0;
};

std::ostream& operator<<(std::ostream& out, const Circumstances& c) {
  return out << "threads " << c.threads << ", tokens per step " << c.batched_tokens << ", page size " << c.block_size
             << ", pages " << c.blocks << ", prefix caching " << c.prefix_caching << ", shuffled " << c.shuffled
             << ", stagger " << c.stagger;
}

std::vector<engine::Request> random_requests(std::mt19937& rng, int64_t vocab, int count, bool all_rows) {
  std::vector<engine::Request> requests;
  std::vector<int32_t> shared;  // some prompts have a common beginning, so that the prefix cache has hits
  for (int i = 0; i < 80; ++i) shared.push_back(static_cast<int32_t>(rng() % static_cast<uint64_t>(vocab)));
  for (int i = 0; i < count; ++i) {
    engine::Request request;
    if (rng() % 2 == 0) request.prompt.assign(shared.begin(), shared.begin() + 16 + static_cast<long>(rng() % 64));
    const size_t more = 1 + rng() % (rng() % 3 == 0 ? 150 : 20);
    for (size_t t = 0; t < more; ++t)
      request.prompt.push_back(static_cast<int32_t>(rng() % static_cast<uint64_t>(vocab)));
    request.params.ignore_eos = true;
    request.params.max_tokens = 1 + static_cast<int64_t>(rng() % 12);
    request.params.seed = static_cast<int64_t>(rng());
    request.params.temperature = rng() % 2 == 0 ? 0.0 : 0.8;
    if (rng() % 3 == 0) request.params.top_k = 20;
    if (rng() % 3 == 0) request.params.top_p = 0.9;
    if (rng() % 3 == 0) request.params.repetition_penalty = 1.3;
    if (all_rows && rng() % 4 == 0) request.params.prompt_logprobs = 2;
    if (rng() % 3 == 0) request.constraint = hashed_constraint(static_cast<uint32_t>(rng()));
    requests.push_back(std::move(request));
  }
  return requests;
}

llm::Options with(llm::Options options, const Circumstances& c) {
  options.threads = c.threads;
  options.max_num_batched_tokens = c.batched_tokens;
  options.block_size = c.block_size;
  options.num_gpu_blocks_override = c.blocks;
  options.enable_prefix_caching = c.prefix_caching;
  return options;
}

// As many pages as requested, or the smallest number that one whole request fits into: models with several cache groups
// need more of them, and few pages are what causes preemption.
llm::Options with_room(llm::Options options) {
  while (!fits(options)) options.num_gpu_blocks_override = *options.num_gpu_blocks_override * 5 / 4 + 1;
  return options;
}

// Each request alone in a fresh engine: the reference that all other runs must equal.
std::vector<Trace> alone(const llm::Options& options, const std::vector<engine::Request>& requests) {
  std::vector<Trace> traces;
  const auto engine = make_engine(with_room(with(options, {})));
  if (engine == nullptr) return std::vector<Trace>(requests.size());
  for (const engine::Request& request : requests) traces.push_back(run(*engine, {request})[0]);
  return traces;
}

void expect_same(const llm::Options& options, const std::vector<engine::Request>& requests,
                 const std::vector<Trace>& truth, const Circumstances& c, std::mt19937& rng) {
  const auto engine = make_engine(with_room(with(options, c)));
  ASSERT_NE(engine, nullptr);
  std::vector<size_t> order(requests.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  if (c.shuffled) std::shuffle(order.begin(), order.end(), rng);
  const std::vector<Trace> traces = run(*engine, requests, order, c.stagger);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(difference(truth[i], traces[i]), "") << "request " << i << " of " << requests.size() << "; " << c;
  }
}

std::vector<Circumstances> circumstances(std::mt19937& rng) {
  std::vector<Circumstances> list = {
      {},                                    // all requests together
      {.threads = 0},                        // all threads
      {.threads = 2, .batched_tokens = 17},  // chunks
      {.threads = 2, .batched_tokens = 64, .block_size = 32, .blocks = 200, .prefix_caching = true, .stagger = 3},
      {.threads = 2, .batched_tokens = 256, .blocks = 70, .shuffled = true},  // preemption
  };
  Circumstances random;
  random.threads = 1 + static_cast<int64_t>(rng() % 3);
  random.batched_tokens = 16 + static_cast<int64_t>(rng() % 100);
  random.block_size = 8 * (1 + static_cast<int64_t>(rng() % 8));
  random.blocks = 1 + 1400 / random.block_size;
  random.prefix_caching = rng() % 2 == 0;
  random.shuffled = true;
  random.stagger = static_cast<int>(rng() % 3);
  list.push_back(random);
  return list;
}

// A golden case of each family, and further ones of families whose layers differ.
const std::vector<std::string> kFamilyCases = {
    "llama",       "qwen3",         "phi3",           "glm4",       "olmo2",         "granite",    "smollm3",
    "mistral",     "qwen2",         "mistral-window", "ministral3", "mixtral",       "gemma2",     "gemma3",
    "gemma4",      "gemma4-global", "gemma4-moe",     "gpt-oss",    "qwen3-moe",     "qwen3-next", "qwen3.5",
    "qwen3.5-moe", "deepseek-v2",   "deepseek-v3",    "glm4-moe",   "glm4-moe-lite", "minicpm3",   "granite-hybrid",
    "nemotron-h",  "lfm2",          "lfm2-moe",       "phimoe",     "olmo3",         "cohere",     "cohere2",
    "glm",         "ministral"};

class SameBits : public ::testing::TestWithParam<std::string> {};

TEST_P(SameBits, AloneTogetherChunkedCachedPreempted) {
  std::mt19937 rng(std::hash<std::string>{}(GetParam()) % 1000);
  llm::Options options = dummy_options(GetParam());
  options.max_model_len = "320";
  const auto requests = random_requests(rng, 500, 7, true);
  // On a GPU, other types use other kernels.
  const bool cpu = test_device() == "cpu";
  for (const char* dtype : cpu ? std::vector{"float32"} : std::vector{"float32", "bfloat16"}) {
    options.dtype = dtype;
    const std::vector<Trace> truth = alone(options, requests);
    for (const Circumstances& c : circumstances(rng)) expect_same(options, requests, truth, c, rng);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, SameBits, ::testing::ValuesIn(kFamilyCases));

// The bug: glm and ministral were missing.
TEST(SameBitsFamilies, AreAllFamilies) {
  std::set<std::string> tried, all;
  for (const std::string& golden_case : kFamilyCases) {
    const auto files = llm::open_files(dummy_options(golden_case));
    ASSERT_TRUE(files.ok()) << files.error().message;
    tried.insert(files->family->name);
  }
  for (const model::Family* family : model::families()) all.insert(family->name);
  // These are encoders, which pooling_bits_test.cc tries.
  for (const char* encoder : {"bert", "roberta", "mpnet", "nomic-bert", "modernbert"}) all.erase(encoder);
  EXPECT_EQ(tried, all);
}

// Prompts that are long enough to share pages, states and windows: with the cache the answers are those of an engine
// without one, and the cache was used. Then the same with so few pages that sequences are preempted and resumed.
class SharedPrefixes : public ::testing::TestWithParam<std::string> {};

TEST_P(SharedPrefixes, AreFoundAndChangeNothing) {
  std::mt19937 rng(11);
  llm::Options options = dummy_options(GetParam());
  options.max_model_len = "1024";
  std::vector<int32_t> shared(700);
  for (int32_t& token : shared) token = static_cast<int32_t>(rng() % 500);
  std::vector<engine::Request> requests;
  for (const size_t length : {700, 700, 650, 400, 699, 700}) {
    std::vector<int32_t> prompt(shared.begin(), shared.begin() + static_cast<ptrdiff_t>(length));
    for (size_t more = rng() % 40; more > 0; --more) prompt.push_back(static_cast<int32_t>(rng() % 500));
    requests.push_back(greedy_request(std::move(prompt), 40));
  }
  const std::vector<Trace> truth = alone(options, requests);
  for (const Circumstances& c :
       {Circumstances{.batched_tokens = 300, .prefix_caching = true, .stagger = 12},
        Circumstances{.threads = 2, .batched_tokens = 190, .blocks = 2, .prefix_caching = true, .stagger = 2}}) {
    const auto engine = make_engine(with_room(with(options, c)));
    ASSERT_NE(engine, nullptr);
    for (int round = 0; round < 2; ++round) {
      const std::vector<Trace> traces = run(*engine, requests, {}, c.stagger);
      for (size_t i = 0; i < requests.size(); ++i) {
        EXPECT_EQ(difference(truth[i], traces[i]), "") << "request " << i << ", round " << round << "; " << c;
      }
    }
    EXPECT_GT(engine->stats().prefix.hit_tokens, 0) << c;
    // If windows free pages, or hybrids find most of their prompts, there may be room for all. test_receipts.py has a
    // hybrid that is preempted.
    if (c.blocks == 2 && GetParam() == "llama") {
      EXPECT_GT(engine->stats().preemptions, 0) << c;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, SharedPrefixes,
                         ::testing::Values("llama", "gemma3", "gemma4", "gpt-oss", "deepseek-v3", "qwen3.5",
                                           "qwen3-next", "granite-hybrid", "nemotron-h", "lfm2"));

// States in chunks, which GPUs keep for some sizes: requests that end within and behind a chunk of 64 positions, steps that
// begin anywhere in one, checkpoints, and drafts that are taken back.
void expect_same_bits_in_chunks(llm::Options options) {
  std::mt19937 rng(12);
  options.dtype = "bfloat16";
  options.max_model_len = "200";
  std::vector<int32_t> shared(150);
  for (int32_t& token : shared) token = static_cast<int32_t>(rng() % 500);
  std::vector<engine::Request> requests;
  for (const size_t length : {150, 63, 100, 131}) {
    std::vector<int32_t> prompt(shared.begin(), shared.begin() + static_cast<ptrdiff_t>(length));
    requests.push_back(greedy_request(std::move(prompt), 8));
  }
  const auto engine = make_engine(with_room(with(options, {})));
  ASSERT_NE(engine, nullptr);
  const model::DecoderConfig& config = engine->model().config();
  EXPECT_TRUE(config.gdn.chunked || config.mamba2.chunked);
  const std::vector<Trace> truth = alone(options, requests);
  for (const Circumstances& c :
       {Circumstances{.batched_tokens = 17}, Circumstances{.batched_tokens = 70, .prefix_caching = true, .stagger = 9}}) {
    expect_same(options, requests, truth, c, rng);
  }
  options.speculative_config = R"({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1})";
  const auto drafting = make_engine(with_room(with(options, {.prefix_caching = true})));
  ASSERT_NE(drafting, nullptr);
  const std::vector<Trace> traces = run(*drafting, requests);
  for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(traces[i].tokens, truth[i].tokens) << "request " << i;
}

TEST(StatesInChunks, ChangeNoBitWhereverAStepEnds) {
  llm::Options options = dummy_options("qwen3.5");
  if (options.device == "cpu") options.device = "emulator";
  options.hf_overrides = options.device == "emulator"
                             ? R"({"linear_key_head_dim": 32, "linear_value_head_dim": 32})"
                             : R"({"linear_key_head_dim": 128, "linear_value_head_dim": 128})";
  expect_same_bits_in_chunks(options);
}

TEST(StatesInChunks, OfMamba2ChangeNoBitWhereverAStepEnds) {
  llm::Options options = dummy_options("granite-hybrid");
  if (options.device != "cpu") GTEST_SKIP() << "GPUs keep Mamba-2's states token by token";
  options.device = "emulator";
  options.hf_overrides = R"({"mamba_d_state": 32})";
  expect_same_bits_in_chunks(options);
}

// A property of the CPU backend beyond the contract: ISA levels without special matrix instructions give the same bits.
bool is_common_arithmetic(const std::string& isa) {
  return isa == "portable" || isa == "avx2" || isa == "avx512";
}

TEST(SameBits, EveryIsaLevelAndKvTypeAgreesWithItself) {
  if (test_device() != "cpu") GTEST_SKIP() << "ISA levels are the cpu's";
  std::mt19937 rng(5);
  const auto requests = random_requests(rng, 500, 5, true);
  for (const char* kv : {"float32", "float16", "bfloat16"}) {
    std::vector<Trace> first;
    for (const std::string& isa : isa_names()) {
      llm::Options options = dummy_options("llama-wide");
      options.cpu_isa = isa;
      options.kv_cache_dtype = kv;
      const std::vector<Trace> truth = alone(options, requests);
      expect_same(options, requests, truth, {.threads = 2, .batched_tokens = 33, .prefix_caching = true}, rng);
      if (!is_common_arithmetic(isa)) continue;
      if (first.empty()) first = truth;
      for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(difference(first[i], truth[i]), "") << isa << " " << kv;
    }
  }
}

class SameBitsQuantised : public ::testing::TestWithParam<DType> {};

TEST_P(SameBitsQuantised, EveryWeightTypeOnEveryIsaLevel) {
  std::mt19937 rng(static_cast<unsigned>(GetParam()) + 1);
  const QuantisedModel model(GetParam());
  const auto requests = random_requests(rng, model.vocab(), 5, false);
  std::vector<Trace> first;
  for (const std::string& isa : isa_names()) {
    llm::Options options = model.options();
    options.cpu_isa = isa;
    const std::vector<Trace> truth = alone(options, requests);
    expect_same(options, requests, truth, {.threads = 2, .batched_tokens = 40, .prefix_caching = true, .stagger = 1},
                rng);
    if (!is_common_arithmetic(isa)) continue;
    if (first.empty()) first = truth;
    for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(difference(first[i], truth[i]), "") << isa;
  }
}

std::vector<DType> all_types() {
  std::vector<DType> types;
  for (const DTypeInfo& row : kGgufDTypes) types.push_back(row.type);
  return types;
}
INSTANTIATE_TEST_SUITE_P(Types, SameBitsQuantised, ::testing::ValuesIn(all_types()),
                         [](const auto& test) { return std::string(name(test.param)); });

// One prompt alone and two together: the case in which batched matrix products elsewhere differ by rounding.
TEST(SameBits, OnePromptAloneEqualsTwoTogether) {
  const llm::Options options = dummy_options("qwen3");
  const auto engine = make_engine(options);
  ASSERT_NE(engine, nullptr);
  const engine::Request a = greedy_request({1, 2, 3, 4, 5}, 10);
  const engine::Request b = greedy_request({9, 8, 7}, 10);
  const Trace alone_a = run(*engine, {a})[0];
  const std::vector<Trace> both = run(*engine, {a, b});
  EXPECT_EQ(difference(alone_a, both[0]), "");
}

TEST(SameBits, ChildrenOfNAreTheRequestsWithTheirSeeds) {
  const auto engine = make_engine(dummy_options("llama"));
  ASSERT_NE(engine, nullptr);
  engine::Request request = greedy_request({5, 6, 7}, 8);
  request.params.temperature = 1.0;
  request.params.seed = 41;
  request.params.n = 3;
  const engine::RequestId id = engine->add(request).value();
  std::map<int32_t, std::vector<int32_t>> children;
  while (engine->has_work()) {
    for (const engine::Output& output : engine->step()) {
      ASSERT_EQ(output.id, id);
      auto& tokens = children[output.child];
      tokens.insert(tokens.end(), output.tokens.begin(), output.tokens.end());
    }
  }
  ASSERT_EQ(children.size(), 3u);
  request.params.n = 1;
  for (int32_t child = 0; child < 3; ++child) {
    request.params.seed = 41 + child;
    EXPECT_EQ(run(*engine, {request})[0].tokens, children[child]);
  }
  EXPECT_NE(children[0], children[1]);
}

}  // namespace
}  // namespace quire::testing
