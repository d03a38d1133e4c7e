// SPDX-License-Identifier: Apache-2.0
// linear and embedding on a GPU: doubles within the arithmetic's rounding for every weight type, and by bits: a row
// alone (the kernel of few rows) and in a batch (the one of many), joined ops and the same ops one by one.
#include <gmock/gmock.h>

#include <algorithm>

#include "backend/gpu/hopper/linear_plan.h"
#include "backend/gpu/recording_device.h"
#include "backend/gpu/test_device.h"
#include "backend/testing/linear_cases.h"
#include "backend/testing/linear_oracle_test.h"

namespace quire::gpu {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

std::unique_ptr<PackedMatrix> packed(TestDevice& device, std::span<const RawMatrix> parts, DType activation) {
  auto out = device.ops().pack(parts, {.activation = activation});
  EXPECT_TRUE(out.ok());
  return std::move(out).value();
}
std::unique_ptr<PackedMatrix> packed(TestDevice& device, const cases::Weight& weight, DType activation) {
  const RawMatrix raw = weight.raw();
  return packed(device, {&raw, 1}, activation);
}

std::string product_text(DType weight, DType activation, int64_t n, int64_t k) {
  return std::string(name(weight)) + " weight, " + name(activation) + " activations, n " + std::to_string(n) + ", k " +
         std::to_string(k);
}

// x W^T in doubles, with the sum of the magnitudes for the bound.
struct Sum {
  double value = 0, size = 0;
};
Sum double_sum(const HostMatrix& x, int64_t row, const std::vector<float>& w, int64_t n, DType activation) {
  Sum sum;
  for (int64_t k = 0; k < x.cols; ++k) {
    const double product = double{x.at(row, k)} * rounded(w[static_cast<size_t>(n * x.cols + k)], activation);
    sum.value += product;
    sum.size += std::fabs(product);
  }
  return sum;
}

// Values and bias against doubles, `out` being the type of the output.
void check_product(DType weight_type, DType activation, DType out_type, int64_t n, int64_t k, int64_t rows,
                   int64_t gap) {
  const cases::Weight weight = cases::random_weight_of(weight_type, n, k, 7);
  const std::vector<float> w = oracle::weight_values(weight.raw());
  const HostMatrix x(rows, k, activation, 3, 1.0f, gap), bias(1, n, DType::kF32, 5);
  const bool biased = n % 2 == 1;
  const std::string what = product_text(weight_type, activation, n, k);
  std::unique_ptr<PackedMatrix> on_device[2];
  for (int i = 0; i < 2; ++i) on_device[i] = packed(test_device(i), weight, activation);
  const auto run = [&](TestDevice& device, int64_t first, int64_t count) {
    const Tensor out = device.room(count, n, out_type);
    const PackedMatrix* there = on_device[&device == &test_device() ? 0 : 1].get();
    device.ops().linear({device.put(x).some_rows(first, count), there, biased ? device.put(bias).f32() : nullptr, out});
    return device.rows_of(out);
  };
  const std::vector<float> got = run_rows(rows, out_type, run, what);
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t i = 0; i < n; ++i) {
      const Sum sum = double_sum(x, m, w, i, activation);
      const double b = biased ? bias.at(0, i) : 0;
      const double bound = sum.size * static_cast<double>(k + 8) * 0x1p-24 +
                           (std::fabs(sum.value) * 2 + std::fabs(b)) * rounding(out_type) * 1.01 + 1e-7;
      ASSERT_NEAR(double{got[static_cast<size_t>(m * n + i)]}, sum.value + b, bound)
          << what << " row " << m << ", " << i;
    }
  }
}

class GpuLinear : public testing::TestWithParam<DType> {};

TEST_P(GpuLinear, HasTheValueOfDoublesAndOneSetOfBitsForEveryBatch) {
  for (const DType activation : kTypes) {
    check_product(GetParam(), activation, activation, 37, cases::rounded_k(GetParam(), 96), 18, 8);
    if (HasFatalFailure()) return;
  }
}

