// SPDX-License-Identifier: Apache-2.0
// InFlight: a step between its launch and the moment its tokens are known.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/request.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"

namespace quire::engine {

// A wanted row of the step and what it is for.
struct Row {
  Sequence* sequence = nullptr;
  size_t share = 0;  // of the step
  int64_t position = 0;
  bool sample = false;
  bool prompt_logprob = false;
};

// One step on a backend that samples. Owned by the engine, which has two of them in turn: one whose results it waits
// for, and the one after it, made and queued meanwhile. Sequences may end while a step runs; they are then forgotten
// here: their rows are computed all the same, and nobody reads them. Their pages may be given to others at once,
// because what is queued later runs later.
class InFlight {
 public:
  std::vector<Share> shares;             // a forgotten sequence is nullptr
  std::vector<Row> rows;                 // in the order of the batch's wanted rows and of the results
  std::vector<Output> outputs;           // one a share
  std::vector<std::vector<float>> kept;  // for each row, its logits where the host makes logprobs of them
  uint64_t number = 0;                   // counts up from 1
  uint64_t finished = 0;                 // Backend::finish_samples()
  bool waits_for_tokens = false;         // settings of a row look at a token that the step before is sampling

  bool active() const { return number != 0; }
  // Does any sequence still care?
  bool alive() const {
    return std::ranges::any_of(shares, [](const Share& share) { return share.sequence != nullptr; });
  }
  void clear() {
    shares.clear();
    rows.clear();
    outputs.clear();
    kept.clear();
    number = 0;
    waits_for_tokens = false;
  }
  void forget(const Sequence* sequence) {
    for (Share& share : shares) {
      if (share.sequence == sequence) share.sequence = nullptr;
    }
    for (Row& row : rows) {
      if (row.sequence == sequence) row.sequence = nullptr;
    }
  }
};

}  // namespace quire::engine
