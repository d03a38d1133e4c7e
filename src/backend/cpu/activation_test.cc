// SPDX-License-Identifier: Apache-2.0
// Activations, residual_add, scale and soft_cap: the oracle in doubles with a derived tolerance and the contract in
// scalar floats by bits, on every ISA level, for all lengths around the lanes, misaligned.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/backend.h"
#include "backend/cpu/cpu_kernels.h"
#include "backend/testing/activation_oracle.h"
#include "backend/testing/guarded_matrix.h"

namespace quire::cpu {
namespace {

using namespace cases;
using Matrix = GuardedMatrix;

// The contract by bits.
float activation_oracle(Activation activation, float x) {
  switch (activation) {
    case Activation::kSilu:
      return silu(x);
    case Activation::kGelu:
      return (x * 0.5f) * (1.0f + erf_of(x * 0.70710678118654752f));
    case Activation::kGeluTanh: {
      const float cubic = std::fma((x * x) * 0.044715f, x, x);
      return (x * 0.5f) * (1.0f + tanh_of(cubic * 0.79788456080286536f));
    }
    case Activation::kRelu:
      return 0.0f > x ? 0.0f : x;
    case Activation::kRelu2:
      return 0.0f > x ? 0.0f : x * x;
    case Activation::kSigmoid:
      return 1.0f / (1.0f + exp_of(-x));
  }
  return 0;
}
TEST(ActivationOps, HaveTheBitsOfTheContractAndTheValueOfDoubles) {
  for (const Isa isa : probed_isas()) {
    for (const Activation activation : kActivations) {
      for (int64_t cols = 0; cols <= 34; ++cols) {
        Matrix gate(2, cols, cols % 4, static_cast<uint32_t>(cols), 12.0f), up(2, cols, 1, 77), out(2, cols, 2, 99);
        Matrix plain(2, cols, 3, 98), want = out, want_plain = plain;
        for (int64_t r = 0; r < 2; ++r) {
          for (int64_t c = 0; c < cols; ++c) {
            const float x = gate.row(r)[c];
            want_plain.row(r)[c] = activation_oracle(activation, x);
            want.row(r)[c] = want_plain.row(r)[c] * up.row(r)[c];
            // Some ulps of the function; gelu's 1 + erf cancels for negative x, so the bound is in units of |x|.
            const double truth = exact_activation(activation, double{x});
            const double bound = (std::fabs(double{x}) + std::fabs(truth) + 1) * 8 * kEps;
            ASSERT_NEAR(double{want_plain.row(r)[c]}, truth, bound) << x;
          }
        }
        const std::string what = std::string(name(isa)) + " activation " +
                                 std::to_string(static_cast<int>(activation)) + " cols " + std::to_string(cols);
        kernels(isa).glu({gate.tensor(), up.tensor(), activation, out.tensor()}, 0, 2);
        expect_same_bits(out, want, what);
        kernels(isa).activation({gate.tensor(), activation, plain.tensor()}, 0, 2);
        expect_same_bits(plain, want_plain, what);
        kernels(isa).glu({gate.tensor(), up.tensor(), activation, gate.tensor()}, 0, 2);  // in place
        for (int64_t r = 0; r < 2; ++r) {
          ASSERT_EQ(std::memcmp(gate.row(r), want.row(r), static_cast<size_t>(cols) * sizeof(float)), 0) << what;
        }
      }
    }
  }
}

TEST(ResidualAdd, IsOneFma) {
  for (const Isa isa : probed_isas()) {
    for (const float scale : {1.0f, 0.22f}) {
      for (int64_t cols = 0; cols <= 34; ++cols) {
        Matrix x(2, cols, cols % 4, 1), residual(2, cols, 1, 2), want = residual;
        for (int64_t r = 0; r < 2; ++r) {
          for (int64_t c = 0; c < cols; ++c) want.row(r)[c] = std::fma(x.row(r)[c], scale, residual.row(r)[c]);
        }
        kernels(isa).residual_add({x.tensor(), residual.tensor(), scale, residual.tensor()}, 0, 2);
        expect_same_bits(residual, want, name(isa));
      }
    }
  }
}

TEST(Glu, ClampsWithALimitAsGptOssDoes) {
  const float limit = 7.0f;
  for (const Isa isa : probed_isas()) {
    for (int64_t cols = 0; cols <= 34; ++cols) {
      Matrix gate(2, cols, cols % 4, 3, 12.0f), up(2, cols, 1, 4, 12.0f), out(2, cols, 2, 99), want = out;
      for (int64_t r = 0; r < 2; ++r) {
        for (int64_t c = 0; c < cols; ++c) {
          const float g = limit < gate.row(r)[c] ? limit : gate.row(r)[c];
          const float u = std::clamp(up.row(r)[c], -limit, limit);
          want.row(r)[c] = (u + 1.0f) * (g * (1.0f / (1.0f + exp_of(-(1.702f * g)))));
          const double truth = exact_clamped_glu(double{gate.row(r)[c]}, double{up.row(r)[c]}, 7);
          // exp turns an error in 1.702 g into one times its size; 1.702 itself is rounded.
          ASSERT_NEAR(double{want.row(r)[c]}, truth,
                      (std::fabs(truth) * (2 * std::fabs(double{g}) + 12) + 1) * 2 * kEps);
        }
      }
      kernels(isa).glu({gate.tensor(), up.tensor(), Activation::kGelu, out.tensor(), limit}, 0, 2);
      expect_same_bits(out, want, std::string(name(isa)) + " cols " + std::to_string(cols));
    }
    float nan = std::nanf(""), one = 1.0f, out = 0;
    const auto scalar = [](float* x) { return Tensor{x, DType::kF32, 1, 1, 1}; };
    kernels(isa).glu({scalar(&nan), scalar(&one), Activation::kSilu, scalar(&out), limit}, 0, 1);
    EXPECT_TRUE(std::isnan(out));
    kernels(isa).glu({scalar(&one), scalar(&nan), Activation::kSilu, scalar(&out), limit}, 0, 1);
    EXPECT_TRUE(std::isnan(out));
  }
}

TEST(ScaleAndSoftCap, HaveTheBitsOfTheContract) {
  const float factor = 0.3f, cap = 30.0f;
  const std::vector<float> rows = {1.5f, -0.7f};
  for (const Isa isa : probed_isas()) {
    for (int64_t cols = 0; cols <= 34; ++cols) {
      Matrix x(2, cols, cols % 4, 3, 90.0f), plain(2, cols, 1, 4), by_row(2, cols, 2, 5), capped(2, cols, 3, 6);
      Matrix want_plain = plain, want_by_row = by_row, want_capped = capped;
      for (int64_t r = 0; r < 2; ++r) {
        for (int64_t c = 0; c < cols; ++c) {
          const float v = x.row(r)[c];
          want_plain.row(r)[c] = v * factor;
          want_by_row.row(r)[c] = v * (factor * rows[static_cast<size_t>(r)]);
          want_capped.row(r)[c] = cap * tanh_of(v / cap);
          ASSERT_NEAR(double{want_capped.row(r)[c]}, exact_soft_cap(double{v}, 30), 30 * 6 * kEps);
        }
      }
      kernels(isa).scale({.x = x.tensor(), .factor = factor, .out = plain.tensor()}, 0, 2);
      expect_same_bits(plain, want_plain, name(isa));
      kernels(isa).scale({x.tensor(), factor, rows, by_row.tensor()}, 0, 2);
      expect_same_bits(by_row, want_by_row, name(isa));
      kernels(isa).soft_cap({x.tensor(), cap, capped.tensor()}, 0, 2);
      expect_same_bits(capped, want_capped, name(isa));
      kernels(isa).soft_cap({x.tensor(), cap, x.tensor()}, 1, 2);  // in place
      ASSERT_EQ(std::memcmp(x.row(1), want_capped.row(1), static_cast<size_t>(cols) * sizeof(float)), 0);
    }
  }
}

}  // namespace
}  // namespace quire::cpu
