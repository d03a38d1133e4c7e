// SPDX-License-Identifier: Apache-2.0
// moe_route against transformers' routers and a slow oracle by bits; moe_experts against linear and glu called alone,
// by bits, on every ISA level.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <optional>

#include "backend/backend.h"
#include "backend/cpu/isa_level.h"
#include "backend/testing/linear_cases.h"
#include "backend/testing/moe_cases.h"
#include "base/test_sanitized.h"

namespace quire::cpu {
namespace {

using cases::ExpertsCase;
using cases::random_choices;
using cases::Routes;

std::unique_ptr<Backend> make_backend(Isa isa, int threads) {
  auto backend = make_cpu_backend({.threads = threads, .isa = name(isa)});
  EXPECT_TRUE(backend.ok());
  return std::move(backend).value();
}

Tensor view(std::vector<float>& data, int64_t rows, int64_t cols) {
  return {data.data(), DType::kF32, rows, cols, cols};
}

Routes route(Backend& backend, std::vector<float>& logits, int64_t experts, MoeRouteArgs args) {
  const int64_t tokens = static_cast<int64_t>(logits.size()) / experts;
  Routes r{std::vector<int32_t>(static_cast<size_t>(tokens * args.k), -7),
           std::vector<float>(static_cast<size_t>(tokens * args.k), -7)};
  args.logits = view(logits, tokens, experts);
  args.ids = r.ids.data();
  args.weights = r.weights.data();
  backend.moe_route(args);
  return r;
}

struct Golden {
  const char* family;
  MoeRouteArgs args;
  int32_t ids[3][3];
  float weights[3][3];
};

// Expected numbers: the routers of transformers 5.22, whose unsorted choices are put in rank order here.
TEST(MoeRoute, AgreesWithTheRoutersOfTransformers) {
  std::vector<float> logits = {0.5f, -1.25f,  2.0f,   1.75f, -0.5f,    2.25f, 0.0f,  1.0f,  //
                               -3,   -2.5f,   -2.75f, -4,    -2.625f,  -3.5f, -5,    -2.25f,
                               1,    1.0625f, 8,      -8,    1.03125f, 7.5f,  0.25f, -0.125f};
  const float bias[] = {0.3f, 0, -0.4f, 0.1f, 0.2f, -0.5f, 0.05f, 0};
  MoeRouteArgs plain;
  plain.k = 3;
  MoeRouteArgs mixtral = plain, v2 = plain, v3 = plain, lfm2 = plain, oss = plain, phi = plain;
  mixtral.normalise = true;
  v2.groups = v3.groups = 4;
  v2.groups_kept = v3.groups_kept = 2;
  v2.scale = v3.scale = lfm2.scale = 2.5f;
  v3.score = lfm2.score = MoeScore::kSigmoid;
  v3.group_score = MoeGroupScore::kTopTwoSum;
  v3.choice_bias = lfm2.choice_bias = bias;
  v3.normalise = lfm2.normalise = true;
  v3.sum_epsilon = 1e-20f;
  lfm2.sum_epsilon = 1e-6f;
  oss.score = MoeScore::kSoftmaxOfChosen;
  phi.score = MoeScore::kSparseMixer;
  phi.k = 2;
  MoeRouteArgs phi_near = phi;
  phi.jitter = 0.1f;
  phi_near.jitter = 0.3f;
  const Golden goldens[] = {
      {"Mixtral",
       mixtral,
       {{5, 2, 3}, {7, 1, 4}, {2, 5, 1}},
       {{0.419228971f, 0.326495856f, 0.254275233f},
        {0.405500174f, 0.315803856f, 0.278695941f},
        {0.622083426f, 0.37731269f, 0.00060385227f}}},
      {"Qwen3-MoE",
       plain,
       {{5, 2, 3}, {7, 1, 4}, {2, 5, 1}},
       {{0.328392714f, 0.255752504f, 0.199180245f},
        {0.245748922f, 0.191389456f, 0.168900609f},
        {0.621086836f, 0.37670821f, 0.000602884858f}}},
      {"DeepSeek-V2",
       v2,
       {{5, 2, 3}, {7, 1, 0}, {2, 5, 4}},
       {{0.820981801f, 0.639381289f, 0.497950613f},
        {0.614372313f, 0.478473634f, 0.290208936f},
        {1.55271709f, 0.941770554f, 0.00146084011f}}},
      {"DeepSeek-V3",
       v3,
       {{3, 7, 6}, {0, 7, 1}, {0, 4, 1}},
       {{1.02250123f, 0.877405941f, 0.600092769f},
        {0.542298734f, 1.09028876f, 0.867412448f},
        {0.826471508f, 0.833367169f, 0.840161443f}}},
      {"LFM2-MoE",
       lfm2,
       {{3, 0, 7}, {0, 4, 3}, {0, 4, 1}},
       {{0.965726316f, 0.705585361f, 0.828687429f},
        {0.891733468f, 1.27005875f, 0.338188946f},
        {0.82647115f, 0.833366811f, 0.840161085f}}},
      {"GPT-OSS and Granite",
       oss,
       {{5, 2, 3}, {7, 1, 4}, {2, 5, 1}},
       {{0.419228971f, 0.326495856f, 0.254275233f},
        {0.405500203f, 0.315803885f, 0.278695941f},
        {0.622083426f, 0.37731266f, 0.000603852211f}}},
      {"Phi-MoE",
       phi,
       {{5, 2}, {7, 1}, {2, 5}},
       {{0.562176526f, 0.562176526f}, {0.32545507f, 0.306013644f}, {0.622459352f, 1.0f}}},
      {"Phi-MoE, wide",
       phi_near,
       {{5, 2}, {7, 1}, {2, 5}},
       {{0.374274462f, 0.465835601f}, {0.245748922f, 0.253747672f}, {0.622459352f, 1.0f}}},
  };
  const auto backend = make_backend(available_isas().back(), 2);
  for (const Golden& g : goldens) {
    const Routes got = route(*backend, logits, 8, g.args);
    for (size_t t = 0; t < 3; ++t) {
      for (size_t r = 0; r < static_cast<size_t>(g.args.k); ++r) {
        const size_t at = t * static_cast<size_t>(g.args.k) + r;
        EXPECT_EQ(got.ids[at], g.ids[t][r]) << g.family << " token " << t << " rank " << r;
        EXPECT_NEAR(got.weights[at], g.weights[t][r], 2e-6f * g.weights[t][r]) << g.family << " token " << t;
      }
    }
  }
}

TEST(MoeRoute, HasTheBitsOfTheContractWithTiesAndBrokenRows) {
  std::vector<std::unique_ptr<Backend>> backends;
  for (const Isa isa : available_isas()) backends.push_back(make_backend(isa, 3));
  cases::for_each_route_case(
      60, {4, 16, 60, 128},
      [&](const std::vector<float>& logits, int64_t experts, const MoeRouteArgs& args, const std::string& what) {
        const Routes want = cases::expected_routes(logits, experts, args);
        std::vector<float> input = logits;
        for (const auto& backend : backends) {
          EXPECT_TRUE(same_routes(route(*backend, input, experts, args), want)) << backend->describe() << ", " << what;
        }
      });
}

constexpr int64_t kExperts = 9;
constexpr int64_t kTokens = 70;

// Packed experts, inputs, and what each expert puts out for each token when linear and glu are called alone.
struct Experts {
  Experts(Backend& backend, const ExpertsCase& c) : c(c), x(cases::random_rows(kTokens, c.hidden, 17)) {
    const int64_t wide = c.gated ? 2 * c.inner : c.inner;
    for (int64_t e = 0; e < kExperts; ++e) {
      const auto seed = static_cast<uint64_t>(10 * e);
      gate_up.push_back(pack(backend, c.gate_up, wide, c.hidden, seed));
      down.push_back(pack(backend, c.down, c.hidden, c.inner, seed + 1));
      gate_up_bias.push_back(cases::random_rows(1, wide, seed + 2));
      down_bias.push_back(cases::random_rows(1, c.hidden, seed + 3));
      gate_up_view.push_back(gate_up.back().get());
      down_view.push_back(down.back().get());
      std::vector<float> h(static_cast<size_t>(kTokens * wide)), a(static_cast<size_t>(kTokens * c.inner));
      std::vector<float> y(static_cast<size_t>(kTokens * c.hidden));
      backend.linear({view(x, kTokens, c.hidden), gate_up_view.back(), c.biases ? gate_up_bias.back().data() : nullptr,
                      view(h, kTokens, wide)});
      const Tensor hidden = view(h, kTokens, wide);
      if (c.gated) {
        backend.glu({hidden.columns(0, c.inner), hidden.columns(c.inner, c.inner), c.activation,
                     view(a, kTokens, c.inner), c.limit});
      } else {
        backend.activation({hidden, c.activation, view(a, kTokens, c.inner)});
      }
      backend.linear({view(a, kTokens, c.inner), down_view.back(), c.biases ? down_bias.back().data() : nullptr,
                      view(y, kTokens, c.hidden)});
      alone.push_back(std::move(y));
    }
    for (size_t e = 0; e < kExperts; ++e) {
      gate_up_bias_view.push_back(gate_up_bias[e].data());
      down_bias_view.push_back(down_bias[e].data());
    }
  }

