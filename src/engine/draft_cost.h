// SPDX-License-Identifier: Apache-2.0
// DraftCost: measures what a row of a step costs, and tells how likely a draft must be right to be worth its row.
#pragma once

#include <cstdint>

namespace quire::engine {

// The time of a step is taken as a + b * rows, by least squares over the last steps. Without drafts, n sequences get n
// tokens in a + b * n, so a draft pays if it is right with a probability above b * n / (a + b * n): close to 0 for one
// sequence whose step only waits for the weights, close to 1 where a full batch keeps the processor busy. Times decide
// how many drafts there are, never what an answer is. Engine thread.
class DraftCost {
 public:
  // A step with so many rows, all of which were sampled, took so long.
  void note(int64_t rows, double seconds);
  // 0 as long as too little is known. If a model makes the drafts, draft_seconds is what one draft of all sequences
  // takes.
  double least_probability(int64_t sequences, double draft_seconds = 0) const;

 private:
  // Of the last steps, with weights that fade.
  double weight_ = 0, rows_ = 0, seconds_ = 0, rows2_ = 0, products_ = 0;
};

}  // namespace quire::engine
