// SPDX-License-Identifier: Apache-2.0
// Sampling where the logits are: a token a row, and on request its logprob, its rank and the likeliest tokens.
//
// Contract. A row's results are a function of its logits and settings alone, to the bit: not of the other rows, nor of
// where it stands among them. The order of the processors is that of sampling/sampler.h: forbidden tokens, bias,
// penalties, then the argmax (ties to the lowest id) when greedy, else temperature, min_p, top_k (keeps ties with the
// k-th), top_p, and the Gumbel-max draw with the same random words. Greedy tokens are the host sampler's. A random one
// may differ from the host's, because sums and logarithms are floats here and doubles there.
#pragma once

#include <cstdint>
#include <span>

#include "ops/sample_settings.h"
#include "ops/tensor.h"

namespace quire {

// Most of the likeliest tokens that a row may ask for.
inline constexpr int32_t kMaxSampleLogprobs = 20;

// What a row's settings come to.
struct SampleRow : SampleSettings {
  uint64_t seed = 0;
  int64_t position = 0;    // of the token that is sampled
  int32_t mask = -1;       // row of SampleArgs::masks whose clear bits are forbidden tokens
  int32_t first_edit = 0;  // of SampleArgs::edits
  int32_t num_edits = 0;
  int32_t logprobs = -1;  // -1: none; else so many of the likeliest, up to kMaxSampleLogprobs
};

// What happens to one token's logit, in this order. A row names a token at most once.
struct TokenEdit {
  int32_t token = 0;
  int32_t count = 0;  // in the output: frequency and presence penalties
  bool forbidden = false;
  bool seen = false;  // in prompt or output: the repetition penalty
  float bias = 0;
};

// Rows [place, place + rows.size()) of the step's results come from as many rows of logits. The logits may be changed.
// The arrays are the host's; they are copied before the call returns.
struct SampleArgs {
  Tensor logits;  // [rows, vocab] F32
  std::span<const SampleRow> rows;
  std::span<const TokenEdit> edits;
  std::span<const uint32_t> masks;  // [masks, (vocab + 31) / 32]: bit i % 32 of word i / 32
  int64_t place = 0;
};

// Why a row has no token.
enum SampleFault : int32_t { kSampleNan = 1, kSampleInfinite = 2, kSampleEmpty = 4 };

struct SampledRow {
  int32_t token = 0;  // 0 where there is a fault
  int32_t faults = 0;
  float logprob = 0;  // when asked for: of the token, under the logits as the model gave them
  int32_t rank = 0;   // how many tokens have at least its logit
};
struct SampledTop {
  int32_t token = -1;  // -1: the vocabulary has no more
  float logprob = 0;
};

// A step's results on the host: valid until the step after the next one samples.
struct SampledRows {
  std::span<const SampledRow> rows;
  std::span<const SampledTop> top;  // kMaxSampleLogprobs for each row; empty when no row asked
};

// tokens[i] becomes the token of row rows[i] of the step that sampled last, where rows[i] >= 0.
struct TakeSampledArgs {
  std::span<const int32_t> tokens;  // staged; changed on the device
  std::span<const int32_t> rows;    // staged
};

}  // namespace quire
