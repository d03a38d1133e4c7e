// SPDX-License-Identifier: Apache-2.0
// The host's sampler: one row of logits becomes a token by vLLM's processors, in vLLM's order, and a Gumbel-max draw.
//
// Contract. The result depends, to the bit, only on the row, the settings, the sequence's history, the seed and the
// position: not on other rows, the number of threads, libm or the state of a generator. exp and log are polynomials of
// our own; sums over the vocabulary run in chunks of fixed size, which are added in ascending order. Candidates are
// ordered by descending logit, then by ascending id.
//
// Order: grammar mask, raw logprobs (log_softmax of the model's logits), allowed ids, bad words, min_tokens, bias,
// penalties (repetition, frequency, presence); then argmax if greedy, else temperature, min_p, top_k (keeps ties with
// the k-th), top_p (of what is left, renormalised; the best always stays), and the draw (the Gumbel-max trick):
//   argmax over the candidates of logit/T + g,  g = -log(-log(u)),  u from Philox keyed by (seed, position, token id).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "sampling/params.h"

namespace quire::sampling {

// The tokens of one sequence, as penalties, bad words and min_tokens need them. Owned by the sequence; engine thread.
class History {
 public:
  History() = default;
  explicit History(std::span<const int32_t> prompt) { add_prompt(prompt); }

  void add_prompt(std::span<const int32_t> prompt);
  void push_output(int32_t token);
  // Takes back the last token. REQUIRES: there is one.
  void pop_output();

  std::span<const int32_t> output() const { return output_; }
  int64_t num_output() const { return static_cast<int64_t>(output_.size()); }

  struct Seen {
    int32_t token = 0;
    bool in_prompt = false;
    int32_t output_count = 0;
  };
  // Each token that occurs, once, in the order of the first occurrences.
  std::span<const Seen> seen() const { return seen_; }

 private:
  Seen& entry(int32_t token);
  size_t slot_of(int32_t token) const;
  void grow();
  std::vector<int32_t> output_;
  std::vector<Seen> seen_;
  // A hash table of index + 1 into seen_ (0: an empty slot): open addressing with linear probing, a power of two of
  // slots, at most half of them full. It has no nodes, so that a step rarely allocates.
  std::vector<int32_t> slots_;
};

// Whether a grammar's mask allows nothing but EOS and stop tokens.
bool allows_only_ends(const SamplingParams& params, std::span<const uint32_t> grammar_mask);

// Calls f(token) for each token that bad_words and min_tokens forbid after num_output tokens of output. Where the
// grammar allows nothing but the end, it wins over min_tokens.
template <typename F>
void for_each_forbidden(const SamplingParams& params, const History& history, int64_t num_output,
                        std::span<const uint32_t> grammar_mask, F&& f) {
  for (const std::vector<int32_t>& word : params.bad_word_ids) {
    // A word's last token is forbidden if the output ends in the tokens before it.
    const std::span<const int32_t> output = history.output();
    if (word.empty() || word.size() - 1 > output.size()) continue;
    const std::span<const int32_t> head = std::span(word).first(word.size() - 1);
    if (std::ranges::equal(head, output.last(head.size()))) f(word.back());
  }
  if (num_output >= params.min_tokens || allows_only_ends(params, grammar_mask)) return;
  for (const int32_t token : params.eos_token_ids) f(token);
  for (const int32_t token : params.stop_token_ids) f(token);
}

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
  int32_t rank = 0;  // 1 is the best; for a sampled or prompt token: how many have a logprob at least as high
};

struct SampleResult {
  int32_t token = 0;
  // If requested: the sampled token first, then the top N in order (which may include it again).
  std::vector<TokenLogprob> logprobs;
};

// A token and its logit, before or after processing.
struct Candidate {
  float logit = 0;
  int32_t token = 0;
};

// Buffers that are reused for each row; one per thread that samples. No result depends on their contents.
struct Scratch {
  std::vector<float> masked;     // the row after the grammar mask
  std::vector<float> processed;  // the row after bias, penalties and temperature
  std::vector<float> group_max;  // see select.h
  std::vector<float> values;
  std::vector<Candidate> candidates;
};

// Forbids the tokens whose bits are clear; an empty mask allows all.
void apply_mask(std::span<float> row, std::span<const uint32_t> mask);

// Samples the token at `position` (its index in the sequence: prompt length + output so far). A `grammar_mask` has one
// bit per token (bit i % 32 of word i / 32; 1: allowed). An Error (NaN or +infinity in the row, or no token is left)
// concerns this request only.
// REQUIRES: params passed validate().
Result<SampleResult> sample_row(std::span<const float> logits, const SamplingParams& params, const History& history,
                                uint64_t seed, int64_t position, Scratch& scratch,
                                std::span<const uint32_t> grammar_mask = {});

// The error for a request whose row has no token; `faults` has bits of SampleFault (ops/sampling.h).
Failure broken_row(int faults);

// Logprobs of an unprocessed row: `token` first, then the top n in order; n = -1: all tokens.
Result<std::vector<TokenLogprob>> row_logprobs(std::span<const float> logits, int32_t token, int64_t n,
                                               Scratch& scratch);

}  // namespace quire::sampling
