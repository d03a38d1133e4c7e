// SPDX-License-Identifier: Apache-2.0
// Sampling in the backend's memory: one token per row of logits, and on request its logprob, its rank and the likeliest
// tokens and the digest of the row.
//
// Contract. The results of a row depend only on its logits and settings, to the bit: not on the other rows or on its
// place among them. The order of the processors is that of sampling/sampler.h: forbidden tokens, bias, penalties, then
// the argmax (ties to the lowest id) if greedy, else temperature, min_p, top_k (keeps ties with the k-th), top_p, and
// the Gumbel-max draw with the same random numbers. Greedy tokens are those of the host's sampler. A random token may
// differ from the host's, because sums and logarithms are floats here and doubles there.
#pragma once

#include <cstdint>
#include <span>

#include "ops/sample_settings.h"
#include "ops/tensor.h"

namespace quire {

// The most likeliest tokens that a row may ask for.
inline constexpr int32_t kMaxSampleLogprobs = 20;

// The settings of one row.
struct SampleRow : SampleSettings {
  uint64_t seed = 0;
  int64_t position = 0;       // of the token that is sampled
  int32_t mask = -1;          // row of SampleArgs::masks whose clear bits are forbidden tokens; -1: none
  int32_t logprob_mask = -1;  // the same for logprobs, where the logprob of a forbidden token is -infinity
  int32_t first_edit = 0;     // index in SampleArgs::edits
  int32_t num_edits = 0;
  int32_t logprobs = -1;  // -1: none; else the number of likeliest tokens, up to kMaxSampleLogprobs
  bool digest = false;    // of the row of logits (ops/row_digest.h), before anything changes it
};

// Changes to the logit of one token, made in this order. A row has at most one edit per token.
struct TokenEdit {
  int32_t token = 0;
  int32_t count = 0;  // occurrences in the output, for the frequency and presence penalties
  bool forbidden = false;
  bool seen = false;  // whether it is in the prompt or the output, for the repetition penalty
  float bias = 0;
};

// Rows [place, place + rows.size()) of the step's results are sampled from the rows of logits, which the op may change.
// The arrays are in the host's memory and are copied before the call returns.
struct SampleArgs {
  Tensor logits;  // [rows, vocab] F32
  std::span<const SampleRow> rows;
  std::span<const TokenEdit> edits;
  std::span<const uint32_t> masks;  // [masks, (vocab + 31) / 32]: bit i % 32 of word i / 32
  int64_t place = 0;
};

// The reasons why a row has no token; bits of SampledRow::faults.
enum SampleFault : int32_t { kSampleNan = 1, kSampleInfinite = 2, kSampleEmpty = 4 };

struct SampledRow {
  int32_t token = 0;  // 0 if there is a fault
  int32_t faults = 0;
  float logprob = 0;  // if asked for: of the token, under the unprocessed logits that the logprob mask allows
  int32_t rank = 0;   // the number of tokens whose logit is at least as large
};
struct SampledTop {
  int32_t token = -1;  // -1: the vocabulary has no more tokens
  float logprob = 0;
};

// The results of a step on the host, valid until the step after the next one samples.
struct SampledRows {
  std::span<const SampledRow> rows;
  std::span<const SampledTop> top;    // kMaxSampleLogprobs per row; empty if no row asked for logprobs
  std::span<const uint64_t> digests;  // one per row, of those that asked for it; empty if none did
};

// tokens[i] becomes the token of row rows[i] of the last step that sampled, where rows[i] >= 0.
struct TakeSampledArgs {
  std::span<const int32_t> tokens;  // staged; changed on the device
  std::span<const int32_t> rows;    // staged
};

// Moves each wanted row to the last one of its sequence whose drafts are right: from row r to r + 1, as long as
// drafts[r + 1] is tokens[r]. It follows take_sampled() of the same step.
struct SkipAcceptedArgs {
  std::span<const int32_t> wanted;  // staged; changed on the device
  std::span<const int32_t> tokens;  // staged
  std::span<const int32_t> drafts;  // staged, one per token; -1: the row follows no draft
};

}  // namespace quire