TEST_P(GpuLinear, EmbeddingReadsTheRowsThatTheFileHolds) {
  const int64_t n = 37, k = cases::rounded_k(GetParam(), 96);
  const cases::Weight weight = cases::random_weight_of(GetParam(), n, k, 5);
  const std::vector<float> w = oracle::weight_values(weight.raw());
  const std::vector<int32_t> tokens = {0, 36, 15, 16, 17, 17, 5};
  TestDevice& device = test_device();
  for (const DType type : kTypes) {
    const auto table = packed(device, weight, type);
    for (const float scale : {1.0f, 1.7f}) {
      const Tensor out = device.room(static_cast<int64_t>(tokens.size()), k, type);
      device.ops().embedding({table.get(), {device.put(tokens), tokens.size()}, scale, out});
      const std::vector<float> got = floats_of(device.rows_of(out), type);
      for (size_t i = 0; i < got.size(); ++i) {
        const size_t row = i / static_cast<size_t>(k), column = i % static_cast<size_t>(k);
        const float want = rounded(w[static_cast<size_t>(tokens[row]) * static_cast<size_t>(k) + column] * scale, type);
        ASSERT_EQ(std::memcmp(&got[i], &want, 4), 0)
            << name(GetParam()) << " token " << tokens[row] << ", " << column << ": " << got[i] << ", not " << want;
      }
    }
  }
  device.clear();
}

TEST_P(GpuLinear, ExpandsRowsAsTheFileHoldsThem) {
  const int64_t n = 37, k = cases::rounded_k(GetParam(), 544), first = 16;
  const cases::Weight weight = cases::random_weight_of(GetParam(), n, k, 5);
  const std::vector<float> w = oracle::weight_values(weight.raw());
  TestDevice& device = test_device();
  for (const DType type : {DType::kF16, DType::kBF16}) {
    const auto packed_weight = packed(device, weight, type);
    const Tensor out = device.room(n - first, k, type, 8);
    device.ops().dequantise_rows(gpu_matrix(packed_weight.get()), first, out);
    const std::vector<float> got = floats_of(device.rows_of(out), type);
    for (size_t i = 0; i < got.size(); ++i) {
      const float want = rounded(w[static_cast<size_t>(first * k) + i], type);
      ASSERT_EQ(std::memcmp(&got[i], &want, 4), 0) << name(GetParam()) << " element " << i;
    }
  }
  device.clear();
}

INSTANTIATE_TEST_SUITE_P(Types, GpuLinear,
                         testing::Values(DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0,
                                         DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ2_K, DType::kQ3_K,
                                         DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kIQ4_NL, DType::kIQ4_XS,
                                         DType::kMXFP4, DType::kG4, DType::kG8),
                         [](const auto& info) { return name(info.param); });

