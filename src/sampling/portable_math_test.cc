// SPDX-License-Identifier: Apache-2.0
// The sampler's exp, log and Gumbel variate against the C library in double precision.
#include "sampling/portable_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace quire::sampling {
namespace {

TEST(SamplingMath, ExpIsWithinTwoUlp) {
  const auto check = [](float x) {
    const double exact = std::exp(static_cast<double>(x));
    const float value = exp_nonpositive(x);
    const double ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
    ASSERT_LE(std::abs(static_cast<double>(value) - exact), 2 * ulp) << x;
  };
  for (int i = 0; i <= 870'000; ++i) check(static_cast<float>(-i) * 1e-4f);
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-1, 0);
  for (int i = 0; i < 100'000; ++i) check(uniform(random));
  EXPECT_EQ(exp_nonpositive(0.0f), 1.0f);
  EXPECT_EQ(exp_nonpositive(-0.0f), 1.0f);
}

TEST(SamplingMath, ExpOfTheVerySmallIsZero) {
  for (const float x :
       {-87.7f, -88.0f, -89.0f, -1e4f, std::numeric_limits<float>::lowest(), -std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(exp_nonpositive(x), 0.0f) << x;
  }
}

TEST(SamplingMath, LogIsAccurateAlsoNearOne) {
  const auto check = [](double x) {
    const double exact = std::log(x);
    ASSERT_LE(std::abs(log_positive(x) - exact), std::abs(exact) * 1e-15) << x;
  };
  std::mt19937_64 random(2);
  std::uniform_real_distribution<double> exponent(-700, 700), near(0, 1);
  for (int i = 0; i < 200'000; ++i) {
    check(std::exp(exponent(random)));
    check(1.0 + near(random));
    check(near(random) + 1e-12);
    check(1.0 - near(random) * std::exp2(-static_cast<double>(i % 32)));
  }
  EXPECT_EQ(log_positive(1.0), 0.0);
}

TEST(SamplingMath, GumbelIsFiniteOverItsWholeRangeAndBelowItsBound) {
  const auto check = [](uint32_t w) {
    const double v = (static_cast<double>(w) + 0.5) * 0x1p-32;
    const double exact = -std::log(-std::log1p(-v));
    ASSERT_NEAR(gumbel(w), exact, 1e-13) << w;
    ASSERT_LE(gumbel(w), gumbel_bound(w)) << w;
    ASSERT_LE(gumbel(w), kMaxGumbel);
  };
  check(0);
  check(1);
  check(0xffffffffu);
  for (int bit = 0; bit < 32; ++bit) {
    check(uint32_t{1} << bit);
    check((uint32_t{1} << bit) - 1);
  }
  std::mt19937 random(3);
  for (int i = 0; i < 200'000; ++i) check(static_cast<uint32_t>(random()));
}

TEST(SamplingMath, RoundUpGivesTheNextFloat) {
  for (const double x : {0.0, 1.0, -1.0, 1.0 + 1e-12, -1.0 - 1e-12, 1e-300, -1e-300, 3.14159265358979, -2.718281828}) {
    const float f = round_up(x);
    EXPECT_GE(static_cast<double>(f), x);
    EXPECT_LT(static_cast<double>(std::nextafter(f, -1e30f)), x);
  }
}

}  // namespace
}  // namespace quire::sampling
