// SPDX-License-Identifier: Apache-2.0
// Cases of moe_route that every backend's test takes: hard rows of logits, and settings that meet every rule.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "backend/testing/linear_cases.h"
#include "ops/moe.h"

namespace quire::cases {

// Rows with and without many ties, and rows with NaN and infinities.
inline std::vector<float> hard_logits(int64_t tokens, int64_t experts) {
  Random random(static_cast<uint64_t>(experts));
  std::vector<float> logits;
  for (int64_t i = 0; i < tokens * experts; ++i) {
    const float v = random.uniform(-6, 6);
    logits.push_back(i / experts % 2 == 0 ? std::round(v) : v);
  }
  logits[static_cast<size_t>(experts + 1)] = std::numeric_limits<float>::quiet_NaN();
  logits[static_cast<size_t>(2 * experts + 2)] = std::numeric_limits<float>::infinity();
  for (int64_t e = 0; e < experts; ++e) {
    logits[static_cast<size_t>(3 * experts + e)] = -std::numeric_limits<float>::infinity();
    logits[static_cast<size_t>(4 * experts + e)] = std::numeric_limits<float>::quiet_NaN();
  }
  logits[static_cast<size_t>(5 * experts)] = -std::numeric_limits<float>::infinity();
  return logits;
}

inline MoeRouteArgs route_variant(MoeScore score, int variant, int64_t experts, const float* bias,
                                  const float* scales) {
  MoeRouteArgs a;
  a.score = score;
  a.jitter = 0.05f * static_cast<float>(variant);
  a.scale = variant == 3 ? 1.7f : 1.0f;
  if (variant == 4) a.expert_scale = scales;
  a.k = 2;
  if (score == MoeScore::kSparseMixer) return a;
  if (variant % 2 == 1) a.choice_bias = bias;
  if (variant >= 2) a.groups = variant >= 4 ? 4 : 2;
  if (variant >= 2) a.groups_kept = variant == 4 ? 2 : variant == 5 ? 3 : 1;
  if (variant >= 3 && experts / a.groups >= 2) a.group_score = MoeGroupScore::kTopTwoSum;
  a.k = std::min<int64_t>(1 + variant, experts / a.groups * a.groups_kept);
  a.normalise = variant % 3 == 0;
  a.sum_epsilon = variant == 3 ? 1e-6f : 0.0f;
  return a;
}

}  // namespace quire::cases
