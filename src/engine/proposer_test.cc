// SPDX-License-Identifier: Apache-2.0
// The n-gram index against a search of the whole sequence, and the pace of drafts.
#include "engine/proposer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace quire::engine {
namespace {

// The same by searching the sequence from its beginning for each n.
std::vector<int32_t> slow_lookup(std::span<const int32_t> tokens, const SpeculationOptions& options, int64_t most) {
  for (int64_t n = options.prompt_lookup_max; n >= options.prompt_lookup_min; --n) {
    const auto size = static_cast<size_t>(n);
    if (tokens.size() < size) continue;
    for (size_t end = size; end < tokens.size(); ++end) {
      if (!std::ranges::equal(tokens.subspan(end - size, size), tokens.last(size))) continue;
      const auto follow = tokens.subspan(end, std::min(static_cast<size_t>(most), tokens.size() - end));
      return {follow.begin(), follow.end()};
    }
  }
  return {};
}

std::vector<int32_t> propose(Proposer& proposer, std::span<const int32_t> tokens, int64_t most) {
  std::vector<int32_t> drafts;
  proposer.propose(tokens, most, drafts);
  return drafts;
}

TEST(NgramProposer, FindsWhatASearchFinds) {
  std::mt19937 rng(1);
  for (int round = 0; round < 60; ++round) {
    SpeculationOptions options;
    options.prompt_lookup_min = 1 + static_cast<int64_t>(rng() % 4);
    options.prompt_lookup_max = options.prompt_lookup_min + static_cast<int64_t>(rng() % 4);
    const uint32_t vocab = 2 + rng() % (round % 2 == 0 ? 3 : 40);
    NgramProposer proposer(options);
    std::vector<int32_t> tokens;
    for (size_t i = 0; i < 600; i += 1 + rng() % 5) {
      while (tokens.size() < i) tokens.push_back(static_cast<int32_t>(rng() % vocab));
      const int64_t most = 1 + static_cast<int64_t>(rng() % 8);
      ASSERT_EQ(propose(proposer, tokens, most), slow_lookup(tokens, options, most)) << "length " << tokens.size();
    }
  }
}

TEST(NgramProposer, TheLongestMatchCountsThenTheFirst) {
  SpeculationOptions options;
  options.prompt_lookup_min = 1;
  options.prompt_lookup_max = 2;
  NgramProposer proposer(options);
  EXPECT_EQ(propose(proposer, std::vector<int32_t>{2, 9, 1, 2, 7, 1, 2, 8, 1, 2}, 3), (std::vector<int32_t>{7, 1, 2}));
  NgramProposer other(options);
  EXPECT_EQ(propose(other, std::vector<int32_t>{2, 9, 4, 5, 2}, 8), (std::vector<int32_t>{9, 4, 5, 2}));
  NgramProposer empty(options);
  EXPECT_TRUE(propose(empty, std::vector<int32_t>{1, 2, 3}, 8).empty());
}

TEST(DraftPace, FollowsWhatIsAccepted) {
  DraftPace pace;
  EXPECT_EQ(pace.next(5), 5);
  pace.note(5, 2);
  EXPECT_EQ(pace.next(5), 3);
  pace.note(3, 3);
  EXPECT_EQ(pace.next(5), 5);
  pace.note(5, 0);
  EXPECT_EQ(pace.next(5), 1);
}

TEST(DraftPace, PausesAfterMissesAndPausesLongerEachTime) {
  DraftPace pace;
  const auto miss = [&] {
    for (int64_t i = 0; i < DraftPace::kMisses; ++i) {
      ASSERT_GT(pace.next(4), 0);
      pace.note(1, 0);
    }
  };
  const auto pause = [&] {
    int64_t steps = 0;
    while (pace.next(4) == 0) ++steps;
    return steps;
  };
  miss();
  EXPECT_EQ(pause(), DraftPace::kPause);
  miss();
  EXPECT_EQ(pause(), 2 * DraftPace::kPause);
  for (int i = 0; i < 8; ++i) {
    miss();
    pause();
  }
  miss();
  EXPECT_EQ(pause(), DraftPace::kMaxPause);
  pace.note(1, 1);
  miss();
  EXPECT_EQ(pause(), DraftPace::kPause) << "an accepted draft makes pauses short again";
}

}  // namespace
}  // namespace quire::engine
