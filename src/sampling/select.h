// SPDX-License-Identifier: Apache-2.0
// Selection from a row of logits without sorting it: group maxima, the k-th value, the top n, the nucleus, sums of exp.
//
// All results depend on the row alone. Rows have no NaN and no +infinity; -infinity means "not a candidate". Groups
// only save work: a group whose maximum is too low is skipped, which does not change the result.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "sampling/sampler.h"

namespace quire::sampling {

// The logit of a token that is not a candidate.
inline constexpr float kNegInf = -std::numeric_limits<float>::infinity();

inline constexpr size_t kGroup = 16;  // positions that share one maximum

// The result of the first pass over a row.
struct RowScan {
  float max = 0;  // -infinity: no candidate
  bool has_nan = false;
};
RowScan scan_row(std::span<const float> row);
// The lowest id with this value.
// REQUIRES: the value occurs.
int32_t first_equal(std::span<const float> row, float value);

// group_max[g] = the maximum of row[16g .. 16g+15].
void find_group_maxima(std::span<const float> row, std::vector<float>& group_max);

// The order of candidates: higher logit first, then the lower id.
inline bool better(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

// The k-th largest value of the row; -infinity if it has fewer than k values above that.
// REQUIRES: k >= 1, and scratch has the row's group maxima.
float kth_largest(std::span<const float> row, int64_t k, Scratch& scratch);
// Puts the n best candidates in order into scratch.candidates; -infinity entries are last, by id.
// REQUIRES: scratch has the row's group maxima.
void top_n(std::span<const float> row, int64_t n, Scratch& scratch);

// The sum of exp(row[i] - max) over all row[i] >= lowest: 8 double lanes within chunks of 4096 positions; lanes and
// then chunks are added in ascending order.
double sum_exp(std::span<const float> row, float max, float lowest);
// The same sum to the bit (skipped values would add zeros), faster if few groups reach `lowest`.
double sum_exp_of_few(std::span<const float> row, std::span<const float> group_max, float max, float lowest);

// The last candidate that top_p keeps among those >= lowest: candidates are kept in order as long as the mass before
// them is below top_p of the total.
// REQUIRES: scratch has the row's group maxima.
Candidate nucleus_end(std::span<const float> row, float max, float lowest, double top_p, Scratch& scratch);

}  // namespace quire::sampling
