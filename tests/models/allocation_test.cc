// SPDX-License-Identifier: Apache-2.0
// A step of the engine allocates no heap memory except for the outputs that it returns.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <numeric>

#include "models/harness.h"

namespace {
std::atomic<int64_t> allocations{0};
}  // namespace

// Not inlined, because gcc would report malloc in new and free in delete as a mismatch.
[[gnu::noinline]] void* operator new(std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* at = std::malloc(size > 0 ? size : 1)) return at;
  std::abort();
}
[[gnu::noinline]] void operator delete(void* at) noexcept {
  std::free(at);
}
[[gnu::noinline]] void operator delete(void* at, std::size_t) noexcept {
  std::free(at);
}

namespace quire::testing {
namespace {

class Allocation : public ::testing::TestWithParam<std::string> {};

TEST_P(Allocation, ADecodeStepAllocatesOnlyItsOutputs) {
  if (test_device() != "cpu") GTEST_SKIP() << "the limits are those of the CPU";
  llm::Options options = dummy_options(GetParam());
  options.threads = 1;  // with more, a thread that is late to its first piece allocates its scratch late
  const auto engine = make_engine(options);
  ASSERT_NE(engine, nullptr);
  constexpr int64_t kSeqs = 4, kPrompt = 33, kBefore = 20, kWatched = 10;
  for (int32_t i = 0; i < kSeqs; ++i) {
    std::vector<int32_t> prompt(kPrompt);
    std::iota(prompt.begin(), prompt.end(), 3 * i + 5);
    engine::Request request = greedy_request(prompt, 100);
    request.params.seed = i;
    if (i == 1) request.params.temperature = 1;
    if (i == 2) request.params.temperature = 0.7, request.params.top_k = 20, request.params.top_p = 0.9;
    if (i == 3) request.params.repetition_penalty = 1.1;
    ASSERT_TRUE(engine->add(request).ok());
  }
  // Long enough for every buffer to reach its size; the watched steps fill no page and double no sequence's tokens.
  for (int64_t i = 0; i < kBefore; ++i) ASSERT_EQ(engine->step().size(), static_cast<size_t>(kSeqs));
  // One allocation for the list of outputs and one for the token of each; a sequence's table of seen tokens may grow
  // once.
  const int64_t first = allocations.load();
  for (int64_t i = 0; i < kWatched; ++i) {
    const int64_t before = allocations.load();
    ASSERT_EQ(engine->step().size(), static_cast<size_t>(kSeqs));
    EXPECT_LE(allocations.load() - before, 1 + kSeqs + 1) << "in step " << i;
  }
  EXPECT_LE(allocations.load() - first, kWatched * (1 + kSeqs) + kSeqs);
  // Over many steps, what pages and growing sequences add stays small.
  const int64_t before = allocations.load();
  constexpr int64_t kMany = 60;
  for (int64_t i = 0; i < kMany; ++i) ASSERT_EQ(engine->step().size(), static_cast<size_t>(kSeqs));
  const int64_t pages = kSeqs * (kMany / options.block_size + 1);
  EXPECT_LE(allocations.load() - before, kMany * (1 + kSeqs) + 6 * pages + 8 * kSeqs);
}

// One cache group; and several, in which sliding windows free pages during the watched steps.
INSTANTIATE_TEST_SUITE_P(Families, Allocation,
                         ::testing::Values("llama", "gemma3", "qwen3.5", "granite-hybrid", "qwen3-moe", "deepseek-v3"));

}  // namespace
}  // namespace quire::testing