TEST(GpuLinearShapes, OfEveryLengthAndAlignment) {
  struct Shape {
    int64_t n, k, rows, gap;
  };
  // K that ends inside a step, a piece and a chunk; rows of x that start anywhere; more than one block of rows.
  for (const Shape& s : {Shape{1, 1, 2, 0}, Shape{16, 7, 17, 2}, Shape{65, 40, 3, 8}, Shape{80, 33, 66, 7},
                         Shape{130, 200, 5, 8}, Shape{17, 72, 33, 3}}) {
    for (const DType type : kTypes) check_product(type, type, type, s.n, s.k, s.rows, s.gap);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(GpuLinearShapes, LongRowsOfQuantisedWeights) {
  for (const DType type : {DType::kF16, DType::kBF16}) {
    check_product(DType::kQ8_0, type, type, 17, 1184, 17, 8);
    check_product(DType::kQ6_K, type, type, 9, 1280, 3, 8);
  }
}

TEST(GpuLinearShapes, LogitsAreFloatsWhateverTheActivations) {
  for (const DType type : {DType::kF16, DType::kBF16}) {
    check_product(type, type, DType::kF32, 35, 64, 18, 8);
    check_product(DType::kQ4_K, type, DType::kF32, 35, 256, 18, 8);
  }
}

// Runs `joined` and `apart` on 1 to 33 rows; both give rows of bits.
using Run = std::function<std::vector<uint8_t>(TestDevice&, int64_t rows)>;
void expect_same_bits(std::span<const int64_t> rows, const std::string& what, const Run& joined, const Run& apart) {
  for (const int64_t m : rows) {
    EXPECT_EQ(joined(test_device(), m), apart(test_device(), m)) << what << ", " << m << " rows";
    test_device().clear();
  }
}

TEST(GpuLinearJoined, AGateHasTheBitsOfALinearAndAGlu) {
  for (const DType type : kTypes) {
    for (const DType weight_type : {type, DType::kQ8_0, DType::kG4, DType::kQ4_1}) {
      // Halves that end inside a panel, and whole panels.
      const int64_t half = weight_type == DType::kQ4_1 ? 48 : 41, k = 96;
      const auto weight = cases::random_weight_of(weight_type, 2 * half, k, 5);
      const HostMatrix x(20, k, type, 3), bias(1, 2 * half, DType::kF32, 7);
      const auto w = packed(test_device(), weight, type);
      for (const FusedGlu& form :
           {FusedGlu{Activation::kSilu}, FusedGlu{Activation::kGeluTanh}, FusedGlu{Activation::kSilu, 0.5f}}) {
        const auto joined = [&](TestDevice& device, int64_t rows) {
          LinearArgs args{device.put(x).first_rows(rows), w.get(), device.put(bias).f32(),
                          device.room(rows, half, type)};
          args.gated = &form;
          device.ops().linear(args);
          return device.rows_of(args.out);
        };
        const auto apart = [&](TestDevice& device, int64_t rows) {
          const Tensor both = device.room(rows, 2 * half, type), out = device.room(rows, half, type);
          device.ops().linear({device.put(x).first_rows(rows), w.get(), device.put(bias).f32(), both});
          device.ops().glu({both.columns(0, half), both.columns(half, half), form.activation, out, form.limit});
          return device.rows_of(out);
        };
        expect_same_bits(std::vector<int64_t>{1, 20}, product_text(weight_type, type, 2 * half, k), joined, apart);
      }
    }
  }
}

TEST(GpuLinearJoined, ANormAndAResidualHaveTheBitsOfTheirOps) {
  for (const DType type : kTypes) {
    // With long rows, 16 of them do not fit the memory of a kernel that computes the norm itself.
    for (const auto& shape : {std::pair{type, 512}, {type, 4096}, {DType::kQ4_K, 512}}) {
      const DType weight_type = shape.first;
      const int64_t n = 40, k = shape.second;
      const auto weight = cases::random_weight_of(weight_type, n, k, 5);
      constexpr int64_t kMany = 150;
      const HostMatrix hidden(16, k, DType::kF32, 3), norm(1, k, DType::kF32, 4), before(kMany, n, DType::kF32, 6);
      const auto w = packed(test_device(), weight, type);
      std::vector<int64_t> rows = {1, 2, 4};
      if (test_device().ops().joins_linear(16)) rows.insert(rows.end(), {9, 16});
      for (const int64_t m : rows) ASSERT_TRUE(test_device().ops().joins_linear(m));
      const FusedNorm form{nullptr, 1e-5f};
      const auto normed = [&](TestDevice& device, int64_t m) {
        FusedNorm here = form;
        here.weight = device.put(norm).f32();
        LinearArgs args{device.put(hidden).first_rows(m), w.get(), nullptr, device.room(m, n, type)};
        args.norm = &here;
        device.ops().linear(args);
        return device.rows_of(args.out);
      };
      const auto norm_first = [&](TestDevice& device, int64_t m) {
        const Tensor x = device.room(m, k, type), out = device.room(m, n, type);
        device.ops().rms_norm({device.put(hidden).first_rows(m), device.put(norm).f32(), k, form.eps, x});
        device.ops().linear({x, w.get(), nullptr, out});
        return device.rows_of(out);
      };
      expect_same_bits(rows, "norm, " + product_text(weight_type, type, n, k), normed, norm_first);
      const HostMatrix x(kMany, k, type, 8), bias(1, n, DType::kF32, 9);
      for (const int64_t m : {int64_t{33}, int64_t{64}, kMany}) {
        if (test_device().ops().joins_residual(m)) rows.push_back(m);
      }
      const auto added = [&](TestDevice& device, int64_t m) {
        const Tensor out = device.put(before).first_rows(m);
        LinearArgs args{device.put(x).first_rows(m), w.get(), device.put(bias).f32(), out};
        args.residual = out;
        args.residual_scale = 0.7f;
        device.ops().linear(args);
        return device.rows_of(out, false);
      };
      const auto added_after = [&](TestDevice& device, int64_t m) {
        const Tensor y = device.room(m, n, type), out = device.put(before).first_rows(m);
        device.ops().linear({device.put(x).first_rows(m), w.get(), device.put(bias).f32(), y});
        device.ops().residual_add({y, out, 0.7f, out});
        return device.rows_of(out, false);
      };
      expect_same_bits(rows, "residual, " + product_text(weight_type, type, n, k), added, added_after);
    }
  }
}

// Everything a product of a quantised weight may end in, on rows of x with `gap` elements between them. Where rows do
// not start on 16 bytes, a GPU's own variants for quantised weights do not serve and the portable kernels do.
std::vector<std::vector<uint8_t>> products_of(const PackedMatrix& w, DType type, int64_t rows, int64_t gap) {
  const int64_t n = w.n(), k = w.k();
  TestDevice& device = test_device();
  const auto spaced = [&](int64_t count, int64_t cols, DType of, uint32_t seed) {
    HostMatrix from(count, cols, of, seed, 2.0f, 0), to(count, cols, of, seed, 2.0f, gap);
    for (int64_t m = 0; m < count; ++m) {
      for (int64_t i = 0; i < cols; ++i) to.at(m, i) = from.at(m, i);
    }
    return to;
  };
  const Tensor x = device.put(spaced(rows, k, type, 3));
  const float* bias = device.put(HostMatrix(1, n, DType::kF32, 5)).f32();
  std::vector<std::vector<uint8_t>> out;
  const auto run = [&](LinearArgs args, bool check_gaps = true) {
    device.ops().linear(args);
    out.push_back(device.rows_of(args.out, check_gaps));
  };
  run({x, &w, bias, device.room(rows, n, type)});
  run({x, &w, nullptr, device.room(rows, n, DType::kF32)});
  LinearArgs added{x, &w, bias, device.put(HostMatrix(rows, n, DType::kF32, 6))};
  added.residual = added.out;
  added.residual_scale = 0.7f;
  run(added, false);
  const FusedGlu form{Activation::kSilu};
  LinearArgs gated{x, &w, bias, device.room(rows, n / 2, type)};
  gated.gated = &form;
  if (n % 2 == 0) run(gated);
  if (device.ops().joins_linear(rows)) {
    const FusedNorm norm{device.put(HostMatrix(1, k, DType::kF32, 4)).f32(), 1e-5f};
    LinearArgs normed{device.put(spaced(rows, k, DType::kF32, 7)), &w, nullptr, device.room(rows, n, type)};
    normed.norm = &norm;
    run(normed);
  }
  device.clear();
  return out;
}

TEST(GpuLinearQuantised, EveryNumberOfRowsHasThePortableKernelsBits) {
  const bool real = test_device().device().info().api != Api::kEmulator;
  const std::vector<int64_t> counts =
      real ? std::vector<int64_t>{1, 2, 7, 8, 9, 16, 17, 32, 33, 50, 64, 65, 100, 128, 200, 256}
           : std::vector<int64_t>{1, 9};
  for (const DType weight_type : cases::gpu_quant_types()) {
    for (const DType type : {DType::kF16, DType::kBF16}) {
      // K of whole chunks and of a part of one, also in several turns of the warps of a tile, with groups of 128, 96,
      // 64 and 32; N of whole pairs of panels and not, and of several for each of a GPU's multiprocessors.
      std::vector<std::pair<int64_t, int64_t>> shapes = {{96, 544}, {35, real ? 1184 : 96}};
      if (real) {
        shapes.insert(shapes.end(), {{96, 576}, {96, 1088}, {96, 1280}, {96, 1344}});
        shapes.insert(shapes.end(), {{4128, 2112}, {10016, 192}, {35040, 64}});
      }
      for (const auto& [n, plain_k] : shapes) {
        const int64_t k = cases::rounded_k(weight_type, plain_k);
        for (const bool zero_points : {false, true}) {
          if (zero_points && weight_type != DType::kG4) continue;
          const auto w = packed(test_device(), cases::random_weight_of(weight_type, n, k, 5, 0, zero_points), type);
          for (const int64_t rows : counts) {
            const bool large = rows == 8 || rows == 64 || rows == 200;
            if (n > 1000 && rows != 1 && rows != 9 && (!large || k < 1000)) continue;
            const auto want = products_of(*w, type, rows, 3), got = products_of(*w, type, rows, 8);
            ASSERT_EQ(got.size(), want.size());
            for (size_t i = 0; i < got.size(); ++i) {
              EXPECT_EQ(got[i], want[i]) << product_text(weight_type, type, n, k) << (zero_points ? " zero points" : "")
                                         << ", " << rows << " rows, product " << i;
            }
          }
        }
      }
    }
  }
}

// Few rows of Q4_0 split a scale into two numbers, which must not show.
TEST(GpuLinearQuantised, ScalesAtTheEndsOfTheirRangeHaveThePortableKernelsBits) {
  const uint16_t scales[] = {0x0000, 0x8000, 0x0001, 0x83ff, 0x0400, 0x7bff, 0xfbff, 0x3fff, 0x7c00, 0xfc00, 0x7e01};
  const int64_t n = 64, k = 512, block = info(DType::kQ4_0).block_bytes, row = k / 32 * block;
  cases::Weight weight = cases::random_weight_of(DType::kQ4_0, n, k, 5);
  for (int64_t i = 0; i < n * row; i += block) {
    std::memcpy(weight.bytes.data() + i, &scales[static_cast<size_t>(i / row) % std::size(scales)], 2);
  }
  for (const DType type : {DType::kF16, DType::kBF16}) {
    const auto w = packed(test_device(), weight, type);
    for (const int64_t rows : {1, 8}) {
      const auto want = products_of(*w, type, rows, 3), got = products_of(*w, type, rows, 8);
      for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], want[i]) << name(type) << ", product " << i;
    }
  }
}

