// SPDX-License-Identifier: Apache-2.0
// What DeviceRows makes of settings is what the host's sampler does with them.
#include "sampling/device_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>

namespace quire::sampling {
namespace {

constexpr int64_t kVocab = 200;
constexpr float kNegInf = -std::numeric_limits<float>::infinity();

// The contract of ops/sampling.h up to the temperature, read plainly.
std::vector<float> applied(std::vector<float> x, const DeviceRows& rows, size_t r) {
  const SampleRow& row = rows.rows()[r];
  std::set<int32_t> named;
  for (const TokenEdit& e :
       rows.edits().subspan(static_cast<size_t>(row.first_edit), static_cast<size_t>(row.num_edits))) {
    EXPECT_TRUE(named.insert(e.token).second) << "token " << e.token << " is named twice";
    float& value = x[static_cast<size_t>(e.token)];
    if (e.forbidden) value = kNegInf;
    value += e.bias;
    if (e.seen) value = value > 0 ? value / row.repetition : value * row.repetition;
    if (e.count > 0) value = value - row.frequency * static_cast<float>(e.count) - row.presence;
  }
  const size_t words = (static_cast<size_t>(kVocab) + 31) / 32;
  for (size_t t = 0; row.mask >= 0 && t < x.size(); ++t) {
    const uint32_t word = rows.masks()[static_cast<size_t>(row.mask) * words + t / 32];
    if (((word >> (t % 32)) & 1) == 0) x[t] = kNegInf;
  }
  return x;
}

TEST(DeviceRows, GreedyTokensAreTheHostSamplersUnderRandomSettings) {
  std::mt19937 rng(3);
  std::normal_distribution<float> normal;
  const auto token = [&] { return static_cast<int32_t>(rng() % kVocab); };
  Scratch scratch;
  DeviceRows rows;
  for (int round = 0; round < 300; ++round) {
    if (round % 10 == 0) rows.clear();  // rows are collected
    SamplingParams p;
    p.temperature = 0;
    if (rng() % 2 == 0) p.repetition_penalty = 1.5;
    if (rng() % 2 == 0) p.frequency_penalty = 0.5;
    if (rng() % 2 == 0) p.presence_penalty = -0.5;
    for (size_t i = rng() % 5; i > 0; --i) p.logit_bias.edit().emplace_back(token(), normal(rng));
    for (size_t i = rng() % 3; i > 0; --i) p.bad_word_ids.edit().push_back({token()});
    p.eos_token_ids = {token(), 5};
    p.stop_token_ids = {token()};
    p.min_tokens = static_cast<int64_t>(rng() % 12);
    if (rng() % 3 == 0) {
      p.allowed_token_ids.emplace();
      for (int i = 0; i < 40; ++i) p.allowed_token_ids->edit().push_back(token());
    }
    History history;
    std::vector<int32_t> prompt;
    for (int i = 0; i < 20; ++i) prompt.push_back(token());
    history.add_prompt(prompt);
    for (size_t i = rng() % 20; i > 0; --i) history.push_output(token());
    if (rng() % 2 == 0 && history.num_output() > 1) {  // a word whose beginning the output ends with
      p.bad_word_ids.edit().push_back({history.output().back(), token()});
    }
    ASSERT_TRUE(p.validate({kVocab, 20}).ok());
    std::vector<float> logits(kVocab);
    for (float& x : logits) x = 3 * normal(rng);

    // A grammar that allows some tokens, or only the end.
    std::vector<uint32_t> mask;
    if (rng() % 2 == 0) {
      mask.resize((kVocab + 31) / 32);
      const bool end = rng() % 3 == 0;
      for (int i = 0; i < (end ? 1 : 60); ++i) {
        const auto t = static_cast<uint32_t>(end ? 5 : token());
        mask[t / 32] |= uint32_t{1} << (t % 32);
      }
    }

    const auto wanted = sample_row(logits, p, history, 1, 9, scratch, mask);
    rows.add(p, history, history.num_output(), 1, 9, kVocab, mask);
    const std::vector<float> x = applied(logits, rows, rows.rows().size() - 1);
    const auto best = std::max_element(x.begin(), x.end());
    ASSERT_EQ(wanted.ok(), *best != kNegInf);
    if (!wanted.ok()) continue;
    EXPECT_EQ(best - x.begin(), wanted->token) << "round " << round;
  }
}

TEST(DeviceRows, SettingsOfADrawAreBroughtToFloats) {
  SamplingParams p;
  p.temperature = 0.7;
  p.top_k = 1000;
  p.top_p = 0.9;
  p.min_p = 1.0;
  p.logprobs = 7;
  DeviceRows rows;
  rows.add(p, {}, 0, 0x123456789abcdefull, 77, kVocab);
  const SampleRow& row = rows.rows()[0];
  EXPECT_EQ(row.seed, 0x123456789abcdefull);
  EXPECT_EQ(row.position, 77);
  EXPECT_EQ(row.temperature, 0.7f);
  EXPECT_EQ(row.top_k, kVocab);
  EXPECT_EQ(row.top_p, 0.9f);
  EXPECT_EQ(row.log_min_p, 0.0f);  // on: only what is as likely as the best stays
  EXPECT_EQ(row.logprobs, 7);
  EXPECT_EQ(row.num_edits, 0);
  EXPECT_EQ(row.mask, -1);
  p.min_p = 0;
  p.logprobs = -1;
  rows.add(p, {}, 0, 0, 0, kVocab);
  EXPECT_GT(rows.rows()[1].log_min_p, 0.0f);  // off
  EXPECT_EQ(rows.rows()[1].logprobs, -1);     // the host's work
  EXPECT_FALSE(has_device_logprobs(p));
}

TEST(DeviceRows, OnlySettingsThatLookAtTokensWaitForThem) {
  SamplingParams p;
  EXPECT_FALSE(looks_at_history(p));
  p.min_tokens = 5;
  p.stop_token_ids = {3};
  p.logit_bias = {{4, 1.0f}};
  p.allowed_token_ids = SharedList<int32_t>{1, 2, 3};
  EXPECT_FALSE(looks_at_history(p));
  SamplingParams word = p, repetition = p, presence = p;
  word.bad_word_ids = {{1, 2}};
  repetition.repetition_penalty = 1.1;
  presence.presence_penalty = 0.1;
  for (const SamplingParams& waits : {word, repetition, presence}) EXPECT_TRUE(looks_at_history(waits));
}

}  // namespace
}  // namespace quire::sampling