  std::unique_ptr<PackedMatrix> pack(Backend& backend, DType type, int64_t n, int64_t k, uint64_t seed) const {
    const auto bytes = cases::random_weight(type, n, k, seed);
    const RawMatrix raw{type, n, k, bytes.data()};
    auto packed = backend.pack({&raw, 1}, {.quantise_activations = c.quantise});
    EXPECT_TRUE(packed.ok());
    return std::move(packed).value();
  }

  // Tokens [first, first + tokens) with random choices.
  void check(Backend& backend, int64_t first, int64_t tokens, int64_t k, const std::vector<int32_t>& ids) {
    cases::Random random(static_cast<uint64_t>(tokens * 100 + k));
    std::vector<float> weights;
    for (int64_t i = 0; i < tokens * k; ++i) weights.push_back(random.uniform(-1, 1));
    const int64_t stride = c.hidden + 3;
    std::vector<float> out(static_cast<size_t>(tokens * stride), -7.0f);
    MoeExpertsArgs args;
    args.x = {x.data() + first * c.hidden, DType::kF32, tokens, c.hidden, c.hidden};
    args.ids = ids.data();
    args.weights = weights.data();
    args.k = k;
    args.gated = c.gated;
    args.gate_up = gate_up_view;
    args.down = down_view;
    if (c.biases) args.gate_up_bias = gate_up_bias_view;
    if (c.biases) args.down_bias = down_bias_view;
    args.activation = c.activation;
    args.limit = c.limit;
    args.out = {out.data(), DType::kF32, tokens, c.hidden, stride};
    backend.moe_experts(args);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t i = 0; i < stride; ++i) {
        float want = i < c.hidden ? 0.0f : -7.0f;
        for (int64_t r = 0; r < k && i < c.hidden; ++r) {
          const auto& y = alone[static_cast<size_t>(ids[static_cast<size_t>(t * k + r)])];
          want = std::fma(weights[static_cast<size_t>(t * k + r)], y[static_cast<size_t>((first + t) * c.hidden + i)],
                          want);
        }
        const float got = out[static_cast<size_t>(t * stride + i)];
        ASSERT_EQ(std::memcmp(&got, &want, 4), 0)
            << backend.describe() << " " << quire::name(c.gate_up) << " " << quire::name(c.down) << " tokens " << tokens
            << " k " << k << ": out[" << t << "][" << i << "] is " << got << ", not " << want;
      }
    }
  }