// What the loaded weight says of itself, which decides the kernel: one group is enough for the general one.
TEST(GpuLinearQuantised, ZeroPointsAreSeenWhereAllGroupsHaveThem) {
  const int64_t n = 48, k = 256, group = 64;
  const cases::Weight whole = cases::random_weight_of(DType::kG4, n, k, 5, group, true);
  const auto seen = [&](const cases::Weight& weight) {
    return weight_params(gpu_matrix(packed(test_device(), weight, DType::kBF16).get())).zero_points;
  };
  EXPECT_EQ(seen(whole), 1);
  for (const float scale : {0.01f, 70000.0f, 1e-9f}) {  // more than eleven bits, too large, too small
    cases::Weight other = whole;
    other.scales[100] = scale;
    other.mins[100] = -8 * scale;
    EXPECT_EQ(seen(other), 0) << scale;
  }
  for (const float zero : {-1.0f, 0.5f, 32.0f}) {
    cases::Weight other = whole;
    other.mins[100] = -zero * other.scales[100];
    EXPECT_EQ(seen(other), 0) << zero;
  }
  cases::Weight none = whole;
  none.scales[100] = none.mins[100] = 0.0f;
  EXPECT_EQ(seen(none), 1);
}

// Of two bits: Q2_K, of others Q4_0 or Q8_0.
HopperQuantisedParams quantised_params(int m, int n, int k, bool gated, int bits) {
  HopperQuantisedParams p = {};
  p.linear.epilogue = gated ? kHopperGated : kHopperStore;
  p.linear.m = m;
  p.linear.n = p.weight.n = n;
  p.linear.k = p.weight.k = k;
  p.weight.form = kWeightQuantised;
  p.weight.low_bits = bits;
  p.weight.scheme = bits == 2 ? kSchemeSubScaleMin : kSchemeScale;
  return p;
}

