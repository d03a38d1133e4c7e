// SPDX-License-Identifier: Apache-2.0
// SuffixIndex: finds earlier places in a text that end like the present one, and guesses what follows from them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace quire::engine {

// What the fields suffix_decoding_* of --speculative-config say, with vLLM's defaults.
struct SuffixOptions {
  int64_t max_tree_depth = 24;          // the most tokens that are compared and proposed, together
  int64_t max_cached_requests = 10000;  // answers that are remembered; 0: none
  double max_spec_factor = 1;           // drafts per token that was equal
  double min_token_prob = 0.1;          // the least estimated probability of a draft
};

// Drafts, and how many of them are expected to be right.
struct Guess {
  std::vector<int32_t> tokens;
  double score = 0;
};

// A text that grows at its end and, if it is bounded, is forgotten at its beginning. It answers what a suffix tree with
// counts would (Oliaro et al., "SuffixDecoding", 2024), but from at most kMaxPlaces places, the most recent ones, so
// that a guess costs the same whatever the text is. Places are found as in LZ77 compression: for some lengths n, the
// place before this one with the same hash of the last n tokens is remembered at each place. A collision is seen when
// the tokens are compared; it can cost drafts, never time. Engine thread.
class SuffixIndex {
 public:
  // Keeps the last `capacity` tokens.
  explicit SuffixIndex(size_t capacity) : capacity_(capacity) {}

  // A token that is in no vocabulary ends a text: no place reaches beyond it.
  static constexpr int32_t kEnd = -1;
  void append(int32_t token);
  // Forgets the tokens before this place.
  void forget_before(size_t place) { first_ = place > first_ ? place : first_; }
  // Guesses at most `most` tokens that follow `context`; better than `best`, or nothing changes.
  void guess(std::span<const int32_t> context, const SuffixOptions& options, int64_t most, Guess& best) const;

  size_t size() const { return size_; }  // tokens so far, with the forgotten ones; less than kMaxSize
  size_t num_kept() const { return tokens_.size(); }

  static constexpr size_t kMaxPlaces = 48;
  static constexpr size_t kMaxSize = UINT32_MAX;

 private:
  static constexpr size_t kLengths[] = {8, 3, 1};
  static constexpr size_t kNumLengths = 3;
  static constexpr size_t kFirstSize = 64;
  // An earlier place that ends like the context.
  struct Place {
    size_t next;    // the place after it
    size_t length;  // tokens that are equal
  };

  int32_t at(size_t place) const { return tokens_[place % capacity_]; }
  bool is_kept(size_t place) const { return place >= first_ && place + tokens_.size() >= size_; }
  void link(size_t place);
  void grow();
  std::vector<Place> find(std::span<const int32_t> context, size_t depth) const;

  size_t capacity_;
  size_t size_ = 0;
  size_t first_ = 0;             // tokens before this place are forgotten
  std::vector<int32_t> tokens_;  // a ring, once it is full
  // For each length: the place after the last n-gram with a hash (0: none), and for each place the one before it.
  std::vector<uint32_t> heads_[kNumLengths];
  std::vector<uint32_t> before_[kNumLengths];
};

// Earlier answers, apart for each salt (as in the prefix cache: requests with different salts learn nothing of each
// other, also not from how fast they are answered). Salts that were used least recently are forgotten when there are
// more than max_cached_requests answers or kMaxTokens tokens; within a salt, the oldest answers. Nothing is remembered
// for a salt of more than kMaxSalt bytes. Engine thread.
class AnswerStore {
 public:
  explicit AnswerStore(int64_t max_answers) : max_answers_(static_cast<size_t>(max_answers)) {}

  void add(const std::string& salt, std::span<const int32_t> answer);
  // The answers with this salt; null if there are none. Valid until the next call of add().
  const SuffixIndex* find(const std::string& salt) const;
  size_t num_answers() const { return num_answers_; }
  size_t num_tokens() const { return num_tokens_; }

  static constexpr size_t kMaxTokens = size_t{1} << 20;  // about 40 MB
  static constexpr size_t kMaxSalt = 1024;

 private:
  struct Salted {
    SuffixIndex index{kMaxTokens};
    std::deque<size_t> begins;  // of the answers
    std::list<std::string>::iterator used;
  };
  void drop(const std::string& salt);

  const size_t max_answers_;
  std::map<std::string, Salted> salts_;
  std::list<std::string> used_;  // the salt that was used last comes first
  size_t num_answers_ = 0;
  size_t num_tokens_ = 0;  // that are kept
};

}  // namespace quire::engine
