// SPDX-License-Identifier: Apache-2.0
// Proposer: guesses the next tokens of a sequence, so that one step can check several of them. A guess never changes
// an answer: it is kept only if it is the token that the model gives anyway.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/suffix_index.h"

namespace quire::engine {

// How the engine speculates; docs/speculation.md explains it.
struct SpeculationOptions {
  enum class Method : uint8_t { kNgram, kSuffix, kDraftModel, kMtp, kEagle3 };
  Method method = Method::kNgram;
  int64_t num_tokens = 0;         // drafts per sequence and step; 0: no speculation
  int64_t prompt_lookup_min = 5;  // the shortest and the longest n-gram that is looked up
  int64_t prompt_lookup_max = 5;
  SuffixOptions suffix;
  int64_t max_length = 0;  // of a sequence with drafts from a draft model

  bool on() const { return num_tokens > 0; }
  bool with_model() const { return on() && method != Method::kNgram && method != Method::kSuffix; }
  static constexpr int64_t kMaxTokens = 128;
  static constexpr int64_t kMaxLookup = 64;
};

// Proposes drafts for one sequence, which owns it. Engine thread.
class Proposer {
 public:
  virtual ~Proposer() = default;
  // Appends at most `most` tokens that might follow `tokens` (prompt and output) to `drafts`, which is empty.
  // REQUIRES: `tokens` begins with what the last call was given: a sequence only grows.
  virtual void propose(std::span<const int32_t> tokens, int64_t most, std::vector<int32_t>& drafts) = 0;
  // The sequence has ended with this output.
  virtual void end(std::span<const int32_t>) {}
};

// Prompt lookup: finds the last n tokens of the sequence earlier in it and proposes what followed there. The longest n
// from prompt_lookup_max down to prompt_lookup_min that occurs counts; of several places, the first.
// A table per n maps the hash of each n-gram to its first place. It grows with the sequence, so that a call costs
// prompt_lookup_max lookups for each new token, however long the context is.
class NgramProposer final : public Proposer {
 public:
  explicit NgramProposer(const SpeculationOptions& options);
  void propose(std::span<const int32_t> tokens, int64_t most, std::vector<int32_t>& drafts) override;

 private:
  // The first end of each n-gram (the index after its last token), in a hash table with open addressing and linear
  // probing: a power of two of slots, at most half of them full; 0 is an empty slot. An n-gram that has no slot within
  // kMaxProbes is left out, so that a prompt made of collisions costs its author drafts, and nobody time.
  static constexpr size_t kMaxProbes = 64;
  struct Table {
    size_t n = 0;
    size_t count = 0;
    std::vector<uint32_t> slots;
  };
  static uint32_t* slot_of(Table& table, std::span<const int32_t> tokens, size_t end);
  static void grow(Table& table, std::span<const int32_t> tokens);

  std::vector<Table> tables_;  // the longest n-grams first
  size_t num_indexed_ = 0;     // the n-grams that end here or before are in the tables
};

// Suffix decoding: proposes what most often followed the last tokens of the sequence, in the sequence itself and in
// earlier answers with the same salt, as long as it is likely.
class SuffixProposer final : public Proposer {
 public:
  // REQUIRES: `answers` outlives the proposer.
  SuffixProposer(const SuffixOptions& options, std::string salt, AnswerStore& answers)
      : options_(options), salt_(std::move(salt)), answers_(answers) {}
  void propose(std::span<const int32_t> tokens, int64_t most, std::vector<int32_t>& drafts) override;
  void end(std::span<const int32_t> output) override { answers_.add(salt_, output); }

 private:
  const SuffixOptions options_;
  const std::string salt_;
  AnswerStore& answers_;
  SuffixIndex own_{SIZE_MAX};
};

// How many drafts a sequence gets, by how many of the last ones were accepted. After a round in which all were
// accepted, the number doubles; otherwise it becomes one more than were accepted. After kMisses rounds in a row without
// an accepted draft there are none for a while: kPause steps, then twice as many, up to kMaxPause. So a sequence whose
// tokens cannot be guessed costs almost nothing. A draft also has to be right with some probability to be worth its row
// (DraftCost), estimated from what was accepted so far; where that rules out all drafts, there is one in kProbe steps,
// and the next one at once if it was right.
class DraftPace {
 public:
  // `right` is how often drafts of other sequences were right.
  explicit DraftPace(double right = kFirstRight) : right_(right) {}
  // The number of drafts in the next step, at most `most`. Called once per step of the sequence.
  int64_t next(int64_t most, double least_probability = 0);
  // Whether the next step may have drafts: there is no pause, and they are worth it or are to be tried.
  bool ready(double least_probability = 0) const {
    return pause_ == 0 && (right_ >= least_probability || not_worth_ % kProbe == 0);
  }
  // What became of the drafts of a step that had any.
  void note(int64_t drafted, int64_t accepted);

  static constexpr int64_t kMisses = 4;
  static constexpr int64_t kPause = 8;
  static constexpr int64_t kMaxPause = 128;
  static constexpr int64_t kProbe = 128;
  static constexpr double kFirstRight = 0.8;

 private:
  int64_t length_ = SpeculationOptions::kMaxTokens;
  int64_t misses_ = 0;
  int64_t pause_ = 0;  // steps that are left of the pause
  int64_t next_pause_ = kPause;
  int64_t not_worth_ = 0;  // steps in a row whose drafts were not worth it
  double right_;           // the estimated probability that a draft is right, if those before it are
  double seen_ = 2;        // drafts that it is estimated from; the first guess counts as two
};

}  // namespace quire::engine
