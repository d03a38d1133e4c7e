// SPDX-License-Identifier: Apache-2.0
// Mixture of experts: moe_route chooses experts for each token, moe_experts runs them and sums what they put out.
//
// Contract. A token's row depends on that row and the weights alone. Ties go to the lower id; nothing is dropped. The
// outputs of a token's experts are summed in the order of its choices (rank 0 first) in float:
//   out = fma(weights[t][r], y[t][r], out) from +0
// and each expert's products are those of linear, so its bits do not depend on how many tokens chose it.
#pragma once

#include <span>

#include "ops/activation.h"
#include "ops/linear.h"

namespace quire {

enum class MoeScore : uint8_t {
  kSoftmax,          // softmax over all experts, then the k best
  kSigmoid,          // sigmoid of each, then the k best
  kSoftmaxOfChosen,  // the k best logits, softmax over those alone
  kSparseMixer,      // Phi-MoE: k = 2; each choice's weight is a softmax over the experts near it, the second without
                     // the first
};

// How a group of experts is judged, where whole groups are chosen first.
enum class MoeGroupScore : uint8_t { kMax, kTopTwoSum };

// softmax: e(x - max) over the sum, in 16 lanes as ops/norm.h folds them; exp is the project's own.
struct MoeRouteArgs {
  Tensor logits;  // [tokens, experts]
  int64_t k = 0;
  MoeScore score = MoeScore::kSoftmax;
  const float* choice_bias = nullptr;  // [experts]: added to scores for the choice, not for the weight
  int64_t groups = 1;                  // experts in equal groups, of which groups_kept are chosen first
  int64_t groups_kept = 1;
  MoeGroupScore group_score = MoeGroupScore::kMax;
  bool normalise = false;  // weights divided by their sum (plus sum_epsilon)
  float sum_epsilon = 0;
  float scale = 1.0f;        // of the weights, last
  float jitter = 0;          // kSparseMixer: how near "near" is
  int32_t* ids = nullptr;    // [tokens, k]
  float* weights = nullptr;  // [tokens, k]
};

struct MoeExpertsArgs {
  Tensor x;                      // [tokens, hidden]
  const int32_t* ids = nullptr;  // [tokens, k]
  const float* weights = nullptr;
  int64_t k = 0;
  bool gated = true;                                // gate_up holds gate's rows, then up's; else up's alone
  std::span<const PackedMatrix* const> gate_up;     // [experts]: [2*inner or inner, hidden]
  std::span<const PackedMatrix* const> down;        // [experts]: [hidden, inner]
  std::span<const float* const> gate_up_bias = {};  // [experts] or empty
  std::span<const float* const> down_bias = {};     // [experts] or empty
  Activation activation = Activation::kSilu;
  float limit = 0;  // as GluArgs
  Tensor out;       // [tokens, hidden]; must not overlap x
};

}  // namespace quire