TEST(GpuLinearQuantised, PlansOfFewRowsFitAMultiprocessor) {
  int planned = 0;
  for (const int n : {16, 48, 1024, 4096, 6144, 24576, 28672, 151936}) {
    for (const int k : {64, 576, 4096, 12288, 53248}) {
      for (const int m : {1, 2, 8}) {
        for (const auto& [normed, gated] : {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
          HopperQuantisedParams p = quantised_params(m, n, k, gated, 4);
          p.linear.normed = normed;
          const HopperLinearPlan plan = hopper_quantised_few_plan(p, 132);
          if (plan.kernel == KernelId::kNone) continue;
          planned++;
          SCOPED_TRACE(std::to_string(n) + "x" + std::to_string(k) + ", " + std::to_string(m) + " rows");
          EXPECT_LE(plan.dynamic_memory, kHopperMostShared);
          EXPECT_LE(plan.threads, kHopperFewQuantisedThreads);
          EXPECT_EQ(plan.threads, 32 * p.at_once * p.turns);
          EXPECT_LE(plan.grid, std::min(132, p.units));
          EXPECT_LE(p.at_once, kHopperFewAtOnce);
          EXPECT_GE(p.depth, 1);
          EXPECT_LE(p.depth, kHopperPieceDepth);
          // Barriers of warps that take turns, and of pairs of gate and up.
          EXPECT_EQ(p.gate_barrier, p.turns > 1 ? 1 + p.at_once * p.turns : 1);
          EXPECT_LE(p.gate_barrier + (gated ? p.at_once / 2 : 0) - 1, kHopperFewBarriers);
          EXPECT_TRUE(!gated || p.at_once % 2 == 0);
        }
      }
    }
  }
  EXPECT_GT(planned, 250);
}

TEST(GpuLinearQuantised, PlansOfManyRowsFitAMultiprocessor) {
  int planned = 0;
  for (const int n : {16, 48, 1024, 4096, 6144, 24576, 28672, 151936}) {
    for (const int k : {64, 576, 4096, 12288, 53248}) {
      for (const int m : {9, 16, 17, 40, 64, 65, 100, 256}) {
        for (const bool gated : {false, true}) {
          for (const int bits : {2, 4, 8}) {
            HopperQuantisedWideParams wide = {};
            const HopperQuantisedParams& p = wide.product = quantised_params(m, n, k, gated, bits);
            const HopperQuantisedWidePlan plan = hopper_quantised_wide_plan(wide, 132);
            if (plan.launch.kernel == KernelId::kNone) continue;
            planned++;
            SCOPED_TRACE(std::to_string(n) + "x" + std::to_string(k) + ", " + std::to_string(m) + " rows");
            EXPECT_LE(plan.launch.dynamic_memory, kHopperMostShared);
            EXPECT_LE(plan.launch.threads, hopper_quantised_wide_threads(p.turns > 1 ? 32 : 64));
            EXPECT_EQ(plan.launch.threads, 128 * p.at_once * p.turns + 32);
            EXPECT_LE(plan.launch.grid * plan.parts, std::max(132, plan.parts));
            EXPECT_LE(plan.launch.grid, p.units);
            EXPECT_GE(plan.parts * wide.rows, m);
            EXPECT_LT((plan.parts - 1) * wide.rows, m);
            EXPECT_GE(wide.stages, std::max(2, p.turns));
            EXPECT_LE(wide.stages, kHopperQuantisedWideStages);
            EXPECT_GE(p.depth, 1);
            EXPECT_LE(p.depth, kHopperPieceDepth);
          }
        }
      }
    }
  }
  EXPECT_GT(planned, 1500);
}

TEST(GpuLinearQuantised, PlansOfExpertsFitAMultiprocessor) {
  int planned = 0;
  for (const int n : {16, 48, 768, 1536, 2048, 2880, 5760}) {
    for (const int k : {64, 704, 768, 2048, 2880, 8192}) {
      for (const int m : {8, 16, 32, 64}) {
        for (const bool gated : {false, true}) {
          HopperQuantisedWideParams wide = {};
          const HopperQuantisedParams& p = wide.product = quantised_params(m, n, k, gated, 8);
          const HopperLinearPlan plan = hopper_quantised_experts_plan(wide, 132);
          if (plan.kernel == KernelId::kNone) continue;
          planned++;
          SCOPED_TRACE(std::to_string(n) + "x" + std::to_string(k) + ", tiles of " + std::to_string(m) + " rows");
          EXPECT_LE(plan.dynamic_memory, kHopperMostShared);
          EXPECT_LE(plan.threads, hopper_quantised_wide_threads(m));
          EXPECT_EQ(plan.threads, 128 * p.at_once * p.turns + 32);
          EXPECT_EQ(plan.grid, 132);
          EXPECT_EQ(wide.rows, m);
          EXPECT_EQ(p.units % p.at_once, 0);
          EXPECT_GE(wide.stages, std::max(2, p.turns));
          EXPECT_GE(p.depth, 1);
        }
      }
    }
  }
  EXPECT_GT(planned, 250);
}

// A GPU's own variants and its library serve rows on 16 bytes, the portable kernels the others.
TEST(GpuLinearRows, EveryNumberOfRowsHasThePortableKernelsBits) {
  const bool real = test_device().device().info().api != Api::kEmulator;
  const std::vector<int64_t> counts =
      real ? std::vector<int64_t>{1, 8, 16, 17, 32, 33, 48, 63, 64, 65, 96, 127, 128, 129, 136, 200, 248, 256, 257}
           : std::vector<int64_t>{33};
  struct Shape {
    int64_t n, k;
  };
  const std::vector<int64_t> wide_counts = {17, 41, 64, 65, 90, 128};
  // Tiles of every width, the last one in part; K that ends inside a stage.
  std::vector<Shape> shapes = {{48, 80}};
  if (real)
    shapes = {{208, 576},    {1008, 1072}, {1520, 336},  {2096, 1040}, {3056, 208},  {4080, 272},
              {4096, 4112},  {6128, 144},  {8432, 1104}, {12336, 144}, {16800, 656}, {20880, 144},
              {25264, 1040}, {29504, 80},  {33600, 400}, {24, 2048}};
  for (const DType type : {DType::kF16, DType::kBF16}) {
    for (const Shape& shape : shapes) {
      const auto w = packed(test_device(), cases::random_weight_of(type, shape.n, shape.k, 5), type);
      for (const int64_t rows : shape.n > 13000 ? wide_counts : counts) {
        const auto want = products_of(*w, type, rows, 3), got = products_of(*w, type, rows, 8);
        ASSERT_EQ(got.size(), want.size());
        for (size_t i = 0; i < got.size(); ++i) {
          EXPECT_EQ(got[i], want[i]) << product_text(type, type, shape.n, shape.k) << ", " << rows << " rows, product "
                                     << i;
        }
      }
    }
  }
}

TEST(GpuLinearTall, PlansCoverEveryRowAndFitTheChip) {
  constexpr int kUnits = 132, kMostMemory = 227 * 1024;
  int planned = 0;
  for (const int epilogue : {kHopperStore, kHopperStoreF32, kHopperResidual, kHopperGated}) {
    for (int n = 16; n <= 34000; n += n < 4480 ? 16 : 160) {
      for (int m = 1; m <= 300; ++m) {
        HopperLinearParams p = {};
        p.m = m;
        p.n = n;
        p.k = 4096;
        p.epilogue = epilogue;
        p.out_stride = n;
        const HopperTallPlan plan = hopper_tall_plan(p, false, kUnits);
        if (plan.kernel == KernelId::kNone) continue;
        ++planned;
        const auto* tile = std::find_if(std::begin(kHopperTallTiles), std::end(kHopperTallTiles),
                                        [&](const HopperTallTile& one) { return one.kernel == plan.kernel; });
        ASSERT_NE(tile, std::end(kHopperTallTiles));
        const int parts = plan.layers * tile->peers, tiles = (n + plan.w_rows - 1) / plan.w_rows;
        ASSERT_TRUE(is_wide(*tile) ? plan.w_rows <= tile->w_rows && plan.w_rows % 16 == 0
                                   : plan.w_rows == tile->w_rows);
        ASSERT_TRUE(plan.grid == tiles * parts && plan.grid <= kUnits * plan.launches) << m << " " << n;
        ASSERT_TRUE(plan.launches == 1 || (m <= 16 && plan.launches == 2 && !plan.beats_library)) << m << " " << n;
        ASSERT_TRUE(plan.rows % 8 == 0 && plan.rows <= tile->x_rows && plan.rows * parts >= m) << m << " " << n;
        ASSERT_EQ(plan.w_box * plan.w_box_halves * tile->peers, plan.w_rows) << m << " " << n;
        ASSERT_LE(plan.stages * plan.stage_bytes + kHopperTallBeside, kMostMemory);
        ASSERT_GE(plan.stages, plan.fewest_stages);
        ASSERT_TRUE(epilogue != kHopperResidual || !is_wide(*tile));
      }
    }
  }
  EXPECT_GT(planned, 0);
}

// Which way a product goes on a Hopper: beside the library and without it.
TEST(GpuLinearTall, ServesWhatItIsQuickerAtAndAllThatItFitsWithoutTheLibrary) {
  struct Case {
    int64_t n, k, rows;
    bool residual;
    const char *beside, *without;  // what is launched
  };
  const char* const n32 = "hopper_linear_bf16_tall_n32_pair";
  const char* const n64 = "hopper_linear_bf16_tall_n64_pair";
  const char* const across = "hopper_linear_bf16_tall_across_pair";
  const char* const n128 = "hopper_linear_bf16_tall_n128";
  const char* const n192_m128 = "hopper_linear_bf16_tall_n192_m128";
  const char* const twice = "hopper_linear_bf16_tall_n48 hopper_linear_bf16_tall_n48";
  const char* const portable = "linear_bf16_many";
  const Case cases_[] = {{1024, 64, 256, false, n32, n32},
                         {2048, 64, 100, false, n32, n32},
                         {2048, 64, 256, false, "library", n64},
                         {2048, 64, 256, true, n64, n64},
                         {4096, 8192, 256, false, across, across},
                         {4096, 64, 256, false, "library", across},
                         {4096, 64, 256, true, across, across},
                         {4096, 64, 257, true, "library linear_finish_bf16", portable},
                         {8192, 64, 256, false, "library", portable},
                         {12352, 64, 1, false, twice, twice},
                         {12352, 64, 16, true, twice, twice},
                         {12352, 64, 17, false, n128, n128},
                         {12352, 64, 64, false, "library", n128},
                         {12352, 64, 64, true, "library linear_finish_bf16", portable},
                         {12352, 64, 65, false, "library", portable},
                         {24576, 64, 65, false, "library", n192_m128}};
  for (const Case& c : cases_) {
    for (const bool library : {true, false}) {
      std::vector<std::string> notes;
      auto owned = std::make_unique<RecordingDevice>(notes);
      owned->has_library = library;
      TestDevice device(std::make_unique<GpuBackend>(std::move(owned)));
      const std::vector<std::byte> zeros(static_cast<size_t>(c.n * c.k * 2));
      const RawMatrix raw{DType::kBF16, c.n, c.k, zeros.data()};
      const auto weight = packed(device, {&raw, 1}, DType::kBF16);
      LinearArgs args{device.room(c.rows, c.k, DType::kBF16, 8), weight.get(), nullptr,
                      device.room(c.rows, c.n, c.residual ? DType::kF32 : DType::kBF16, 8)};
      if (c.residual) args.residual = args.out;
      notes.clear();
      device.ops().linear(args);
      std::string launched;
      for (const std::string& note : notes) launched += (launched.empty() ? "" : " ") + note;
      EXPECT_EQ(launched, library ? c.beside : c.without) << c.n << "x" << c.k << ", " << c.rows << " rows";
    }
  }
}

TEST(GpuLinearJoined, ColumnsInAnotherOrderAreGatheredFirst) {
  for (const DType type : kTypes) {
    const int64_t n = 24, k = 64;
    const auto weight = cases::random_weight_of(DType::kG4, n, k, 5, 32);
    const HostMatrix x(3, k, type, 3);
    HostMatrix ordered = x;
    std::vector<int32_t> columns;
    for (int64_t i = 0; i < k; ++i) columns.push_back(static_cast<int32_t>((i * 37 + 5) % k));
    for (int64_t m = 0; m < 3; ++m) {
      for (int64_t i = 0; i < k; ++i) ordered.at(m, i) = x.at(m, columns[static_cast<size_t>(i)]);
    }
    const auto w = packed(test_device(), weight, type);
    const auto run = [&](const HostMatrix& rows, bool by_columns) {
      TestDevice& device = test_device();
      LinearArgs args{device.put(rows), w.get(), nullptr, device.room(3, n, type)};
      if (by_columns) args.columns = {device.put(columns), columns.size()};
      device.ops().linear(args);
      return device.rows_of(args.out);
    };
    EXPECT_EQ(run(x, true), run(ordered, false)) << name(type);
    test_device().clear();
  }
}

TEST(GpuPack, PartsAndRowMapsConcatenateAlongN) {
  for (const DType type : {DType::kBF16, DType::kF32, DType::kQ8_0, DType::kQ6_K, DType::kG8}) {
    for (const int64_t plain_k : {64, 67}) {
      const int64_t k = is_quantised(type) ? cases::rounded_k(type, 64) : plain_k, n0 = 9, n1 = 30;
      const auto w0 = cases::random_weight_of(type, n0, k, 1), w1 = cases::random_weight_of(type, n1, k, 2);
      std::vector<int32_t> map, tokens;
      for (int32_t i = 0; i < n1; ++i) map.push_back((i * 7 + 3) % static_cast<int32_t>(n1));
      for (int32_t i = 0; i < n0 + n1; ++i) tokens.push_back(i);
      RawMatrix parts[] = {w0.raw(), w1.raw()};
      parts[1].row_map = map;
      size_t consumed = 0;
      PackOptions options;
      options.consumed = [&](std::span<const std::byte> bytes) { consumed += bytes.size(); };
      TestDevice& device = test_device();
      const auto both = device.ops().pack(parts, options);
      ASSERT_TRUE(both.ok());
      EXPECT_EQ(consumed, w0.bytes.size()) << "mapped rows wait";
      const Tensor out = device.room(n0 + n1, k, DType::kF32);
      device.ops().embedding({both->get(), {device.put(tokens), tokens.size()}, 1.0f, out});
      const std::vector<float> got = floats_of(device.rows_of(out), DType::kF32);
      const std::vector<float> v0 = oracle::weight_values(w0.raw()), v1 = oracle::weight_values(w1.raw());
      for (int64_t row = 0; row < n0 + n1; ++row) {
        const float* want = row < n0 ? v0.data() + row * k : v1.data() + map[static_cast<size_t>(row - n0)] * k;
        ASSERT_EQ(std::memcmp(got.data() + row * k, want, static_cast<size_t>(4 * k)), 0) << name(type) << " " << row;
      }
      device.clear();
    }
  }
}

TEST(GpuPack, StaysCloseToTheFilesSize) {
  for (const DType type : cases::gpu_quant_types()) {
    const auto weight = cases::random_weight_of(type, 64, 1536, 1);
    const auto w = packed(test_device(), weight, DType::kBF16);
    const size_t bytes = weight.bytes.size() + 4 * (weight.scales.size() + weight.mins.size());
    EXPECT_LE(static_cast<double>(w->bytes()), 1.06 * static_cast<double>(bytes)) << name(type);
  }
}

TEST(GpuPack, RefusesWhatTheFileHasWrong) {
  std::vector<std::byte> bytes(1000);
  const RawMatrix ragged{DType::kQ4_K, 1, 128, bytes.data()};
  const auto refused = test_device().ops().pack({&ragged, 1}, {});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, testing::HasSubstr("Q4_K"));
  auto broken = cases::random_weight_of(DType::kG8, 4, 128, 1);
  broken.scales[3] = std::numeric_limits<float>::infinity();
  const RawMatrix raw = broken.raw();
  EXPECT_FALSE(test_device().ops().pack({&raw, 1}, {}).ok());
}

}  // namespace
}  // namespace quire::gpu
