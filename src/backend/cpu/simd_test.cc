// SPDX-License-Identifier: Apache-2.0
// F32x16 against scalar C++ on every ISA level, by bits.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "backend/cpu/simd_probe.h"
#include "base/half.h"

namespace quire::cpu {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Every pair and many triples of values that go wrong first, then random bit patterns.
struct Operands {
  std::vector<float> a, b, c;
};
Operands operands() {
  const float special[] = {
      0.0f,    -0.0f,    1.0f,      -1.0f, 0.5f,  3.0f, 1e-45f,       -1e-45f,   1.17549e-38f, 0x1.fffffep-127f,
      3.4e38f, -3.4e38f, 0x1p-126f, kInf,  -kInf, kNan, 1 + 0x1p-23f, 0x1.8p-12f};
  Operands o;
  for (const float a : special) {
    for (const float b : special) {
      for (const float c : special) {
        o.a.push_back(a);
        o.b.push_back(b);
        o.c.push_back(c);
      }
    }
  }
  std::mt19937 random(1);
  const auto any = [&] { return std::bit_cast<float>(static_cast<uint32_t>(random())); };
  const auto near_one = [&] {
    return std::bit_cast<float>(0x3f800000u ^ (static_cast<uint32_t>(random()) & 0x80ffffffu));
  };
  for (int i = 0; i < 200000; ++i) {
    const bool wild = i % 2 == 0;
    o.a.push_back(wild ? any() : near_one());
    o.b.push_back(wild ? any() : near_one());
    // Near -a*b: cancellation, where a wrong double rounding in an emulated fma shows.
    const float product = o.a.back() * o.b.back();
    o.c.push_back(wild ? any() : i % 4 == 1 ? -product : near_one() * 0x1p-24f);
  }
  // A product that is half of c's last bit, but for a bit that a double does not hold: it decides how the sum is
  // rounded.
  for (int i = 0; i < 20000; ++i) {
    const float tiny = static_cast<float>(static_cast<int>(random() % 16)) * 0x1p-23f;  // 0: exactly half
    const bool subnormal = i % 4 < 2;                                                   // near the border of these
    o.a.push_back((1 + tiny) * (subnormal ? 0x1p-75f : 1.0f));
    o.b.push_back((1 - tiny) * (subnormal ? 0x1p-75f : 0x1p-24f) * (i % 2 == 0 ? 1.0f : -1.0f));
    o.c.push_back(near_one() * (subnormal ? 0x1p-126f : 1.0f));
  }
  return o;
}

float expected(ProbeOp op, float a, float b, float c) {
  switch (op) {
    case ProbeOp::kAdd:
      return a + b;
    case ProbeOp::kSub:
      return a - b;
    case ProbeOp::kMul:
      return a * b;
    case ProbeOp::kDiv:
      return a / b;
    case ProbeOp::kFma:
      return std::fma(a, b, c);
    case ProbeOp::kNeg:
      return -a;
    case ProbeOp::kAbs:
      return std::fabs(a);
    case ProbeOp::kSqrt:
      return std::sqrt(a);
    case ProbeOp::kMax:
      return a > b ? a : b;
    case ProbeOp::kMin:
      return a < b ? a : b;
    case ProbeOp::kSelectLt:
      return a < b ? a : c;
    case ProbeOp::kSelectLe:
      return a <= b ? a : c;
    case ProbeOp::kSelectGt:
      return a > b ? a : c;
    case ProbeOp::kSelectGe:
      return a >= b ? a : c;
    default:
      return a == b ? a : c;
  }
}

bool same(float x, float y) {
  return (std::isnan(x) && std::isnan(y)) || std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y);
}

TEST(Simd, EveryOperationHasTheBitsOfScalarArithmetic) {
  const Operands o = operands();
  const auto n = static_cast<int64_t>(o.a.size());
  std::vector<float> out(o.a.size());
  for (const Isa isa : probed_isas()) {
    for (int op = 0; op <= static_cast<int>(ProbeOp::kSelectEq); ++op) {
      simd_probe(isa).map(static_cast<ProbeOp>(op), o.a.data(), o.b.data(), o.c.data(), out.data(), n);
      for (size_t i = 0; i < out.size(); ++i) {
        const float want = expected(static_cast<ProbeOp>(op), o.a[i], o.b[i], o.c[i]);
        ASSERT_TRUE(same(out[i], want)) << name(isa) << " op " << op << " (" << o.a[i] << ", " << o.b[i] << ", "
                                        << o.c[i] << ") gave " << out[i] << ", want " << want;
      }
    }
  }
}

