// SPDX-License-Identifier: Apache-2.0
// Suffix decoding: guesses against a count of the whole text, the bounds of what is remembered, and hostile texts.
#include "engine/suffix_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "engine/draft_cost.h"
#include "engine/proposer.h"

namespace quire::engine {
namespace {

using Tokens = std::vector<int32_t>;

SuffixIndex index_of(const Tokens& tokens, size_t capacity = SIZE_MAX) {
  SuffixIndex index(capacity);
  for (const int32_t token : tokens) index.append(token);
  return index;
}

Guess guess(const SuffixIndex& index, const Tokens& context, int64_t most = 8, const SuffixOptions& options = {}) {
  Guess out;
  index.guess(context, options, most, out);
  return out;
}

TEST(SuffixIndex, GuessesWhatFollowedTheLongestMatch) {
  const Tokens text = {1, 2, 3, 4, 5, 9, 2, 3, 7, 8, 1, 2, 3};
  EXPECT_EQ(guess(index_of(text), text).tokens, (Tokens{4, 5, 9})) << "three tokens are equal, so three are proposed";
  SuffixOptions options;
  options.max_spec_factor = 2;
  EXPECT_EQ(guess(index_of(text), text, 5, options).tokens, (Tokens{4, 5, 9, 2, 3}));
  EXPECT_TRUE(guess(index_of({1, 2, 3}), {1, 2, 3}).tokens.empty());
  EXPECT_TRUE(guess(SuffixIndex(SIZE_MAX), {1, 2, 3}).tokens.empty());
}

TEST(SuffixIndex, TheMostFrequentContinuationWinsUntilItIsUnlikely) {
  Tokens text;
  for (const int32_t next : {5, 6, 5, 7, 5}) text.insert(text.end(), {1, 2, next, next + 10});
  text.insert(text.end(), {99, 1, 2});
  SuffixOptions options;
  options.min_token_prob = 0.5;
  const Guess found = guess(index_of(text), text, 8, options);
  EXPECT_EQ(found.tokens, (Tokens{5, 15}));
  EXPECT_NEAR(found.score, 1.2, 1e-9) << "three of five places, twice";
  options.min_token_prob = 0.7;
  EXPECT_TRUE(guess(index_of(text), text, 8, options).tokens.empty());
}

// In a text of periods, the guess is the period, whatever its length.
TEST(SuffixIndex, FindsPeriods) {
  for (int32_t period = 1; period < 40; ++period) {
    Tokens text;
    for (int32_t i = 0; i < 3 * period + 30; ++i) text.push_back(i % period);
    const Tokens drafts = guess(index_of(text), text).tokens;
    ASSERT_EQ(drafts.size(), 8u) << period;
    for (int32_t i = 0; i < 8; ++i) {
      EXPECT_EQ(drafts[static_cast<size_t>(i)], (3 * period + 30 + i) % period) << period;
    }
  }
}

// A ring that has turned gives what an index of its last tokens gives.
TEST(SuffixIndex, ForgetsTheBeginning) {
  std::mt19937 rng(4);
  for (const size_t capacity : {1, 7, 64, 100}) {
    Tokens text;
    SuffixIndex ring(capacity);
    for (int i = 0; i < 1000; ++i) {
      text.push_back(static_cast<int32_t>(rng() % 4));
      ring.append(text.back());
      const size_t kept = std::min(capacity, text.size());
      const Tokens rest(text.end() - static_cast<std::ptrdiff_t>(kept), text.end());
      ASSERT_EQ(guess(ring, text).tokens, guess(index_of(rest), text).tokens) << capacity << " " << i;
    }
    EXPECT_EQ(ring.num_kept(), capacity);
  }
}

TEST(AnswerStore, IsApartForEachSalt) {
  AnswerStore store(10);
  store.add("a", Tokens{1, 2, 3, 4});
  EXPECT_EQ(store.find("b"), nullptr);
  ASSERT_NE(store.find("a"), nullptr);
  EXPECT_EQ(guess(*store.find("a"), {9, 1, 2}).tokens, (Tokens{3, 4}));
  EXPECT_TRUE(guess(*store.find("a"), {3, 4}).tokens.empty()) << "nothing follows the end of an answer";
  store.add("a", Tokens{7, 8});
  EXPECT_TRUE(guess(*store.find("a"), {3, 4}).tokens.empty()) << "also not the next answer";
}

TEST(AnswerStore, IsBounded) {
  AnswerStore store(3);
  for (int32_t i = 0; i < 5; ++i) store.add("", Tokens{100 + i, 200 + i, 300 + i});
  EXPECT_EQ(store.num_answers(), 3u);
  EXPECT_TRUE(guess(*store.find(""), {100}).tokens.empty());
  EXPECT_TRUE(guess(*store.find(""), {101}).tokens.empty());
  EXPECT_EQ(guess(*store.find(""), {102}).tokens, (Tokens{202}));
  store.add("other", Tokens{1});
  EXPECT_EQ(store.find(""), nullptr) << "the salt that was used least recently goes";
  EXPECT_EQ(store.num_answers(), 1u);
  AnswerStore none(0);
  none.add("", Tokens{1, 2, 3});
  EXPECT_EQ(none.find(""), nullptr);
  AnswerStore large(1000000);
  const Tokens longest(AnswerStore::kMaxTokens + 5, 1);
  large.add("", longest);
  large.add("", Tokens{1, 2});
  EXPECT_LE(large.num_tokens(), AnswerStore::kMaxTokens);
  EXPECT_EQ(large.num_answers(), 1u);
}

// Earlier answers help, and each token of a long text of equal tokens costs the same.
TEST(SuffixProposer, LearnsFromAnswersAndBearsHostileTexts) {
  AnswerStore answers(10);
  const SuffixOptions options;
  const auto propose = [](SuffixProposer& proposer, const Tokens& tokens) {
    Tokens drafts;
    proposer.propose(tokens, 8, drafts);
    return drafts;
  };
  SuffixProposer first(options, "s", answers);
  EXPECT_TRUE(propose(first, {1, 2, 3}).empty());
  first.end(Tokens{2, 3, 50, 60, 70});
  SuffixProposer second(options, "s", answers), stranger(options, "t", answers);
  EXPECT_EQ(propose(second, {8, 2, 3}), (Tokens{50, 60}));
  EXPECT_TRUE(propose(stranger, {8, 2, 3}).empty());
  Tokens same;
  for (int i = 0; i < 20000; ++i) {
    same.push_back(5);
    (void)propose(stranger, same);
  }
  EXPECT_EQ(propose(stranger, same), Tokens(8, 5));
}

TEST(DraftCost, RowsOfAFullBatchAreDearAndThoseOfOneSequenceCheap) {
  DraftCost cost;
  EXPECT_EQ(cost.least_probability(1), 0) << "nothing is known";
  for (int i = 0; i < 100; ++i) cost.note(1 + i % 6, 0.010 + 0.001 * (1 + i % 6));
  EXPECT_NEAR(cost.least_probability(1), 1.0 / 11, 1e-6);
  EXPECT_NEAR(cost.least_probability(10), 0.5, 1e-6);
  EXPECT_NEAR(cost.least_probability(90), 0.9, 1e-6);
  DraftCost flat;
  for (int i = 0; i < 100; ++i) flat.note(4, 0.010);
  EXPECT_EQ(flat.least_probability(8), 0) << "steps of equal size show no slope";
}

TEST(DraftPace, LeavesOutDraftsThatAreNotWorthIt) {
  DraftPace pace;
  for (int i = 0; i < 50; ++i) pace.note(2, 1);  // every second one is right
  EXPECT_GT(pace.next(8, 0.1), 0);
  int64_t probes = 0;
  for (int64_t i = 0; i < 4 * DraftPace::kProbe; ++i) probes += pace.next(8, 0.9);
  EXPECT_EQ(probes, 4) << "one draft at a time";
  EXPECT_EQ(DraftPace(0.2).next(8, 0.9), 1) << "a new sequence tries one";
  DraftPace quick(0.2);
  for (int i = 0; i < 12; ++i) {
    ASSERT_GT(quick.next(8, 0.75), 0) << "a right one is followed by another";
    quick.note(1, 1);
  }
  EXPECT_GT(quick.next(8, 0.75), 1);
  for (int i = 0; i < 100; ++i) pace.note(4, 4);
  EXPECT_EQ(pace.next(8, 0.9), 8);
}

}  // namespace
}  // namespace quire::engine
