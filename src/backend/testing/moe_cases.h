// SPDX-License-Identifier: Apache-2.0
// Cases of mixtures of experts for the tests of every backend: rows of logits and settings that reach every rule of
// moe_route, its oracle by bits, and shapes of experts.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "backend/testing/linear_cases.h"
#include "backend/testing/scalar_math.h"
#include "ops/moe.h"

namespace quire::cases {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The results of moe_route.
struct Routes {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

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

inline std::vector<float> softmax(const std::vector<float>& x) {
  float most = -kInfinity;
  for (const float v : x) most = v > most ? v : most;
  std::vector<float> e;
  for (const float v : x) e.push_back(exp_of(v - most));
  const float sum = lane_sum(std::ssize(e), [&](float acc, int64_t i) { return acc + e[static_cast<size_t>(i)]; });
  for (float& v : e) v /= sum;
  return e;
}

// The best first; NaN above all numbers, ties to the lower index.
inline std::vector<int32_t> order(const std::vector<float>& c) {
  std::vector<int32_t> ids(c.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
    const float x = c[static_cast<size_t>(a)], y = c[static_cast<size_t>(b)];
    return std::isnan(x) || std::isnan(y) ? std::isnan(x) && !std::isnan(y) : x > y;
  });
  return ids;
}

// The steps of ops/moe.h for one row.
inline Routes route_oracle(const std::vector<float>& x, const MoeRouteArgs& a) {
  std::vector<float> s = x;
  if (a.score == MoeScore::kSoftmax) s = softmax(x);
  if (a.score == MoeScore::kSigmoid) {
    for (float& v : s) v = 1.0f / (1.0f + exp_of(-v));
  }
  std::vector<float> c = s;
  for (size_t e = 0; e < c.size() && a.choice_bias != nullptr; ++e) c[e] += a.choice_bias[e];
  std::vector<bool> out(c.size(), false);
  if (a.groups_kept < a.groups) {
    const size_t size = c.size() / static_cast<size_t>(a.groups);
    std::vector<float> judged;
    for (size_t g = 0; g < static_cast<size_t>(a.groups); ++g) {
      const std::vector<float> group(c.begin() + static_cast<std::ptrdiff_t>(g * size),
                                     c.begin() + static_cast<std::ptrdiff_t>((g + 1) * size));
      const auto best = order(group);
      const float first = group[static_cast<size_t>(best[0])];
      judged.push_back(a.group_score == MoeGroupScore::kMax ? first : first + group[static_cast<size_t>(best[1])]);
    }
    const auto groups = order(judged);
    for (size_t i = static_cast<size_t>(a.groups_kept); i < groups.size(); ++i) {
      for (size_t e = 0; e < size; ++e) out[static_cast<size_t>(groups[i]) * size + e] = true;
    }
  }
  Routes r;
  for (const int32_t id : order(c)) {
    if (!out[static_cast<size_t>(id)] && std::ssize(r.ids) < a.k) r.ids.push_back(id);
  }
  for (const int32_t id : r.ids) r.weights.push_back(s[static_cast<size_t>(id)]);
  if (a.score == MoeScore::kSoftmaxOfChosen) r.weights = softmax(r.weights);
  if (a.score == MoeScore::kSparseMixer) {
    std::vector<float> left = x;
    for (size_t rank = 0; rank < 2; ++rank) {
      const float m = x[static_cast<size_t>(r.ids[rank])];
      std::vector<float> near = left;
      for (size_t e = 0; e < x.size(); ++e) {
        if ((m - x[e]) / std::max(std::fabs(x[e]), m) > 2 * a.jitter) near[e] = -kInfinity;
      }
      r.weights[rank] = softmax(near)[static_cast<size_t>(r.ids[rank])];
      left[static_cast<size_t>(r.ids[0])] = -kInfinity;
    }
  }
  float sum = 0;
  for (const float w : r.weights) sum += w;
  for (size_t i = 0; i < r.weights.size(); ++i) {
    if (a.normalise) r.weights[i] /= sum + a.sum_epsilon;
    r.weights[i] *= a.scale;
    if (a.expert_scale != nullptr) r.weights[i] *= a.expert_scale[r.ids[i]];
  }
  return r;
}

// The oracle for all rows of logits.
inline Routes expected_routes(const std::vector<float>& logits, int64_t experts, const MoeRouteArgs& args) {
  Routes out;
  for (auto row = logits.begin(); row != logits.end(); row += experts) {
    const Routes one = route_oracle({row, row + experts}, args);
    out.ids.insert(out.ids.end(), one.ids.begin(), one.ids.end());
    out.weights.insert(out.weights.end(), one.weights.begin(), one.weights.end());
  }
  return out;
}

// The same ids, and the same bits of weights, except that any NaN equals any other.
inline bool same_routes(const Routes& a, const Routes& b) {
  return a.ids == b.ids &&
         std::equal(a.weights.begin(), a.weights.end(), b.weights.begin(), b.weights.end(),
                    [](float x, float y) { return std::memcmp(&x, &y, 4) == 0 || (std::isnan(x) && std::isnan(y)); });
}

// Calls fn(logits, experts, args, text) for every score and variant over rows with ties and broken rows.
template <typename F>
void for_each_route_case(int64_t tokens, std::initializer_list<int64_t> numbers_of_experts, const F& fn) {
  for (const int64_t experts : numbers_of_experts) {
    const std::vector<float> logits = hard_logits(tokens, experts);
    const std::vector<float> bias = random_rows(1, experts, 7), scales = random_rows(1, experts, 8);
    for (const MoeScore score :
         {MoeScore::kSoftmax, MoeScore::kSigmoid, MoeScore::kSoftmaxOfChosen, MoeScore::kSparseMixer}) {
      for (int variant = 0; variant < 6; ++variant) {
        fn(logits, experts, route_variant(score, variant, experts, bias.data(), scales.data()),
           std::to_string(experts) + " experts, score " + std::to_string(static_cast<int>(score)) + ", variant " +
               std::to_string(variant));
      }
    }
  }
}

// The shape of a layer's experts.
struct ExpertsCase {
  DType gate_up;
  DType down;
  int64_t hidden;
  int64_t inner;
  DType type;  // of activations on a GPU
  bool gated = true;
  bool biases = false;
  Activation activation = Activation::kSilu;
  float limit = 0;
  bool quantise = true;      // PackOptions::quantise_activations
  bool zero_points = false;  // random_weight_of()
};
inline constexpr ExpertsCase kExpertsCases[] = {
    {DType::kF32, DType::kBF16, 40, 24, DType::kF32},
    {DType::kBF16, DType::kBF16, 72, 40, DType::kBF16, true, true},
    {DType::kQ8_0, DType::kQ8_0, 96, 64, DType::kF16},
    {DType::kQ4_K, DType::kQ8_0, 256, 32, DType::kBF16, true, true},
    {DType::kQ8_0, DType::kQ4_0, 32, 64, DType::kF32, false, true, Activation::kRelu2},
    {DType::kQ8_0, DType::kQ4_K, 32, 256, DType::kBF16, false, false, Activation::kGelu, 0, false},
    {DType::kBF16, DType::kBF16, 24, 20, DType::kBF16, false, false, Activation::kGelu},
    {DType::kMXFP4, DType::kMXFP4, 64, 32, DType::kF16, true, true, Activation::kSilu, 7.0f},
    {DType::kF16, DType::kF32, 48, 32, DType::kF16},
    {DType::kBF16, DType::kBF16, 208, 80, DType::kBF16, true, true},
    {DType::kF16, DType::kF16, 64, 176, DType::kF16, false, false, Activation::kRelu2},
    {DType::kMXFP4, DType::kMXFP4, 160, 96, DType::kBF16, true, true, Activation::kSilu, 7.0f},
    {DType::kMXFP4, DType::kMXFP4, 704, 288, DType::kBF16, true, true, Activation::kSilu, 7.0f},
    {DType::kMXFP4, DType::kMXFP4, 1152, 96, DType::kBF16, false, false, Activation::kRelu2},
};

// With a type that only GPUs pack.
inline constexpr ExpertsCase kGpuExpertsCases[] = {
    {DType::kGF8, DType::kGF8, 256, 128, DType::kBF16},
    {DType::kGF8, DType::kGF8, 96, 160, DType::kF16, true, true},
    {DType::kGF8, DType::kGF8, 64, 32, DType::kF32, false},
};
// Sizes that kernels of a chip's own serve. On the emulator the portable ones would take long, and have had the others.
inline constexpr ExpertsCase kChipExpertsCases[] = {
    {DType::kQ4_0, DType::kQ8_0, 640, 832, DType::kBF16, true, true},
    {DType::kQ4_K, DType::kQ6_K, 768, 512, DType::kBF16},
    {DType::kQ8_0, DType::kQ8_0, 320, 192, DType::kF16},
    {DType::kGF8, DType::kGF8, 512, 384, DType::kBF16, true, true},
    {DType::kQ5_1, DType::kIQ4_XS, 320, 1024, DType::kBF16, false, false, Activation::kRelu2},
    {DType::kMXFP4, DType::kMXFP4, 576, 1152, DType::kBF16, true, true, Activation::kSilu, 7.0f},
    {DType::kG4, DType::kG4, 640, 832, DType::kBF16},
    {DType::kG4, DType::kG4, 640, 832, DType::kBF16, true, true, Activation::kSilu, 0, true, true},
    {DType::kG4, DType::kG4, 320, 1024, DType::kF16, true, false, Activation::kSilu, 0, true, true},
};

// k different experts per token, among the first `among`.
inline std::vector<int32_t> random_choices(int64_t tokens, int64_t k, int64_t among, uint64_t seed) {
  cases::Random random(seed);
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<int32_t> left(static_cast<size_t>(among));
    std::iota(left.begin(), left.end(), 0);
    for (int64_t r = 0; r < k; ++r) {
      const size_t at = random.next() % left.size();
      ids.push_back(left[at]);
      left.erase(left.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
  return ids;
}

}  // namespace quire::cases
