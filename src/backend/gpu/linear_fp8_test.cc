// SPDX-License-Identifier: Apache-2.0
// Weights that stay fp8 (GF8) on a GPU: every op has the bits that it has with the same values in a plain weight.
#include <gtest/gtest.h>

#include <numeric>

#include "backend/gpu/test_device.h"
#include "backend/testing/linear_cases.h"

namespace quire::gpu {
namespace {

constexpr DType kActivations[] = {DType::kF32, DType::kF16, DType::kBF16};

std::unique_ptr<PackedMatrix> packed(const cases::Weight& weight, DType activation) {
  const RawMatrix raw = weight.raw();
  auto out = test_device().ops().pack({&raw, 1}, {.activation = activation});
  EXPECT_TRUE(out.ok());
  return std::move(out).value();
}

// The type that the loader would expand fp8 to.
DType plain_type(DType activation) {
  return activation == DType::kF32 ? DType::kF32 : DType::kBF16;
}

// All forms of a product: plain with a bias, as F32, gated.
std::vector<std::vector<uint8_t>> products(const PackedMatrix& w, DType type, int64_t rows) {
  TestDevice& device = test_device();
  const HostMatrix x(rows, w.k(), type, 3, 1.0f, 8), bias(1, w.n(), DType::kF32, 5);
  std::vector<std::vector<uint8_t>> out;
  const auto run = [&](const LinearArgs& args) {
    device.ops().linear(args);
    out.push_back(device.rows_of(args.out));
  };
  run({device.put(x), &w, device.put(bias).f32(), device.room(rows, w.n(), type)});
  run({device.put(x), &w, nullptr, device.room(rows, w.n(), DType::kF32)});
  const FusedGlu glu;
  LinearArgs gated{device.put(x), &w, nullptr, device.room(rows, w.n() / 2, type)};
  gated.gated = &glu;
  run(gated);
  device.clear();
  return out;
}

std::vector<uint8_t> all_rows(const PackedMatrix& table, DType type, float scale) {
  std::vector<int32_t> tokens(static_cast<size_t>(table.n()));
  std::iota(tokens.begin(), tokens.end(), 0);
  TestDevice& device = test_device();
  const Tensor out = device.room(table.n(), table.k(), type);
  device.ops().embedding({&table, {device.put(tokens), tokens.size()}, scale, out});
  std::vector<uint8_t> bits = device.rows_of(out);
  device.clear();
  return bits;
}

TEST(GpuLinearFp8, HasTheBitsOfTheExpandedWeightForEveryNumberOfRows) {
  const bool real = test_device().device().info().api != Api::kEmulator;
  const std::vector<int64_t> counts =
      real ? std::vector<int64_t>{1, 2, 7, 8, 9, 16, 17, 32, 33, 64, 65, 130, 300} : std::vector<int64_t>{1, 9, 17, 66};
  struct Shape {
    int64_t n, k, group;
  };
  // Blocks of 128, the whole row, and groups of a K that no block of 128 divides.
  for (const Shape& s : {Shape{48, 256, 128}, Shape{64, 416, 416}, Shape{34, 160, 32}, Shape{32, 192, 64}}) {
    const cases::Weight weight = cases::random_weight_of(DType::kGF8, s.n, s.k, 7, s.group);
    for (const DType type : kActivations) {
      const auto kept = packed(weight, type), plain = packed(cases::expanded(weight, plain_type(type)), type);
      for (const int64_t rows : counts) {
        ASSERT_EQ(products(*kept, type, rows), products(*plain, type, rows))
            << name(type) << " activations, n " << s.n << ", k " << s.k << ", group " << s.group << ", " << rows
            << " rows";
      }
    }
  }
}

// All 256 codes with each scale: NaN, zeros of both signs, subnormal numbers, the largest and the smallest scales.
TEST(GpuLinearFp8, EveryCodeHasItsExpandedValue) {
  cases::Weight weight = cases::random_weight_of(DType::kGF8, 16, 256, 7, 256);
  weight.scales = {1.0f,     0.0f,        -0.0f,     -1.7f,     0x1p-9f,    0.3f,      0x1p39f,    -0x1.fffffep39f,
                   0x1p-30f, 0x1.5p-126f, 0x1p-149f, 0x1p-140f, 0x1.01p-8f, 0x1.8p-7f, 0x1.81p-7f, 0x1.234568p-3f};
  for (size_t i = 0; i < weight.bytes.size(); ++i) weight.bytes[i] = static_cast<std::byte>(i % 256);
  for (const DType type : kActivations) {
    const auto kept = packed(weight, type), plain = packed(cases::expanded(weight, plain_type(type)), type);
    for (const float scale : {1.0f, 1.7f}) {
      EXPECT_EQ(all_rows(*kept, type, scale), all_rows(*plain, type, scale)) << name(type) << " scale " << scale;
    }
  }
}

TEST(GpuLinearFp8, TakesRowsOfPartsInAnyOrder) {
  const cases::Weight first = cases::random_weight_of(DType::kGF8, 20, 256, 7, 128),
                      second = cases::random_weight_of(DType::kGF8, 21, 256, 9, 128);
  std::vector<int32_t> map(21);
  for (int32_t i = 0; i < 21; ++i) map[static_cast<size_t>(i)] = 20 - i;
  const auto joined = [&](const cases::Weight& a, const cases::Weight& b) {
    RawMatrix parts[] = {a.raw(), b.raw()};
    parts[1].row_map = map;
    auto out = test_device().ops().pack(parts, {.activation = DType::kBF16});
    EXPECT_TRUE(out.ok());
    return all_rows(*std::move(out).value(), DType::kBF16, 1.0f);
  };
  EXPECT_EQ(joined(first, second), joined(cases::expanded(first, DType::kBF16), cases::expanded(second, DType::kBF16)));
}

TEST(GpuLinearFp8, TakesOneBytePerWeight) {
  const cases::Weight weight = cases::random_weight_of(DType::kGF8, 64, 1024, 7, 128);
  const auto kept = packed(weight, DType::kBF16), plain = packed(cases::expanded(weight, DType::kBF16), DType::kBF16);
  EXPECT_EQ(kept->bytes(), 64u * 1024 + 64 * 8 * sizeof(float));
  EXPECT_EQ(plain->bytes(), 64u * 1024 * 2);
}

TEST(GpuLinearFp8, RefusesScalesThatNoWeightHas) {
  for (const float scale : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 0x1p40f}) {
    cases::Weight weight = cases::random_weight_of(DType::kGF8, 4, 128, 1);
    weight.scales[3] = scale;
    const RawMatrix raw = weight.raw();
    EXPECT_FALSE(test_device().ops().pack({&raw, 1}, {}).ok()) << scale;
  }
}

}  // namespace
}  // namespace quire::gpu
