// SPDX-License-Identifier: Apache-2.0
// exp, exp2, sigmoid, softplus, tanh and erf: errors against long double, limits, and the same bits on every ISA level.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu/simd_probe.h"

namespace quire::cpu {
namespace {

float one(Isa isa, ProbeOp op, float x) {
  float out = 0;
  simd_probe(isa).map(op, &x, &x, &x, &out, 1);
  return out;
}

// Both signs, every magnitude from `low` to `high`, `step` bit patterns apart.
std::vector<float> sweep(float low, float high, uint32_t step) {
  std::vector<float> x;
  for (uint32_t u = std::bit_cast<uint32_t>(low); u <= std::bit_cast<uint32_t>(high); u += step) {
    x.push_back(std::bit_cast<float>(u));
    x.push_back(-x.back());
  }
  return x;
}

struct Worst {
  double ulp = 0;
  float at = 0;
};

// The largest error in units of the last place of the true value (subnormals: of the smallest one).
Worst worst_error(const std::vector<float>& x, const std::vector<float>& y, long double (*truth)(long double)) {
  Worst worst;
  for (size_t i = 0; i < x.size(); ++i) {
    const long double t = truth(static_cast<long double>(x[i]));
    const int exponent = std::max(std::ilogb(static_cast<double>(t)), -126);
    const auto ulp = static_cast<double>(std::fabs(static_cast<long double>(y[i]) - t) / std::exp2(exponent - 23));
    if (!(ulp <= worst.ulp)) worst = {ulp, x[i]};
  }
  return worst;
}

struct Function {
  const char* name;
  ProbeOp op;
  long double (*truth)(long double);
  float low, high;
  double max_ulp;  // as simd_math.h states
};
const Function kFunctions[] = {
    {"exp", ProbeOp::kExp, [](long double x) { return std::exp(x); }, 1e-8f, 88.7f, 0.85},
    {"exp2_clamped", ProbeOp::kExp2Clamped, [](long double x) { return std::exp2(std::max(x, -100.0L)); }, 1e-8f,
     126.0f, 0.80},
    {"sigmoid", ProbeOp::kSigmoid, [](long double x) { return 1 / (1 + std::exp(-x)); }, 1e-8f, 87.0f, 2.1},
    {"softplus", ProbeOp::kSoftplus, [](long double x) { return std::log1p(std::exp(x)); }, 1e-8f, 87.0f, 2.4},
    {"tanh", ProbeOp::kTanh, [](long double x) { return std::tanh(x); }, 1e-30f, 30.0f, 1.4},
    {"erf", ProbeOp::kErf, [](long double x) { return std::erf(x); }, 1e-30f, 8.0f, 0.95},
};

TEST(SimdMath, ErrorsStayBelowTheStatedOnes) {
  for (const Function& f : kFunctions) {
    const std::vector<float> x = sweep(f.low, f.high, 997);
    std::vector<float> y(x.size());
    simd_probe(probed_isas().back()).map(f.op, x.data(), x.data(), x.data(), y.data(), static_cast<int64_t>(x.size()));
    const Worst worst = worst_error(x, y, f.truth);
    EXPECT_LE(worst.ulp, f.max_ulp) << f.name << " at " << worst.at;
    RecordProperty(f.name, std::to_string(worst.ulp));
    std::printf("%-13s %zu samples, largest error %.3f ulp at %.9g\n", f.name, x.size(), worst.ulp,
                static_cast<double>(worst.at));
  }
}

TEST(SimdMath, EveryIsaGivesTheSameBitsInBodyAndTail) {
  for (const Function& f : kFunctions) {
    const std::vector<float> x = sweep(1e-40f, 3e38f, 50021);
    std::vector<float> want(x.size()), got(x.size());
    // One element at a time: every element is a tail.
    for (size_t i = 0; i < x.size(); ++i) want[i] = one(Isa::kPortable, f.op, x[i]);
    for (const Isa isa : probed_isas()) {
      simd_probe(isa).map(f.op, x.data(), x.data(), x.data(), got.data(), static_cast<int64_t>(x.size()));
      ASSERT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0) << f.name << " " << name(isa);
    }
  }
}

TEST(SimdMath, LimitsAreExact) {
  for (const Isa isa : probed_isas()) {
    SCOPED_TRACE(name(isa));
    EXPECT_EQ(one(isa, ProbeOp::kExp, 0.0f), 1.0f);
    EXPECT_EQ(one(isa, ProbeOp::kExp, -0.0f), 1.0f);
    EXPECT_EQ(one(isa, ProbeOp::kExp, -kInf), 0.0f);
    EXPECT_EQ(one(isa, ProbeOp::kExp, -200.0f), 0.0f);
    EXPECT_EQ(one(isa, ProbeOp::kExp, -3e38f), 0.0f);
    EXPECT_EQ(one(isa, ProbeOp::kExp, kInf), kInf);
    EXPECT_EQ(one(isa, ProbeOp::kExp, 88.73f), kInf);
    EXPECT_LT(one(isa, ProbeOp::kExp, 88.72f), kInf);
    EXPECT_GT(one(isa, ProbeOp::kExp, -103.0f), 0.0f);  // a subnormal
    EXPECT_EQ(one(isa, ProbeOp::kExp2Clamped, 0.0f), 1.0f);
    EXPECT_EQ(one(isa, ProbeOp::kExp2Clamped, -7.0f), 0x1p-7f);
    EXPECT_EQ(one(isa, ProbeOp::kExp2Clamped, -kInf), 0x1p-100f);
    EXPECT_EQ(one(isa, ProbeOp::kExp2Clamped, -100.5f), 0x1p-100f);
    EXPECT_EQ(one(isa, ProbeOp::kSigmoid, kInf), 1.0f);
    EXPECT_EQ(one(isa, ProbeOp::kSigmoid, -kInf), 0.0f);
    EXPECT_EQ(one(isa, ProbeOp::kSigmoid, 0.0f), 0.5f);
    EXPECT_EQ(one(isa, ProbeOp::kSoftplus, kInf), kInf);
    EXPECT_EQ(one(isa, ProbeOp::kSoftplus, -kInf), 0.0f);
    EXPECT_EQ(one(isa, ProbeOp::kSoftplus, 20.5f), 20.5f);
    for (const ProbeOp op : {ProbeOp::kTanh, ProbeOp::kErf}) {
      EXPECT_EQ(one(isa, op, kInf), 1.0f);
      EXPECT_EQ(one(isa, op, -kInf), -1.0f);
      EXPECT_EQ(one(isa, op, 30.0f), 1.0f);
      EXPECT_EQ(std::bit_cast<uint32_t>(one(isa, op, -0.0f)), 0x80000000u);
    }
    for (const Function& f : kFunctions) {
      for (const uint32_t nan : {0x7fc00000u, 0xffc00000u, 0x7fffffffu, 0x7f800001u}) {
        EXPECT_TRUE(std::isnan(one(isa, f.op, std::bit_cast<float>(nan)))) << f.name << " of NaN " << std::hex << nan;
      }
    }
  }
}

}  // namespace
}  // namespace quire::cpu
