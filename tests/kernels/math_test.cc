// SPDX-License-Identifier: Apache-2.0
// The dialect's exp, log and their kin against long double: the largest error over dense samples, and the edges.
#include "kernels/compat/float_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

namespace quire::kernels {
namespace {

using Reference = std::function<long double(long double)>;

// The largest error in units of the last place of the true value, over `steps` points of [from, to].
double worst(float (*function)(float), const Reference& reference, float from, float to, int steps = 200000) {
  double largest = 0;
  for (int i = 0; i <= steps; i++) {
    const float x = from + (to - from) * (static_cast<float>(i) / static_cast<float>(steps));
    const long double truth = reference(x);
    const float nearest = static_cast<float>(std::fabs(truth));
    const double ulp = std::nextafter(nearest, INFINITY) - static_cast<double>(nearest);
    const double error = static_cast<double>(std::fabs(function(x) - truth)) / ulp;
    largest = std::max(largest, std::isfinite(error) ? error : 1e30);
  }
  return largest;
}

TEST(KernelMath, ErrorsAreFewUnitsOfTheLastPlace) {
  EXPECT_LT(worst(
                q_exp, [](long double x) { return std::exp(x); }, -87.0f, 88.0f),
            0.9);
  EXPECT_LT(worst(
                q_exp2, [](long double x) { return std::exp2(x); }, -100.0f, 0.0f),
            0.9);
  EXPECT_LT(worst(
                q_sigmoid, [](long double x) { return 1 / (1 + std::exp(-x)); }, -80.0f, 20.0f),
            2.3);
  EXPECT_LT(worst(
                q_silu, [](long double x) { return x / (1 + std::exp(-x)); }, -80.0f, 20.0f),
            3.2);
  EXPECT_LT(worst(
                q_softplus, [](long double x) { return std::log1p(std::exp(x)); }, -80.0f, 20.0f),
            2.5);
  EXPECT_LT(worst(
                q_tanh, [](long double x) { return std::tanh(x); }, -9.5f, 9.5f),
            1.5);
  EXPECT_LT(worst(
                q_erf, [](long double x) { return std::erf(x); }, -4.5f, 4.5f),
            1.0);
  for (const float top : {1e-30f, 0.5f, 2.0f, 100.0f, 3e38f}) {
    EXPECT_LT(worst(
                  q_log, [](long double x) { return std::log(x); }, top / 1e4f, top),
              2.0)
        << top;
  }
  EXPECT_LT(worst(
                q_log1p, [](long double x) { return std::log1p(x); }, -0.9f, 8.0f),
            2.2);
}

TEST(KernelMath, EdgesAreWhatIeeeSays) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(q_exp(-inf), 0.0f);
  EXPECT_EQ(q_exp(inf), inf);
  EXPECT_EQ(q_exp(0.0f), 1.0f);
  EXPECT_EQ(q_exp2(-inf), 0x1p-100f);
  EXPECT_EQ(q_exp2(-3.0f), 0.125f);
  EXPECT_EQ(q_log(0.0f), -inf);
  EXPECT_EQ(q_log(1.0f), 0.0f);
  EXPECT_EQ(q_log(inf), inf);
  EXPECT_TRUE(std::isnan(q_log(-1.0f)));
  EXPECT_FLOAT_EQ(q_log(1e-40f), std::log(1e-40f));
  EXPECT_EQ(q_log1p(0.0f), 0.0f);
  EXPECT_EQ(q_tanh(inf), 1.0f);
  EXPECT_EQ(q_tanh(-inf), -1.0f);
  EXPECT_EQ(q_erf(-inf), -1.0f);
  EXPECT_EQ(q_sigmoid(-inf), 0.0f);
  for (const auto function : {q_exp, q_exp2, q_log, q_log1p, q_tanh, q_erf, q_sigmoid, q_silu, q_softplus}) {
    EXPECT_TRUE(std::isnan(function(nan)));
    EXPECT_TRUE(std::isnan(function(-nan)));
  }
}

TEST(KernelTypes, HalfAndBfloatConvertAsBaseSays) {
  for (uint32_t bits = 0; bits < 65536; bits++) {
    const half h = {static_cast<ushort>(bits)};
    const float expected = fp16_to_float(static_cast<uint16_t>(bits));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(to_f(h)));
    } else {
      ASSERT_EQ(as_uint(to_f(h)), as_uint(expected)) << bits;
      ASSERT_EQ(to<half>(expected).bits, bits);
    }
    ASSERT_EQ(as_uint(to_f(bfloat{static_cast<ushort>(bits)})), bits << 16);
  }
}

}  // namespace
}  // namespace quire::kernels
