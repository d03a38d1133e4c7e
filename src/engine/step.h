// SPDX-License-Identifier: Apache-2.0
// Step: one step of the engine, from the scheduler's choice until its tokens are known.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"

namespace quire::engine {

// A row of the batch whose logits are needed, and what for.
struct LogitRow {
  Sequence* sequence = nullptr;
  size_t share = 0;      // index into Step::shares
  int64_t position = 0;  // of the row's token in its sequence
  bool sample = false;
  bool prompt_logprob = false;
  bool guess = false;  // a row of a draft model: its token is wanted, and nothing else
  // If the row's token is a draft: which. The row counts only if the row before it samples that token.
  int32_t draft = -1;
  int32_t token = -1;   // the token that was sampled; -1: none yet, or sampling failed
  uint64_t digest = 0;  // of the logits, with SamplingParams::row_digests
};

// The rows of a share whose hidden states are pooled.
struct PooledRows {
  size_t share = 0;
  int64_t count = 0;
};

// The mask of a row whose sequence has a constraint.
struct RowMask {
  size_t row = 0;                             // index into Step::rows
  std::span<uint32_t> bits = {};              // one per token; a part of Step::mask_bits
  Result<bool> filled = Result<bool>(false);  // false: every token is allowed, and the bits mean nothing
};

// The engine owns two of these and uses them in turn: one whose results it waits for and, on a backend that samples,
// the next one, which is built and queued meanwhile. A sequence may end while a step runs. The step then forgets it:
// its rows are still computed, but nobody reads them. Its pages may be reused at once, because work that is queued
// later runs later.
class Step {
 public:
  std::vector<Share> shares;             // a forgotten sequence is nullptr
  std::vector<LogitRow> rows;            // in the order of StepBatch::wanted
  std::vector<PooledRows> pooled;        // in the order of StepBatch::wanted, behind the rows
  std::vector<Output> outputs;           // one per share
  std::vector<std::vector<float>> kept;  // the logits of each row from which the host will make logprobs
  std::vector<RowMask> masks;            // of the sampled rows with a constraint, in their order
  std::vector<uint32_t> mask_bits;
  uint64_t number = 0;  // counts up from 1
  int64_t num_tokens = 0;
  bool alone = false;             // no other step was in flight when it was launched,
  double began = 0;               // at this time (Engine::set_clock)
  uint64_t finished = 0;          // Backend::finish_samples()
  bool waits_for_tokens = false;  // a row's settings or constraint need a token that is being sampled

  bool active() const { return number != 0; }
  // Whether any of its sequences is still there.
  bool alive() const {
    return std::ranges::any_of(shares, [](const Share& share) { return share.sequence != nullptr; });
  }
  void clear() {
    shares.clear();
    rows.clear();
    pooled.clear();
    outputs.clear();
    kept.clear();
    masks.clear();
    number = 0;
    alone = waits_for_tokens = false;
  }
  // The bits of a row's mask; empty: every token is allowed.
  std::span<const uint32_t> mask_of(size_t row) const {
    const auto mask = std::ranges::lower_bound(masks, row, {}, &RowMask::row);
    if (mask == masks.end() || mask->row != row || !mask->filled.ok() || !*mask->filled) return {};
    return mask->bits;
  }
  // Why the row's mask could not be filled; null if nothing went wrong.
  const Error* mask_error(size_t row) const {
    const auto mask = std::ranges::lower_bound(masks, row, {}, &RowMask::row);
    return mask == masks.end() || mask->row != row || mask->filled.ok() ? nullptr : &mask->filled.error();
  }
  // Whether the row's token is part of its sequence: it is no draft, or a draft that turned out to be right.
  // REQUIRES: the rows before it were read.
  bool counts(size_t row) const { return rows[row].draft < 0 || rows[row].draft == rows[row - 1].token; }
  void forget(const Sequence* sequence) {
    for (Share& share : shares) {
      if (share.sequence == sequence) share.sequence = nullptr;
    }
    for (LogitRow& row : rows) {
      if (row.sequence == sequence) row.sequence = nullptr;
    }
  }
};

}  // namespace quire::engine
