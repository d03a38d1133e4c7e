// SPDX-License-Identifier: Apache-2.0
// A line through the times of the last steps.
#include "engine/draft_cost.h"

#include <algorithm>

namespace quire::engine {

void DraftCost::note(int64_t rows, double seconds) {
  constexpr double kFade = 0.98;  // about the last fifty steps
  const auto x = static_cast<double>(rows);
  for (double* sum : {&weight_, &rows_, &seconds_, &rows2_, &products_}) *sum *= kFade;
  weight_ += 1;
  rows_ += x;
  seconds_ += seconds;
  rows2_ += x * x;
  products_ += x * seconds;
}

double DraftCost::least_probability(int64_t sequences, double draft_seconds) const {
  constexpr double kMinSteps = 8, kMinSpread = 0.1;  // the variance of the rows that shows a slope
  if (weight_ < kMinSteps || sequences <= 0) return 0;
  const double mean_rows = rows_ / weight_, mean_seconds = seconds_ / weight_;
  const double variance = rows2_ / weight_ - mean_rows * mean_rows;
  if (variance < kMinSpread) return 0;
  const double slope = std::max(0.0, (products_ / weight_ - mean_rows * mean_seconds) / variance);
  const double fixed = std::max(0.0, mean_seconds - slope * mean_rows);
  const double of_rows = slope * static_cast<double>(sequences);
  return of_rows <= 0 ? 0 : (of_rows + draft_seconds) / (fixed + of_rows);
}

}  // namespace quire::engine