TEST(Simd, HalfPrecisionHasTheBitsOfBaseHalf) {
  std::vector<uint16_t> all(65536), back(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  std::vector<float> wide(all.size()), want(all.size());
  std::mt19937 random(2);
  std::vector<float> floats;
  for (int i = 0; i < 300000; ++i) floats.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  for (int i = 0; i < 65536; ++i) {  // halfway cases: exactly between two fp16 numbers, and one bit to each side
    const float x = fp16_to_float(static_cast<uint16_t>(i));
    const float y = fp16_to_float(static_cast<uint16_t>(i + 1));
    const float middle = x / 2 + y / 2;
    for (const float f : {middle, std::nextafter(middle, kInf), std::nextafter(middle, -kInf)}) floats.push_back(f);
  }
  for (int i = 0; i < 65536; ++i) {
    for (const uint32_t low : {0x7fffu, 0x8000u, 0x8001u}) {
      floats.push_back(std::bit_cast<float>((static_cast<uint32_t>(i) << 16) | low));
    }
  }
  std::vector<uint16_t> narrow(floats.size());
  for (const Isa isa : probed_isas()) {
    const SimdProbe& probe = simd_probe(isa);
    probe.from_f16(all.data(), wide.data(), 65536);
    for (size_t i = 0; i < all.size(); ++i) {
      const auto bits = std::bit_cast<uint32_t>(wide[i]);
      ASSERT_EQ(bits, std::bit_cast<uint32_t>(fp16_to_float(all[i]))) << name(isa) << " f16 " << i;
    }
    probe.from_bf16(all.data(), wide.data(), 65536);
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(wide[i]), static_cast<uint32_t>(i) << 16) << name(isa) << " bf16 " << i;
    }
    probe.to_f16(floats.data(), narrow.data(), static_cast<int64_t>(floats.size()));
    for (size_t i = 0; i < floats.size(); ++i) {
      ASSERT_EQ(narrow[i], float_to_fp16(floats[i])) << name(isa) << " to f16 " << floats[i];
    }
    probe.to_bf16(floats.data(), narrow.data(), static_cast<int64_t>(floats.size()));
    for (size_t i = 0; i < floats.size(); ++i) {
      ASSERT_EQ(narrow[i], float_to_bf16(floats[i])) << name(isa) << " to bf16 " << floats[i];
    }
  }
}

TEST(Simd, PartialGroupsTouchNothingPastTheirEnd) {
  for (const Isa isa : probed_isas()) {
    const SimdProbe& probe = simd_probe(isa);
    for (int64_t n = 0; n <= 33; ++n) {
      for (int64_t offset = 0; offset < 4; ++offset) {  // misaligned too
        std::vector<float> x(64, 2.0f), out(64, 7.0f);
        probe.map(ProbeOp::kMul, x.data() + offset, x.data() + offset, x.data() + offset, out.data() + offset, n);
        for (int64_t i = 0; i < 64; ++i) {
          const bool inside = i >= offset && i < offset + n;
          ASSERT_EQ(out[static_cast<size_t>(i)], inside ? 4.0f : 7.0f) << name(isa) << " n=" << n << " i=" << i;
        }
        std::vector<uint16_t> halves(64, 0x1234), more(64, 0x4321);
        probe.to_f16(x.data() + offset, halves.data() + offset, n);
        probe.to_bf16(x.data() + offset, more.data() + offset, n);
        for (int64_t i = 0; i < 64; ++i) {
          const bool inside = i >= offset && i < offset + n;
          ASSERT_EQ(halves[static_cast<size_t>(i)], inside ? 0x4000 : 0x1234) << name(isa) << " n=" << n;
          ASSERT_EQ(more[static_cast<size_t>(i)], inside ? 0x4000 : 0x4321) << name(isa) << " n=" << n;
        }
        std::vector<float> wide(64, 7.0f);
        probe.from_f16(halves.data() + offset, wide.data() + offset, n);
        for (int64_t i = 0; i < 64; ++i) {
          const bool inside = i >= offset && i < offset + n;
          ASSERT_EQ(wide[static_cast<size_t>(i)], inside ? 2.0f : 7.0f) << name(isa) << " n=" << n;
        }
      }
    }
  }
}

TEST(Simd, ReductionsFoldEightFourTwoOne) {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> values(-1.0f, 1.0f);
  for (int trial = 0; trial < 200; ++trial) {
    float x[16], out[16], fold[16];
    for (float& v : x) v = values(random) * std::exp2(static_cast<float>(random() % 20));
    std::memcpy(fold, x, sizeof x);
    for (int half = 8; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) fold[i] += fold[i + half];
    }
    for (const Isa isa : probed_isas()) {
      simd_probe(isa).map(ProbeOp::kReduceAdd, x, x, x, out, 16);
      ASSERT_EQ(std::bit_cast<uint32_t>(out[0]), std::bit_cast<uint32_t>(fold[0])) << name(isa);
      simd_probe(isa).map(ProbeOp::kReduceMax, x, x, x, out, 16);
      ASSERT_EQ(out[0], *std::max_element(x, x + 16)) << name(isa);
    }
  }
}

TEST(Simd, InterleaveIsTheInverseOfDeinterleave) {
  float x[32], split[32], joined[32];
  for (int i = 0; i < 32; ++i) x[i] = static_cast<float>(i);
  for (const Isa isa : probed_isas()) {
    simd_probe(isa).map(ProbeOp::kDeinterleave, x, x, x, split, 32);
    for (int i = 0; i < 16; ++i) {
      ASSERT_EQ(split[i], static_cast<float>(2 * i)) << name(isa);
      ASSERT_EQ(split[16 + i], static_cast<float>(2 * i + 1)) << name(isa);
    }
    simd_probe(isa).map(ProbeOp::kInterleave, split, split, split, joined, 32);
    ASSERT_EQ(std::memcmp(x, joined, sizeof x), 0) << name(isa);
  }
}

}  // namespace
}  // namespace quire::cpu