  ExpertsCase c;
  std::vector<float> x;
  std::vector<std::unique_ptr<PackedMatrix>> gate_up, down;
  std::vector<const PackedMatrix*> gate_up_view, down_view;
  std::vector<std::vector<float>> gate_up_bias, down_bias, alone;
  std::vector<const float*> gate_up_bias_view, down_bias_view;
};

TEST(MoeExperts, HaveTheBitsOfLinearAndGluCalledAlone) {
  for (const Isa isa : available_isas()) {
    for (const ExpertsCase& c : cases::kExpertsCases) {
      std::optional<Experts> experts;
      for (const int threads : {1, 3}) {
        const auto backend = make_backend(isa, threads);
        experts.emplace(*backend, c);
        int64_t k = 0;
        for (const int64_t tokens : {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{4}, int64_t{5}, int64_t{16},
                                     int64_t{17}, int64_t{33}, kTokens}) {
          k = k % 8 + 1;
          for (const int64_t among : {k, kExperts}) {
            if (kSanitized && (among == k) != (k % 2 == 0)) continue;  // in turns
            experts->check(*backend, kTokens - tokens, tokens, k,
                           random_choices(tokens, k, among, static_cast<uint64_t>(tokens)));
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST(MoeExperts, ManyTokensRunInSharesWithTheSameBits) {
  const auto backend = make_backend(available_isas().back(), 2);
  Experts experts(*backend, {DType::kQ8_0, DType::kQ8_0, 32, 32, DType::kF32});
  // The same 70 tokens again and again, more choices than run at once.
  const int64_t times = 40, k = 4, tokens = times * kTokens;
  std::vector<float> x, weights, out(static_cast<size_t>(tokens * 32)), once(static_cast<size_t>(kTokens * 32));
  std::vector<int32_t> ids;
  const auto choices = random_choices(kTokens, k, kExperts, 3);
  for (int64_t i = 0; i < times; ++i) {
    x.insert(x.end(), experts.x.begin(), experts.x.end());
    ids.insert(ids.end(), choices.begin(), choices.end());
  }
  for (size_t i = 0; i < ids.size(); ++i) weights.push_back(0.25f + static_cast<float>(i % choices.size()));
  MoeExpertsArgs args;
  args.x = view(x, tokens, 32);
  args.ids = ids.data();
  args.weights = weights.data();
  args.k = k;
  args.gate_up = experts.gate_up_view;
  args.down = experts.down_view;
  args.out = view(out, tokens, 32);
  backend->moe_experts(args);
  args.x = args.x.first_rows(kTokens);
  args.out = view(once, kTokens, 32);
  backend->moe_experts(args);
  for (int64_t i = 0; i < times; ++i) {
    ASSERT_EQ(std::memcmp(out.data() + i * kTokens * 32, once.data(), once.size() * sizeof(float)), 0) << i;
  }
}

TEST(MoeExperts, NoTokensAreNoWork) {
  const auto backend = make_backend(Isa::kPortable, 1);
  Experts experts(*backend, {DType::kF32, DType::kF32, 32, 32, DType::kF32});
  experts.check(*backend, 0, 0, 2, {0});
}

}  // namespace
}  // namespace quire::cpu
