// SPDX-License-Identifier: Apache-2.0
// Makes the visits, runs them and compares what was received, by memcmp.
#include "models/visits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "models/fake_constraint.h"

namespace quire::testing {
namespace {

std::string difference(const SeenLogprobs& a, const SeenLogprobs& b, const std::string& what) {
  if (a.ranks != b.ranks) return "ranks or listed tokens of the " + what + " differ";
  if (a.logprobs.size() != b.logprobs.size()) return "the " + what + " has more logprobs";
  const bool same = std::memcmp(a.logprobs.data(), b.logprobs.data(), a.logprobs.size() * sizeof(float)) == 0;
  return same ? "" : "the logprobs of the " + what + " differ";
}

std::string difference(const Seen& a, const Seen& b) {
  if (a.tokens != b.tokens) return "the tokens differ";
  if (const std::string other = difference(a.answer, b.answer, "answer"); !other.empty()) return other;
  if (a.digests != b.digests) return "the digests of logits differ";
  if (const std::string other = difference(a.prompt, b.prompt, "prompt"); !other.empty()) return other;
  if (a.finish != b.finish || a.stop_token != b.stop_token) return "they ended otherwise";
  return {};
}

}  // namespace

std::vector<Visit> random_visits(std::mt19937& rng, int count) {
  std::vector<int32_t> shared(60);
  for (int32_t& token : shared) token = static_cast<int32_t>(rng() % 500);
  std::vector<Visit> visits(static_cast<size_t>(count));
  const auto one_in = [&](uint32_t n) { return rng() % n == 0; };
  for (Visit& visit : visits) {
    engine::Request& request = visit.request;
    if (one_in(2)) request.prompt.assign(shared.begin(), shared.begin() + 16 + static_cast<ptrdiff_t>(rng() % 44));
    for (size_t more = 1 + rng() % 30; more > 0; --more) {
      request.prompt.push_back(static_cast<int32_t>(rng() % 500));
    }
    sampling::SamplingParams& p = request.params;
    p.seed = static_cast<int64_t>(rng());
    p.max_tokens = 1 + static_cast<int64_t>(rng() % 24);
    p.temperature = one_in(2) ? 0.0 : 1.1;
    if (one_in(3)) p.top_k = 30;
    if (one_in(3)) p.top_p = 0.9;
    if (one_in(4)) p.repetition_penalty = 1.4;
    if (one_in(2)) {
      // There are few tokens to choose from, so each choice depends on the one before: a penalty or a bad word that
      // misses the last token shows at once.
      std::vector<int32_t> few(4);
      for (int32_t& token : few) token = static_cast<int32_t>(rng() % 500);
      for (const int32_t token : few) p.logit_bias.edit().emplace_back(token, 60.0f);
      if (one_in(2)) p.frequency_penalty = 1.9;
      if (one_in(2)) p.bad_word_ids = {{few[0], few[1]}, {few[1], few[2]}, {few[2], few[0]}, {few[3], few[3]}};
    }
    if (one_in(3)) p.logprobs = static_cast<int64_t>(rng() % 21);
    if (one_in(4)) p.min_tokens = std::min<int64_t>(*p.max_tokens, 3);
    if (one_in(4)) p.n = p.greedy() ? 1 : 2;
    // Many end tokens, so that sequences stop while a row of theirs is in flight.
    if (one_in(2)) {
      for (int32_t token = 0; token < 40; ++token) p.eos_token_ids.edit().push_back(token * 11);
    }
    if (one_in(3)) request.constraint = hashed_constraint(static_cast<uint32_t>(rng()));
    if (one_in(3)) p.stop_token_ids = {static_cast<int32_t>(rng() % 500), static_cast<int32_t>(rng() % 500)};
    // Every other request has digests, some of the version for which the host reads logits.
    const auto number = &visit - visits.data();
    if (number % 2 == 0) {
      p.row_digests = number % 8 == 6 ? sampling::RowDigests::kFirst : sampling::RowDigests::kSecond;
    }
    visit.step = static_cast<int64_t>(rng() % 30);
    if (one_in(4)) visit.leaves_after = 1 + rng() % 6;
  }
  return visits;
}

std::vector<Visit> random_stays(std::mt19937& rng, int count) {
  std::vector<Visit> visits = random_visits(rng, count);
  for (Visit& visit : visits) {
    visit.leaves_after = 0;
    visit.request.priority = static_cast<int64_t>(rng() % 3);
    sampling::SamplingParams& p = visit.request.params;
    if (rng() % 4 == 0) p.min_p = 0.05;
    if (rng() % 5 == 0) p.prompt_logprobs = 1;
    if (rng() % 4 == 0) p.seed.reset();
  }
  return visits;
}

namespace {

void note(const std::vector<sampling::TokenLogprob>& list, SeenLogprobs& seen) {
  for (const sampling::TokenLogprob& entry : list) {
    seen.logprobs.push_back(entry.logprob);
    seen.ranks.push_back(entry.token);
    seen.ranks.push_back(entry.rank);
  }
}

void note(const engine::Output& output, Seen& seen) {
  EXPECT_EQ(seen.finish, engine::FinishReason::kNone) << "an output after the last";
  if (output.error) ADD_FAILURE() << output.error->message;
  seen.tokens.insert(seen.tokens.end(), output.tokens.begin(), output.tokens.end());
  for (const auto& list : output.prompt_logprobs) note(list, seen.prompt);
  for (const auto& list : output.logprobs) note(list, seen.answer);
  seen.digests.insert(seen.digests.end(), output.row_digests.begin(), output.row_digests.end());
  EXPECT_TRUE(seen.digests.empty() || seen.digests.size() == seen.tokens.size());
  seen.finish = output.finish;
  seen.stop_token = output.stop_token;
}

}  // namespace

AllSeen run_visits(engine::Engine& engine, const std::vector<Visit>& visits,
                   const std::function<void(engine::RequestId, size_t)>& added) {
  AllSeen all;
  std::map<engine::RequestId, size_t> who;
  size_t come = 0;
  std::vector<bool> here(visits.size());
  for (int64_t step = 0; come < visits.size() || engine.has_work(); ++step) {
    for (size_t v = 0; v < visits.size(); ++v) {
      if (here[v] || visits[v].step > step) continue;
      here[v] = true;
      ++come;
      auto id = engine.add(visits[v].request);
      if (!id.ok()) {
        ADD_FAILURE() << id.error().message;
        continue;
      }
      who[*id] = v;
      if (added) added(*id, v);
    }
    std::vector<engine::RequestId> leaving;
    for (const engine::Output& output : engine.step()) {
      const size_t v = who.at(output.id);
      Seen& seen = all[{v, output.child}];
      note(output, seen);
      // The first child's tokens decide when the client goes away; what the other children have by then depends on the
      // schedule.
      const bool goes = visits[v].leaves_after > 0 && output.child == 0 && visits[v].request.params.n == 1 &&
                        seen.tokens.size() == visits[v].leaves_after && seen.finish == engine::FinishReason::kNone;
      if (goes) leaving.push_back(output.id);
    }
    for (const engine::RequestId id : leaving) {
      engine.abort(id);
      all[{who.at(id), 0}].finish = engine::FinishReason::kAbort;
    }
  }
  EXPECT_TRUE(engine.reset_prefix_cache()) << "a page was not given back";
  return all;
}

void expect_equal(const AllSeen& a, const AllSeen& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (const auto& [key, seen] : a) {
    const auto other = b.find(key);
    ASSERT_NE(other, b.end()) << what;
    EXPECT_EQ(difference(seen, other->second), "") << what << ": visit " << key.first << ", child " << key.second;
  }
}

}  // namespace quire::testing
