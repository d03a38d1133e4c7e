// SPDX-License-Identifier: Apache-2.0
// The norms: the oracle in doubles with a derived tolerance and the contract in scalar floats by bits, on every ISA
// level, for all lengths around the lanes, misaligned and in place.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "backend/backend.h"
#include "backend/cpu/cpu_kernels.h"
#include "backend/testing/guarded_matrix.h"
#include "backend/testing/norm_oracle.h"

namespace quire::cpu {
namespace {

using namespace cases;
using Matrix = GuardedMatrix;

TEST(RmsNorm, HasTheBitsOfTheContractAndTheValueOfDoubles) {
  for (const Isa isa : probed_isas()) {
    for (int64_t group = 1; group <= 34; ++group) {
      for (const int64_t groups : {1, 3}) {
        const auto seed = static_cast<uint32_t>(group);
        Matrix x(3, group * groups, group % 4, seed), out(3, group * groups, group % 3, 99), w(1, group, 1, 5);
        Matrix want = out;
        const float eps = 1e-5f;
        for (int64_t r = 0; r < 3; ++r) {
          for (int64_t g = 0; g < groups; ++g) {
            const float* v = x.row(r) + g * group;
            const float sum = lane_sum(group, [&](float acc, int64_t i) { return std::fma(v[i], v[i], acc); });
            const float inverse = 1.0f / std::sqrt(sum / static_cast<float>(group) + eps);
            const auto n = static_cast<size_t>(group);
            const std::vector<double> exact = exact_rms_norm({v, n}, {w.row(0), n}, eps);
            for (int64_t i = 0; i < group; ++i) {
              float& y = want.row(r)[g * group + i];
              y = (v[i] * inverse) * w.row(0)[i];
              const double truth = exact[static_cast<size_t>(i)];
              ASSERT_NEAR(double{y}, truth, std::fabs(truth) * kEps * (static_cast<double>(group) + 6));
            }
          }
        }
        kernels(isa).rms_norm({x.tensor(), w.row(0), group, eps, out.tensor()}, 0, 3);
        expect_same_bits(out, want, std::string(name(isa)) + " group " + std::to_string(group));
        kernels(isa).rms_norm({x.tensor(), w.row(0), group, eps, x.tensor()}, 0, 3);  // in place
        for (int64_t r = 0; r < 3; ++r) {
          ASSERT_EQ(std::memcmp(x.row(r), want.row(r), static_cast<size_t>(x.cols) * sizeof(float)), 0);
        }
      }
    }
  }
}

TEST(GatedRmsNorm, HasTheBitsOfTheContractAndTheValueOfDoubles) {
  const float eps = 1e-5f;
  for (const Isa isa : probed_isas()) {
    for (const int64_t group : {1, 2, 15, 16, 17, 24, 33, 48}) {
      for (const bool gate_first : {false, true}) {
        for (const int64_t weight_groups : {1, 3}) {  // one weight for all groups, or each its own
          const int64_t cols = 3 * group;
          Matrix x(2, cols, group % 4, 7), gate(2, cols, 1, 8, 9.0f), out(2, cols, 2, 99), w(1, cols, 3, 5);
          Matrix want = out;
          for (int64_t r = 0; r < 2; ++r) {
            std::vector<float> v(x.row(r), x.row(r) + cols), gates(static_cast<size_t>(cols));
            for (size_t c = 0; c < gates.size(); ++c) {
              gates[c] = silu(gate.row(r)[c]);
              if (gate_first) v[c] = v[c] * gates[c];
            }
            for (int64_t g = 0; g < 3; ++g) {
              const float* u = v.data() + g * group;
              const float* weight = w.row(0) + (weight_groups == 1 ? 0 : g * group);
              const auto n = static_cast<size_t>(group);
              const std::vector<double> exact = exact_gated_rms_norm(
                  {x.row(r) + g * group, n}, {gate.row(r) + g * group, n}, {weight, n}, eps, gate_first);
              const float inverse = 1.0f / std::sqrt(lane_dot(u, u, group) / static_cast<float>(group) + eps);
              for (size_t i = 0; i < n; ++i) {
                const size_t c = static_cast<size_t>(g * group) + i;
                const float normed = (u[i] * inverse) * weight[i];
                want.row(r)[c] = gate_first ? normed : normed * gates[c];
                ASSERT_NEAR(double{want.row(r)[c]}, exact[i],
                            std::fabs(exact[i]) * kEps * (static_cast<double>(group) + 20));
              }
            }
          }
          const std::string what =
              std::string(name(isa)) + " group " + std::to_string(group) + (gate_first ? " gate first" : " gate last");
          GatedRmsNormArgs args{.x = x.tensor(),
                                .gate = gate.tensor(),
                                .weight = w.row(0),
                                .weight_size = weight_groups * group,
                                .group = group,
                                .eps = eps,
                                .gate_first = gate_first,
                                .out = out.tensor()};
          kernels(isa).gated_rms_norm(args, 0, 1);
          kernels(isa).gated_rms_norm(args, 1, 2);
          expect_same_bits(out, want, what);
          args.out = x.tensor();
          kernels(isa).gated_rms_norm(args, 0, 2);  // in place
          for (int64_t r = 0; r < 2; ++r) {
            ASSERT_EQ(std::memcmp(x.row(r), want.row(r), static_cast<size_t>(cols) * sizeof(float)), 0) << what;
          }
        }
      }
    }
  }
}

TEST(LayerNorm, HasTheBitsOfTheContractAndTheValueOfDoubles) {
  for (const Isa isa : probed_isas()) {
    for (int64_t group = 1; group <= 34; ++group) {
      for (const bool with_bias : {false, true}) {
        Matrix x(2, group * 2, group % 4, static_cast<uint32_t>(group)), out(2, group * 2, 1, 99);
        Matrix w(1, group, 1, 5), b(1, group, 2, 6), want = out;
        const float eps = 1e-3f;
        const auto n = static_cast<float>(group);
        for (int64_t r = 0; r < 2; ++r) {
          for (int64_t g = 0; g < 2; ++g) {
            const float* v = x.row(r) + g * group;
            const float mean = lane_sum(group, [&](float acc, int64_t i) { return acc + v[i]; }) / n;
            const float squares =
                lane_sum(group, [&](float acc, int64_t i) { return std::fma(v[i] - mean, v[i] - mean, acc); });
            const float rstd = 1.0f / std::sqrt(squares / n + eps);
            const auto size_of_group = static_cast<size_t>(group);
            const LayerNormTruth exact =
                exact_layer_norm({v, size_of_group}, {w.row(0), size_of_group}, with_bias ? b.row(0) : nullptr, eps);
            for (int64_t i = 0; i < group; ++i) {
              const float z = (v[i] - mean) * rstd;
              const float weight = w.row(0)[i], bias = with_bias ? b.row(0)[i] : 0.0f;
              float& y = want.row(r)[g * group + i];
              y = with_bias ? std::fma(z, weight, bias) : z * weight;
              const double truth = exact.y[static_cast<size_t>(i)];
              // The error of the mean is in units of the values (at most 2), times scale.
              const double size = (2 + 2) * exact.scale * std::fabs(double{weight}) + std::fabs(double{bias});
              ASSERT_NEAR(double{y}, truth, size * kEps * (2 * static_cast<double>(group) + 8));
            }
          }
        }
        kernels(isa).layer_norm({x.tensor(), w.row(0), with_bias ? b.row(0) : nullptr, group, eps, out.tensor()}, 0, 2);
        expect_same_bits(out, want, std::string(name(isa)) + " group " + std::to_string(group));
      }
    }
  }
}

}  // namespace
}  // namespace quire::cpu
