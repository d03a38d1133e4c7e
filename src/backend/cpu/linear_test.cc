// SPDX-License-Identifier: Apache-2.0
// linear and embedding against the oracle, bit for bit, on every ISA level of this machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "backend/backend.h"
#include "backend/cpu/isa_level.h"
#include "backend/testing/linear_cases.h"
#include "backend/testing/linear_oracle_test.h"
#include "base/test_sanitized.h"

namespace quire {
namespace {

std::unique_ptr<Backend> make_backend(cpu::Isa isa, int threads) {
  auto backend = make_cpu_backend({.threads = threads, .isa = cpu::name(isa)});
  EXPECT_TRUE(backend.ok());
  return std::move(backend).value();
}

Tensor view(std::vector<float>& data, int64_t rows, int64_t cols, int64_t stride) {
  return {data.data(), DType::kF32, rows, cols, stride};
}

// Runs rows [first, first + rows) of x and checks the bits of y, the gap between rows of y included.
void check_rows(Backend& backend, const PackedMatrix& weight, std::vector<float>& x, int64_t first, int64_t rows,
                const float* bias, const std::vector<float>& want) {
  const int64_t k = weight.k(), n = weight.n(), stride = n + 3;
  const float canary = -12345.0f;
  std::vector<float> y(static_cast<size_t>(rows * stride), canary);
  Tensor xs = view(x, rows, k, k);
  xs.data = x.data() + first * k;
  backend.linear({xs, &weight, bias, view(y, rows, n, stride)});
  for (int64_t r = 0; r < rows; ++r) {
    const float* got = y.data() + r * stride;
    const float* expected = want.data() + (first + r) * n;
    for (int64_t c = 0; c < n; ++c) {
      ASSERT_EQ(std::memcmp(got + c, expected + c, 4), 0)
          << backend.describe() << " " << name(weight.dtype()) << " n " << n << " k " << k << " rows " << rows << ": y["
          << first + r << "][" << c << "] is " << got[c] << ", not " << expected[c];
    }
    for (int64_t c = n; c < stride; ++c) ASSERT_EQ(got[c], canary) << "wrote past the row's end";
  }
}

// Instrumented kernels are slow, and small shapes reach every line: the large ones are left to the other builds.
constexpr int64_t kLargestShape = kSanitized ? 16 << 10 : 1 << 20;

// The form of activations in a product with a weight of this type.
enum class Form { kFloat, kQuantised, kEightBits, kFixed, kRounded, kPaired };

Form form_of(cpu::Isa isa, DType type) {
  const bool amx = isa == cpu::Isa::kAmx;
  const bool i8mm = isa == cpu::Isa::kNeonI8mm;
  if (is_quantised(type) && (i8mm || isa == cpu::Isa::kNeonDotprod)) return Form::kEightBits;
  if (i8mm && type == DType::kBF16) return Form::kPaired;
  if (amx && type == DType::kBF16) return Form::kRounded;
  if (is_quantised(type)) return amx ? Form::kFixed : Form::kQuantised;
  return Form::kFloat;
}

std::vector<float> run_oracle(Form form, const RawMatrix& weight, const std::vector<float>& x, const float* bias) {
  switch (form) {
    case Form::kQuantised:
      return oracle::linear_quantised(weight, x, bias);
    case Form::kEightBits:
      return oracle::linear_quantised(weight, x, bias, oracle::Codes::kEightBits);
    case Form::kPaired:
      return oracle::linear_paired(weight, x, bias);
    case Form::kFixed:
      return oracle::linear_fixed(weight, x, bias);
    case Form::kRounded:
      return oracle::linear_rounded(weight, x, bias);
    default:
      return oracle::linear_float(weight, x, bias);
  }
}

// Every level, one and two threads, many row counts.
void check_weight(const RawMatrix& raw, bool quantise) {
  std::vector<float> x = cases::random_rows(cases::kMaxLinearRows, raw.k, 11);
  const std::vector<float> bias = cases::random_rows(1, raw.n, 13);
  const float* b = raw.n % 2 == 1 ? bias.data() : nullptr;
  std::map<Form, std::vector<float>> wanted;
  for (const cpu::Isa isa : cpu::available_isas()) {
    const Form form = quantise ? form_of(isa, raw.dtype) : Form::kFloat;
    if (wanted.count(form) == 0) wanted[form] = run_oracle(form, raw, x, b);
    const std::vector<float>& want = wanted[form];
    for (const int threads : {1, 2}) {
      const auto backend = make_backend(isa, threads);
      const auto packed = backend->pack({&raw, 1}, {.quantise_activations = quantise});
      ASSERT_TRUE(packed.ok());
      for (const int64_t rows : cases::kLinearRows) {
        check_rows(*backend, **packed, x, 0, rows, b, want);
        if (testing::Test::HasFatalFailure()) return;
      }
      check_rows(*backend, **packed, x, 129, 1, b, want);
    }
  }
}

void check_type(DType type, bool quantise) {
  for (const cases::LinearShape& shape : cases::kLinearShapes) {
    if (shape.n * shape.k > kLargestShape) continue;
    const cases::Weight weight = cases::random_weight_of(type, shape.n, cases::rounded_k(type, shape.k), 7);
    check_weight(weight.raw(), quantise);
    if (testing::Test::HasFatalFailure()) return;
  }
}

class Linear : public testing::TestWithParam<DType> {};

TEST_P(Linear, PreparedActivationsGiveTheContractsBits) {
  check_type(GetParam(), true);
}
TEST_P(Linear, FloatActivationsGiveTheContractsBits) {
  check_type(GetParam(), false);
}

TEST_P(Linear, PartsAndRowMapsConcatenateAlongN) {
  const DType type = GetParam();
  const int64_t k = cases::rounded_k(type, 64), n0 = 9, n1 = 30;
  const auto w0 = cases::random_weight_of(type, n0, k, 1);
  const auto w1 = cases::random_weight_of(type, n1, k, 2);
  std::vector<int32_t> map;
  for (int32_t i = 0; i < n1; ++i) map.push_back((i * 7 + 3) % static_cast<int32_t>(n1));
  cases::Weight whole = w0;
  whole.n = n0 + n1;
  const auto append = [](auto& to, const auto& from, int64_t row, int64_t size) {
    to.insert(to.end(), from.begin() + row * size, from.begin() + (row + 1) * size);
  };
  for (const int32_t row : map) {
    append(whole.bytes, w1.bytes, row, row_bytes(type, k));
    if (w1.group == 0) continue;
    append(whole.scales, w1.scales, row, k / w1.group);
    append(whole.mins, w1.mins, row, k / w1.group);
  }
  std::vector<float> x = cases::random_rows(3, k, 3);
  const cpu::Isa isa = cpu::available_isas().back();
  const auto want = run_oracle(form_of(isa, type), whole.raw(), x, nullptr);
  const auto backend = make_backend(isa, 2);
  RawMatrix parts[] = {w0.raw(), w1.raw()};
  parts[1].row_map = map;
  const auto packed = backend->pack(parts, {});
  ASSERT_TRUE(packed.ok());
  check_rows(*backend, **packed, x, 0, 3, nullptr, want);
}

TEST_P(Linear, EmbeddingReadsTheRowsThatTheFileHolds) {
  const DType type = GetParam();
  const int64_t n = 37, k = cases::rounded_k(type, 96);
  const auto weight = cases::random_weight_of(type, n, k, 5);
  const RawMatrix raw = weight.raw();
  const std::vector<float> values = oracle::weight_values(raw);
  const std::vector<int32_t> tokens = {0, 36, 15, 16, 17, 17, 31, 32, 5};
  for (const cpu::Isa isa : cpu::available_isas()) {
    const auto backend = make_backend(isa, 2);
    const auto packed = backend->pack({&raw, 1}, {});
    ASSERT_TRUE(packed.ok());
    for (const float scale : {1.0f, 1.7f}) {
      std::vector<float> out(tokens.size() * static_cast<size_t>(k));
      backend->embedding({packed->get(), tokens, scale, view(out, static_cast<int64_t>(tokens.size()), k, k)});
      for (size_t i = 0; i < tokens.size(); ++i) {
        for (int64_t j = 0; j < k; ++j) {
          const float want = values[static_cast<size_t>(tokens[i] * k + j)] * scale;
          ASSERT_EQ(std::memcmp(&out[i * static_cast<size_t>(k) + static_cast<size_t>(j)], &want, 4), 0)
              << cpu::name(isa) << " " << name(type) << " token " << tokens[i] << " element " << j;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Linear,
                         testing::Values(DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0,
                                         DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ2_K, DType::kQ3_K,
                                         DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kIQ4_NL, DType::kIQ4_XS,
                                         DType::kMXFP4, DType::kG4, DType::kG8),
                         [](const auto& info) { return name(info.param); });

TEST(LinearEdges, TinyHugeAndBrokenActivationsStayInTheirRowAndBlock) {
  const int64_t n = 20, k = 64;
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> x = cases::random_rows(6, k, 3);
  for (int64_t i = 0; i < k; ++i) {
    x[static_cast<size_t>(i)] *= 1e-38f;          // blocks too small to keep: they count as zero
    x[static_cast<size_t>(k + i)] *= 1e-42f;      // subnormal
    x[static_cast<size_t>(2 * k + i)] = 3.4e38f;  // near the largest float
  }
  x[static_cast<size_t>(3 * k + 5)] = inf;
  x[static_cast<size_t>(4 * k + 40)] = std::numeric_limits<float>::quiet_NaN();
  for (const DType type : {DType::kQ8_0, DType::kQ4_1, DType::kG8}) {
    const auto weight = cases::random_weight_of(type, n, k, 5);
    const RawMatrix raw = weight.raw();
    for (const cpu::Isa isa : cpu::available_isas()) {
      const auto want = run_oracle(form_of(isa, type), raw, x, nullptr);
      const auto backend = make_backend(isa, 1);
      const auto packed = backend->pack({&raw, 1}, {});
      std::vector<float> y(static_cast<size_t>(6 * n));
      backend->linear({view(x, 6, k, k), packed->get(), nullptr, view(y, 6, n, n)});
      for (int64_t r = 0; r < 6; ++r) {
        for (int64_t c = 0; c < n; ++c) {
          const size_t at = static_cast<size_t>(r * n + c);
          if (!std::isfinite(want[at])) {
            EXPECT_FALSE(std::isfinite(y[at])) << "a broken input must not look like an answer";
          } else {
            EXPECT_EQ(std::memcmp(&y[at], &want[at], 4), 0) << cpu::name(isa) << " row " << r << " column " << c;
          }
        }
      }
    }
  }
}

TEST(LinearEdges, AScaleThatIsNotFiniteStaysInItsColumn) {
  const int64_t n = 20, k = 64, rows = 40, broken = 3;
  std::vector<float> x = cases::random_rows(rows, k, 3);
  for (const DType type : {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1}) {
    const cases::Weight sound = cases::random_weight_of(type, n, k, 5);
    for (const uint16_t scale : {0x7c00, 0xfc00, 0x7e00}) {  // infinities and a NaN
      cases::Weight weight = sound;
      std::memcpy(weight.bytes.data() + broken * row_bytes(type, k), &scale, sizeof scale);
      for (const cpu::Isa isa : cpu::available_isas()) {
        const auto backend = make_backend(isa, 1);
        const RawMatrix raw[] = {sound.raw(), weight.raw()};
        for (const int64_t m : {int64_t{1}, int64_t{12}, rows}) {
          std::vector<float> y[2];
          for (int i = 0; i < 2; ++i) {
            const auto packed = backend->pack({raw + i, 1}, {});
            ASSERT_TRUE(packed.ok());
            y[i].resize(static_cast<size_t>(m * n));
            backend->linear({view(x, m, k, k), packed->get(), nullptr, view(y[i], m, n, n)});
          }
          for (int64_t i = 0; i < m * n; ++i) {
            const auto at = static_cast<size_t>(i);
            if (i % n == broken) {
              EXPECT_FALSE(std::isfinite(y[1][at])) << backend->describe() << " " << name(type) << " rows " << m;
            } else {
              EXPECT_EQ(std::memcmp(&y[0][at], &y[1][at], 4), 0) << backend->describe() << " " << name(type);
            }
          }
        }
      }
    }
  }
}

// 96 and 320 k: with tiles, outputs are written after the products of the next rows, and between them.
class LinearGated : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(K, LinearGated, testing::Values(96, 320));

TEST_P(LinearGated, HasTheBitsOfALinearAndAGlu) {
  const int64_t k = GetParam(), rows = 130;
  std::vector<float> x = cases::random_rows(rows, k, 3);
  for (const DType type : {DType::kF32, DType::kBF16, DType::kQ8_0, DType::kQ4_1, DType::kG4}) {
    for (const int64_t half : {40, 96}) {  // 40: its up begins inside a panel
      const auto weight = cases::random_weight_of(type, 2 * half, k, 5);
      const RawMatrix raw = weight.raw();
      const std::vector<float> bias = cases::random_rows(1, 2 * half, 7);
      for (const cpu::Isa isa : cpu::available_isas()) {
        const auto backend = make_backend(isa, 2);
        for (const bool quantise : {true, false}) {
          const auto packed = backend->pack({&raw, 1}, {.quantise_activations = quantise});
          ASSERT_TRUE(packed.ok());
          for (const int64_t m : {17, 64, 65, 130}) {
            const FusedGlu form = {m == 64 ? Activation::kGelu : Activation::kSilu, m == 17 || m == 130 ? 0.5f : 0.0f};
            const float* b = m % 2 == 0 ? bias.data() : nullptr;
            std::vector<float> both(static_cast<size_t>(m * 2 * half)), want(static_cast<size_t>(m * half));
            backend->linear({view(x, m, k, k), packed->get(), b, view(both, m, 2 * half, 2 * half)});
            Tensor up = view(both, m, half, 2 * half);
            up.data = both.data() + half;
            backend->glu({view(both, m, half, 2 * half), up, form.activation, view(want, m, half, half), form.limit});
            std::vector<float> got(static_cast<size_t>(m * (half + 3)), -1.0f);
            LinearArgs args = {view(x, m, k, k), packed->get(), b, view(got, m, half, half + 3)};
            args.gated = &form;
            backend->linear(args);
            for (int64_t r = 0; r < m; ++r) {
              const float* row = got.data() + r * (half + 3);
              ASSERT_EQ(std::memcmp(row, want.data() + r * half, static_cast<size_t>(4 * half)), 0)
                  << backend->describe() << " " << name(type) << " half " << half << " rows " << m << " row " << r;
              for (int64_t c = half; c < half + 3; ++c) ASSERT_EQ(row[c], -1.0f) << "wrote past the row's end";
            }
          }
        }
      }
    }
  }
}

TEST(LinearGroups, OfAWholeRowWithoutMinimaAndWithTinyScalesGiveTheContractsBits) {
  for (const DType type : {DType::kG4, DType::kG8}) {
    cases::Weight weight = cases::random_weight_of(type, 35, 320, 3, 320);
    weight.mins.clear();
    weight.scales[4] = 0x1p-28f;
    weight.scales[5] = -0x1.8p-30f;  // below 2^-29: zero
    weight.scales[6] = 1e-44f;
    for (const bool quantise : {true, false}) check_weight(weight.raw(), quantise);
  }
}

TEST(LinearGroups, ASymmetricWeightOfEightBitsMeetsNoMinimum) {
  cases::Weight weight = cases::random_weight_of(DType::kG8, 16, 64, 3);
  for (size_t i = 0; i < weight.mins.size(); ++i) weight.mins[i] = -128 * weight.scales[i];
  const auto values = oracle::weight_values(weight.raw());
  for (int64_t i = 0; i < 16 * 64; ++i) {
    const float code = static_cast<float>(static_cast<int>(weight.bytes[static_cast<size_t>(i)]) - 128);
    EXPECT_EQ(values[static_cast<size_t>(i)], weight.scales[static_cast<size_t>(i / 64)] * code);
  }
  check_weight(weight.raw(), true);
}

TEST(LinearPack, RefusesGroupsThatDifferOrDoNotDivideARow) {
  const auto backend = make_backend(cpu::Isa::kPortable, 1);
  const auto one = cases::random_weight_of(DType::kG4, 4, 128, 1, 64);
  const auto other = cases::random_weight_of(DType::kG4, 4, 128, 1, 32);
  const RawMatrix differing[] = {one.raw(), other.raw()};
  const auto apart = backend->pack(differing, {});
  ASSERT_FALSE(apart.ok());
  EXPECT_EQ(apart.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(apart.error().message, testing::HasSubstr("64 and of 32"));
  for (const int64_t group : {int64_t{0}, int64_t{16}, int64_t{48}, int64_t{96}, int64_t{256}, int64_t{-32}}) {
    RawMatrix raw = one.raw();
    raw.group = group;
    const auto packed = backend->pack({&raw, 1}, {});
    ASSERT_FALSE(packed.ok());
    EXPECT_THAT(packed.error().message, testing::HasSubstr("groups of " + std::to_string(group)));
  }
}

TEST(LinearPack, TakesTinyExponentsAsZeroAndRefusesHugeOnes) {
  const auto backend = make_backend(cpu::available_isas().back(), 1);
  cases::Weight weight = cases::random_weight_of(DType::kMXFP4, 4, 32, 1);
  for (size_t row = 0; row < 4; ++row)
    weight.bytes[17 * row] = static_cast<std::byte>(row == 0 ? 99 : 98 - 40 * (row - 1));
  const RawMatrix raw = weight.raw();
  const auto packed = backend->pack({&raw, 1}, {});
  ASSERT_TRUE(packed.ok());
  const std::vector<int32_t> tokens = {0, 1, 2, 3};
  std::vector<float> out(4 * 32), first(32);
  backend->embedding({packed->get(), tokens, 1.0f, view(out, 4, 32, 32)});
  weights::dequantise_row(DType::kMXFP4, weight.bytes.data(), first.data(), 32);
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], i < 32 ? first[i] : 0.0f) << i;
  weight.bytes[17] = static_cast<std::byte>(169);
  const auto refused = backend->pack({&raw, 1}, {});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, testing::HasSubstr("169"));
}

TEST(LinearPack, RefusesScalesThatAreNotFinite) {
  const auto backend = make_backend(cpu::Isa::kPortable, 1);
  for (const float broken : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 1e30f}) {
    for (const bool scale : {true, false}) {
      auto weight = cases::random_weight_of(DType::kG8, 4, 128, 1);
      (scale ? weight.scales : weight.mins)[3] = broken;
      const RawMatrix raw = weight.raw();
      const auto packed = backend->pack({&raw, 1}, {});
      ASSERT_FALSE(packed.ok());
      EXPECT_THAT(packed.error().message, testing::HasSubstr("finite"));
    }
  }
}

TEST(LinearPack, RefusesRowsThatAreNoWholeBlocks) {
  const auto backend = make_backend(cpu::Isa::kPortable, 1);
  std::vector<std::byte> bytes(1000);
  const RawMatrix raw{DType::kQ4_K, 1, 128, bytes.data()};
  const auto packed = backend->pack({&raw, 1}, {});
  ASSERT_FALSE(packed.ok());
  EXPECT_EQ(packed.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(packed.error().message, testing::HasSubstr("Q4_K"));
  EXPECT_THAT(packed.error().message, testing::HasSubstr("128"));
}

TEST(LinearPack, StaysCloseToTheFilesSize) {
  const auto backend = make_backend(cpu::Isa::kPortable, 1);
  for (const DType type : cases::kQuantTypes) {
    const int64_t n = 64, k = 1536;
    const auto weight = cases::random_weight_of(type, n, k, 1);
    const RawMatrix raw = weight.raw();
    const auto packed = backend->pack({&raw, 1}, {});
    const size_t bytes = weight.bytes.size() + 4 * (weight.scales.size() + weight.mins.size());
    EXPECT_LE(static_cast<double>((*packed)->bytes()), 1.04 * static_cast<double>(bytes)) << name(type);
  }
}

}  // namespace
}  // namespace quire
