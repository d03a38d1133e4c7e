// SPDX-License-Identifier: Apache-2.0
// Mixture of experts: moe_route chooses experts for each token, moe_experts runs them and sums their outputs.
//
// Contract of moe_route. A token's choice depends only on its row of logits. With s the scores of all experts:
//   kSoftmax          s = e(x - max) / sum, the sum in 16 lanes as ops/norm.h folds them; e is the project's exp
//   kSigmoid          s = 1 / (1 + e(-x))
//   kSoftmaxOfChosen  s = x
//   kSparseMixer      s = x
// 1. c = s + choice_bias, or s. If groups_kept < groups, the score of a group is its largest c, or the sum of its two
//    largest (the larger first), and only the experts of the groups_kept best groups can be chosen.
// 2. The k largest c are chosen; their rank is the descending order. Ties go to the lower id, also between groups. A
//    NaN counts as larger than any number (as in torch), so a broken row shows in the result.
// 3. The weights: s of the chosen (never c). kSoftmaxOfChosen: the softmax of the k chosen logits, in rank order.
//    kSparseMixer: with m the chosen logit, 1 / sum of e(x - m) over the experts near it, for which
//    (m - x) / max(|x|, m) > 2 * jitter is false; the sum of the second choice leaves out the first.
// 4. With `normalise` w = w / (sum + sum_epsilon), the sum in rank order. Then w * scale, then w * expert_scale[id].
//
// The settings of the families (defaults for the rest; norm_topk_prob if the config has it):
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
// DeepSeek-V2 masks groups with 0 and V3 with -infinity. That makes no difference here: k is at most the number of
// experts in the kept groups, and a masked expert is never chosen.
//
// Contract of moe_experts. A token's output depends only on its row of x, its choices and the weights; no choice is
// dropped. An expert's output is linear, then glu or activation, then linear, with their bits, however many tokens
// chose it. The outputs of a token's experts are summed by rank (rank 0 first) in float, from +0:
//   out = fma(weights[t][r], y[t][r], out)
#pragma once

#include <span>

#include "ops/activation.h"
#include "ops/linear.h"
#include "ops/lora.h"

namespace quire {

enum class MoeScore : uint8_t {
  kSoftmax,          // softmax over all experts, then the k best
  kSigmoid,          // sigmoid of each, then the k best
  kSoftmaxOfChosen,  // the k best logits, softmax over those alone
  kSparseMixer,      // Phi-MoE: k = 2; the weight of a choice is a softmax over the experts near it, the second
                     // without the first; no bias, groups or normalisation
};

// The score of a group of experts, where whole groups are chosen first.
enum class MoeGroupScore : uint8_t { kMax, kTopTwoSum };

struct MoeRouteArgs {
  Tensor logits;  // [tokens, experts]
  int64_t k = 0;  // at most experts / groups * groups_kept
  MoeScore score = MoeScore::kSoftmax;
  const float* choice_bias = nullptr;  // [experts] or null: added to scores for the choice, not for the weight
  int64_t groups = 1;                  // equal groups of experts, of which groups_kept are chosen first
  int64_t groups_kept = 1;
  MoeGroupScore group_score = MoeGroupScore::kMax;  // kTopTwoSum: groups of at least two
  bool normalise = false;                           // weights divided by their sum (plus sum_epsilon)
  float sum_epsilon = 0;
  float scale = 1.0f;                   // of the weights
  float jitter = 0;                     // kSparseMixer: half the relative distance that counts as near
  int32_t* ids = nullptr;               // [tokens, k]
  float* weights = nullptr;             // [tokens, k]
  const float* expert_scale = nullptr;  // [experts] or null: last factor of the weights
};
void check(const MoeRouteArgs& args);

// Adapters of experts (ops/lora.h): what they add to both products of an expert has the bits of lora, on a GPU those of
// its portable kernels (kernels/lora.h). The sites of expert e are gate_up_site + e and down_site + e.
struct MoeLora {
  LoraMemory memory;
  LoraRows rows;
  int64_t gate_up_site = 0, down_site = 0;
  int64_t gate_up_rank = 0, down_rank = 0;  // the largest one of any expert's adapters, padded; 0: there are none
  int64_t num_slots = 0;
};

struct MoeExpertsArgs {
  Tensor x;                      // [tokens, hidden]
  const int32_t* ids = nullptr;  // [tokens, k]
  const float* weights = nullptr;
  int64_t k = 0;
  bool gated = true;                                // gate_up has the rows of gate, then of up; else of up alone
  std::span<const PackedMatrix* const> gate_up;     // [experts]: [2*inner or inner, hidden]
  std::span<const PackedMatrix* const> down;        // [experts]: [hidden, inner]
  std::span<const float* const> gate_up_bias = {};  // [experts] or empty
  std::span<const float* const> down_bias = {};     // [experts] or empty
  Activation activation = Activation::kSilu;
  float limit = 0;                // as in GluArgs
  Tensor out;                     // [tokens, hidden]; must not overlap x
  const MoeLora* lora = nullptr;  // null: none
};
void check(const MoeExpertsArgs& args);

}  // namespace quire
