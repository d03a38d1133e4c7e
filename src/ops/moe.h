// SPDX-License-Identifier: Apache-2.0
// Mixture of experts: moe_route chooses experts for each token, moe_experts runs them and sums what they put out.
//
// Contract of moe_route. A token's choice depends on its row of logits alone. With s the scores of all experts:
//   kSoftmax          s = e(x - max) / sum, the sum in 16 lanes as ops/norm.h folds them; e is the project's exp
//   kSigmoid          s = 1 / (1 + e(-x))
//   kSoftmaxOfChosen  s = x
//   kSparseMixer      s = x
// 1. c = s + choice_bias, or s. Where groups_kept < groups, each group is judged by its largest c, or by the sum of its
//    two largest (the larger first), and the experts of all but the groups_kept best groups are out of the race.
// 2. The k largest c, in descending order: that is the rank. Ties go to the lower id, of groups too; a NaN counts as
//    larger than any number (as torch has it), so a broken row shows in the result.
// 3. The weights: s of the chosen (never c). kSoftmaxOfChosen: the softmax of the k chosen logits, in rank order.
//    kSparseMixer: with m the chosen logit, 1 / sum of e(x - m) over the experts that are near, those for which
//    (m - x) / max(|x|, m) > 2 * jitter is false; the first choice is none of the second's.
// 4. With `normalise` w = w / (sum + sum_epsilon), the sum in rank order. Then w * scale, then w * expert_scale[id].
//
// Who sets what (everything else as it stands; norm_topk_prob where the config has it):
//   Mixtral, Qwen3.5-MoE                    kSoftmax, normalise
//   Qwen2-MoE, Qwen3-MoE, Qwen3-Next, OLMoE kSoftmax, normalise = norm_topk_prob
//   Gemma 4                                 kSoftmax, normalise, expert_scale = router.per_expert_scale
//   DeepSeek-V2                             kSoftmax, scale = routed_scaling_factor, never normalised; with
//                                           group_limited_greedy: groups = n_group, groups_kept = topk_group, kMax
//   DeepSeek-V3, GLM-4-MoE (also Lite),     kSigmoid, choice_bias = e_score_correction_bias, groups = n_group,
//   Nemotron-H                              groups_kept = topk_group, kTopTwoSum, normalise = norm_topk_prob,
//                                           sum_epsilon = 1e-20, scale = routed_scaling_factor
//   LFM2-MoE                                kSigmoid, choice_bias = expert_bias (use_expert_bias), normalise =
//                                           norm_topk_prob, sum_epsilon = 1e-6, scale = routed_scaling_factor
//   GPT-OSS, Granite                        kSoftmaxOfChosen (GPT-OSS's router bias belongs to its linear)
//   Phi-MoE                                 kSparseMixer, k = 2, jitter = router_jitter_noise
// Where DeepSeek-V2 masks with 0 and V3 with -infinity there is no difference here: k must be no more than what the
// kept groups hold, and a masked expert is never chosen.
//
// Contract of moe_experts. A token's row depends on that row, its choices and the weights alone; nothing is dropped.
// Each expert's row is linear, then glu or activation, then linear, with their bits, however many tokens chose it. The
// outputs of a token's experts are summed in the order of its choices (rank 0 first) in float, from +0 on:
//   out = fma(weights[t][r], y[t][r], out)
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
                     // the first; no bias, groups or normalisation
};

// How a group of experts is judged, where whole groups are chosen first.
enum class MoeGroupScore : uint8_t { kMax, kTopTwoSum };

struct MoeRouteArgs {
  Tensor logits;  // [tokens, experts]
  int64_t k = 0;  // at most experts / groups * groups_kept
  MoeScore score = MoeScore::kSoftmax;
  const float* choice_bias = nullptr;  // [experts]: added to scores for the choice, not for the weight
  int64_t groups = 1;                  // experts in equal groups, of which groups_kept are chosen first
  int64_t groups_kept = 1;
  MoeGroupScore group_score = MoeGroupScore::kMax;  // kTopTwoSum: groups of at least two
  bool normalise = false;                           // weights divided by their sum (plus sum_epsilon)
  float sum_epsilon = 0;
  float scale = 1.0f;                   // of the weights
  float jitter = 0;                     // kSparseMixer: how near "near" is
  int32_t* ids = nullptr;               // [tokens, k]
  float* weights = nullptr;             // [tokens, k]
  const float* expert_scale = nullptr;  // [experts] or null: of the chosen ones' weights, last
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
