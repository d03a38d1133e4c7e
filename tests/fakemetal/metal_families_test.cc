// SPDX-License-Identifier: Apache-2.0
// Every golden case on the Metal driver: with the fake of Metal its logits and tokens have the emulator's bits.
//
// The emulator runs the kernels' host build and the fake runs their flattened Metal text; both sum in the same order.
// Each case also runs deferred: then nothing runs before somebody waits for it, and a step that is read too early gives
// other logits. What the host writes too late is seen without that, for one type: the host does the same for both.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "base/test_folder.h"
#include "fake_metal.h"
#include "models/golden.h"
#include "models/harness.h"

namespace quire::testing {
namespace {

class OnMetal : public ::testing::Test {
 protected:
  // Compiled kernels are kept in a folder of the test's own.
  void SetUp() override { setenv("QUIRE_HOME", home_.path().c_str(), 1); }
  void TearDown() override {
    unsetenv("QUIRE_HOME");
    unsetenv("FAKE_METAL_DEFER");
  }
  const TempFolder home_;
};
class MetalFamilies : public OnMetal, public ::testing::WithParamInterface<std::string> {};

std::vector<int32_t> tokens(int32_t count, int32_t step) {
  std::vector<int32_t> out;
  for (int32_t i = 0; i < count; i++) out.push_back((i * step + 7) % 500);
  return out;
}

// Runs the requests without reading logits, so that each step is queued while the one before it runs.
std::vector<Trace> run_ahead(engine::Engine& engine, const std::vector<engine::Request>& requests) {
  std::map<engine::RequestId, size_t> places;
  for (const engine::Request& request : requests) places.emplace(engine.add(request).value(), places.size());
  std::vector<Trace> traces(requests.size());
  while (engine.has_work()) {
    for (const engine::Output& output : engine.step()) {
      auto& to = traces[places.at(output.id)].tokens;
      to.insert(to.end(), output.tokens.begin(), output.tokens.end());
    }
  }
  return traces;
}

// Two requests whose logits are read, and two that only sample. The first prompt takes three steps of 16 tokens, every
// row of it is read, and the second request comes when the first has not ended: chunks alone, a chunk with another
// sequence's rows, and decode steps of two sequences.
std::vector<Trace> answers(llm::Options options, const char* device) {
  options.device = device;
  options.max_model_len = "128";
  options.max_num_seqs = 2;
  options.max_num_batched_tokens = 16;
  options.num_gpu_blocks_override = 200;
  const auto engine = make_engine(options);
  if (engine == nullptr) return {};
  std::vector<engine::Request> requests = {greedy_request(tokens(37, 89), 5), greedy_request(tokens(7, 53), 3)};
  requests[0].params.prompt_logprobs = 0;
  std::vector<Trace> traces = run(*engine, requests, {}, 2);
  requests = {greedy_request(tokens(19, 31), 6), greedy_request(tokens(4, 211), 6)};
  for (engine::Request& request : requests) {
    request.params.temperature = 1.2;
    request.params.seed = 5;
  }
  for (Trace& trace : run_ahead(*engine, requests)) traces.push_back(std::move(trace));
  return traces;
}

TEST_P(MetalFamilies, GiveTheBitsOfTheEmulator) {
  llm::Options options = dummy_options(GetParam());
  for (const char* dtype : {"float32", "bfloat16"}) {
    options.dtype = dtype;
    const std::vector<Trace> wanted = answers(options, "emulator");
    ASSERT_EQ(wanted.size(), 4u);
    EXPECT_EQ(wanted[0].tokens.size(), 5u);
    EXPECT_EQ(wanted[1].tokens.size(), 3u);
    EXPECT_GE(wanted[0].logits.size(), 37u);
    EXPECT_EQ(wanted[2].tokens.size(), 6u);
    for (const bool deferred : {false, true}) {
      if (!deferred && options.dtype == "float32") continue;
      deferred ? setenv("FAKE_METAL_DEFER", "1", 1) : unsetenv("FAKE_METAL_DEFER");
      const fakemetal::Counts before = fakemetal::counts();
      const std::vector<Trace> found = answers(options, "metal");
      EXPECT_GT(fakemetal::counts().dispatches, before.dispatches);
      ASSERT_EQ(found.size(), wanted.size());
      for (size_t i = 0; i < wanted.size(); i++) {
        EXPECT_EQ(difference(wanted[i], found[i]), "") << dtype << (deferred ? ", deferred" : "") << ", request " << i;
      }
      EXPECT_EQ(fakemetal::objects_alive(), 0) << fakemetal::objects_alive_by_class();
    }
  }
}

// Before macOS 15 there are no residency sets, and a kernel has no other buffers than those bound to it.
TEST_F(OnMetal, ModelsWorkWithoutResidencySets) {
  const llm::Options options = dummy_options("qwen3.5");
  const std::vector<Trace> wanted = answers(options, "emulator");
  setenv("FAKE_METAL_MACOS", "14", 1);
  const std::vector<Trace> found = answers(options, "metal");
  unsetenv("FAKE_METAL_MACOS");
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); i++) EXPECT_EQ(difference(wanted[i], found[i]), "");
}

INSTANTIATE_TEST_SUITE_P(Goldens, MetalFamilies, ::testing::ValuesIn(golden_cases()),
                         [](const auto& test) { return test_name(test.param); });

}  // namespace
}  // namespace quire::testing
