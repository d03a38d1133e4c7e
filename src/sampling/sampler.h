// SPDX-License-Identifier: Apache-2.0
// From one row of logits to a token: vLLM's processors in vLLM's order, then a Gumbel-max draw.
//
// Contract. The result is a function of the row, the settings, the row's own history, the seed and the position, down
// to the bit; nothing else enters (no other row, no thread count, no libm, no generator state). exp and log are own
// polynomials; sums over the vocabulary run in chunks of fixed size merged in ascending order. Candidates are ordered
// by (logit descending, id ascending).
//
// Order: grammar mask, raw logprobs (log_softmax of what the model said), allowed ids, bad words, min_tokens, bias,
// penalties (repetition, frequency, presence), then argmax when greedy, else temperature, min_p, top_k (keeps ties with
// the k-th), top_p (over what is left, renormalised; the best always stays), and the draw:
//   argmax over the candidates of logit/T + g,  g = -log(-log(u)),  u from Philox keyed by (seed, position, token id).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "sampling/params.h"

namespace quire::sampling {

// The tokens of one sequence as the penalties, bad words and min_tokens see them, kept up to date token by token.
// Owned by the request; engine thread.
class History {
 public:
  History() = default;
  explicit History(std::span<const int32_t> prompt) { add_prompt(prompt); }

  void add_prompt(std::span<const int32_t> prompt);
  void push_output(int32_t token);

  std::span<const int32_t> output() const { return output_; }
  int64_t num_output() const { return static_cast<int64_t>(output_.size()); }

  struct Seen {
    int32_t token = 0;
    bool in_prompt = false;
    int32_t output_count = 0;
  };
  // Each token that occurs, once, in order of its first occurrence.
  std::span<const Seen> seen() const { return seen_; }

 private:
  Seen& entry(int32_t token);
  size_t slot_of(int32_t token) const;
  void grow();
  std::vector<int32_t> output_;
  std::vector<Seen> seen_;
  // Where in seen_ a token is: open addressing with linear probing, a power of two of slots, at most half of them full;
  // 0 is an empty slot, else it is index + 1. No node a token, so that a step rarely allocates.
  std::vector<int32_t> slots_;
};

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
  int32_t rank = 0;  // 1 is the best; of a sampled or prompt token: how many have a logprob at least as high
};

struct SampleResult {
  int32_t token = 0;
  // When asked for: the sampled token first, then the top N in order (which may name it again).
  std::vector<TokenLogprob> logprobs;
};

// A token and its logit (or what the processors made of it).
struct Candidate {
  float logit = 0;
  int32_t token = 0;
};

// Buffers that are kept between rows; one for each thread that samples. Holds no state that a result depends on.
struct Scratch {
  std::vector<float> masked;     // the row under the grammar's mask
  std::vector<float> processed;  // what bias, penalties and temperature made of it
  std::vector<float> group_max;  // see select.h
  std::vector<float> values;
  std::vector<Candidate> candidates;
};

// Samples the token at `position` (its index in the sequence: prompt length + output so far). `params` must be
// validated. `grammar_mask`, when not empty, has a bit a token (bit i%32 of word i/32; 1: allowed). An Error (NaN or
// +infinity in the row, or no token left by the masks) concerns this request alone.
Result<SampleResult> sample_row(std::span<const float> logits, const SamplingParams& params, const History& history,
                                uint64_t seed, int64_t position, Scratch& scratch,
                                std::span<const uint32_t> grammar_mask = {});

// Why a row has no token: what SampleFault (ops/sampling.h) bits mean for its request.
Error broken_row(int faults);

// Logprobs of an unmodified row: `token` (the next prompt token) first, then the top n in order; n = -1: all tokens.
Result<std::vector<TokenLogprob>> row_logprobs(std::span<const float> logits, int32_t token, int64_t n,
                                               Scratch& scratch);

// The token with the highest logit, ties to the lowest id.
Result<int32_t> argmax(std::span<const float> logits);

}  // namespace quire::sampling
