// SPDX-License-Identifier: Apache-2.0
// Block formats against the numbers of the gguf package (tests/goldens/quants.json), and the quantisers against these.
#include "weights/quant.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/half.h"
#include "base/json.h"

namespace quire::weights {
namespace {

std::string from_base64(std::string_view text) {
  static constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    if (c == '=') break;
    bits = bits << 6 | static_cast<uint32_t>(kDigits.find(c));
    count += 6;
    if (count >= 8) out += static_cast<char>(bits >> (count -= 8));
  }
  return out;
}

const DTypeInfo* type_named(std::string_view name) {
  for (const DTypeInfo& row : kGgufDTypes) {
    if (name == row.name) return &row;
  }
  return nullptr;
}

// Every operation of the reference is one rounded float operation in the same order, so the bits are equal.
TEST(Quant, DequantisesTheGoldenBlocksToTheSameBits) {
  const auto text = read_file(QUIRE_SOURCE_DIR "/tests/goldens/quants.json");
  ASSERT_TRUE(text.ok()) << text.error().message;
  const auto root = json::parse(*text);
  ASSERT_TRUE(root.ok());
  int types = 0;
  for (const json::Value& entry : root->find("types")->as_array()) {
    const DTypeInfo* type = type_named(entry.find("type")->as_string());
    ASSERT_NE(type, nullptr);
    const std::string blocks = from_base64(entry.find("blocks")->as_string());
    const std::string values = from_base64(entry.find("values")->as_string());
    const int64_t k = static_cast<int64_t>(blocks.size()) / type->block_bytes * type->block_elems;
    ASSERT_EQ(values.size(), static_cast<size_t>(k) * sizeof(float)) << type->name;
    std::vector<float> expected(static_cast<size_t>(k));
    std::memcpy(expected.data(), values.data(), values.size());
    std::vector<float> got(static_cast<size_t>(k));
    dequantise_row(type->type, reinterpret_cast<const std::byte*>(blocks.data()), got.data(), k);
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(expected[i]))
          << type->name << " element " << i << ": " << got[i] << " instead of " << expected[i];
    }
    ++types;
  }
  EXPECT_EQ(types, kNumGgufDTypes - 3) << "every quantised type has a golden";
}

// The largest error a value may have: half a code's step plus what rounding the sub-scales (6 or 4 bits) and the fp16
// scales adds, as a fraction of the block's largest magnitude. Loose by about two, tight enough to catch a wrong bit.
double allowed_error(DType type) {
  switch (type) {
    case DType::kF32:
      return 0;
    case DType::kF16:
      return 0x1p-11;
    case DType::kBF16:
      return 0x1p-8;
    case DType::kQ8_0:
      return 1.1 / 254;
    case DType::kQ4_0:
      return 1.1 / 8;  // the far end is one step short
    case DType::kQ4_1:
      return 1.1 / 15;
    case DType::kQ5_0:
      return 1.1 / 16;
    case DType::kQ5_1:
      return 1.1 / 31;
    case DType::kQ2_K:
      return 1.6 / 3;
    case DType::kQ3_K:
      return 1.6 / 4;
    case DType::kQ4_K:
      return 1.6 / 15;
    case DType::kQ5_K:
      return 1.6 / 31;
    case DType::kQ6_K:
      return 1.6 / 32;
    case DType::kIQ4_NL:
      return 1.1 * 14 / 127;  // the far end: 113 for 127
    case DType::kIQ4_XS:
      return 1.6 * 14 / 127;
    case DType::kMXFP4:
      return 1.1 * 2 / 8;  // 6 for 8
    default:
      return 0;  // no type of files
  }
}

TEST(Quant, QuantisedRowsComeBackWithinTheTypesStep) {
  std::mt19937 random(11);
  for (const DTypeInfo& type : kGgufDTypes) {
    for (const float scale : {1.0f, 1e-3f, 300.0f}) {
      for (int shape = 0; shape < 4; ++shape) {
        const int64_t k = 512;
        std::normal_distribution<float> normal(shape == 1 ? 2.0f : 0.0f, 1.0f);
        std::vector<float> x(static_cast<size_t>(k));
        for (float& v : x) v = shape == 2 ? scale : shape == 3 ? 0.0f : normal(random) * scale;
        std::vector<std::byte> blocks(static_cast<size_t>(row_bytes(type.type, k)) + 1, std::byte{0xa5});
        quantise_row(type.type, x.data(), blocks.data(), k);
        EXPECT_EQ(blocks.back(), std::byte{0xa5}) << type.name << " wrote past its row";
        std::vector<float> back(static_cast<size_t>(k));
        dequantise_row(type.type, blocks.data(), back.data(), k);
        float largest = 0;
        for (const float v : x) largest = std::max(largest, std::fabs(v));
        for (size_t i = 0; i < x.size(); ++i) {
          ASSERT_LE(std::fabs(back[i] - x[i]), allowed_error(type.type) * largest + 1e-6f)
              << type.name << " element " << i << " scale " << scale << " shape " << shape;
        }
      }
    }
  }
}

// Values that a block can represent must come back exactly at each position: this catches a swapped nibble or bit
// plane.
TEST(Quant, ValuesOnTheGridComeBackExactly) {
  std::mt19937 random(12);
  const auto check = [&](DType type, int low, int high, bool both_ends) {
    const int64_t k = info(type).block_elems;
    for (int round = 0; round < 50; ++round) {
      std::vector<float> x(static_cast<size_t>(k));
      for (float& v : x)
        v = static_cast<float>(low + static_cast<int>(random() % static_cast<uint32_t>(high - low + 1)));
      const int64_t sub = is_quantised(type) && k == 256 ? (type == DType::kQ4_K || type == DType::kQ5_K ? 32 : 16) : k;
      for (int64_t s = 0; s < k; s += sub) {  // every sub-block reaches its ends, so that its scale is 1
        x[static_cast<size_t>(s + static_cast<int64_t>(random() % static_cast<uint32_t>(sub / 2)))] =
            static_cast<float>(low);
        if (both_ends) x[static_cast<size_t>(s + sub - 1)] = static_cast<float>(high);
      }
      std::vector<std::byte> block(static_cast<size_t>(info(type).block_bytes));
      quantise_row(type, x.data(), block.data(), k);
      std::vector<float> back(static_cast<size_t>(k));
      dequantise_row(type, block.data(), back.data(), k);
      for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(back[i], x[i]) << name(type) << " element " << i;
    }
  };
  check(DType::kQ8_0, -127, 127, true);
  check(DType::kQ4_0, -8, 7, false);
  check(DType::kQ4_1, -3, 12, true);
  check(DType::kQ5_0, -16, 15, false);
  check(DType::kQ5_1, -9, 22, true);
  check(DType::kQ3_K, -4, 3, false);
  check(DType::kQ6_K, -32, 31, false);
}

TEST(Quant, ValuesOfTheTablesComeBackExactly) {
  std::mt19937 random(13);
  const auto check = [&](DType type, const int8_t* values, float scale, int lowest) {
    const int64_t k = 256;
    std::vector<float> x(static_cast<size_t>(k)), back(x.size());
    for (float& v : x) v = static_cast<float>(values[random() % 16]) * scale;
    for (size_t i = 0; i < x.size(); i += 32) x[i + random() % 32] = static_cast<float>(lowest) * scale;
    std::vector<std::byte> blocks(static_cast<size_t>(row_bytes(type, k)));
    quantise_row(type, x.data(), blocks.data(), k);
    dequantise_row(type, blocks.data(), back.data(), k);
    for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(back[i], x[i]) << name(type) << " element " << i;
  };
  for (int round = 0; round < 20; ++round) {
    check(DType::kIQ4_NL, kIq4Values, 0.25f, -127);
    check(DType::kIQ4_XS, kIq4Values, 0.25f, -127);
    check(DType::kMXFP4, kFp4Values, 0.5f, -12);
  }
}

TEST(Quant, BlocksOfGptOssBecomeBlocksOfGguf) {
  constexpr int64_t kCount = 3;
  std::vector<std::byte> blocks, scales, out(17 * kCount);
  std::vector<float> want;
  std::mt19937 random(14);
  for (int64_t b = 0; b < kCount; ++b) {
    const int e = 120 + static_cast<int>(b);
    scales.push_back(static_cast<std::byte>(e));
    for (int j = 0; j < 16; ++j) {
      const uint32_t low = random() % 16, high = random() % 16;
      blocks.push_back(static_cast<std::byte>(low | high << 4));
      for (const uint32_t code : {low, high}) {  // e2m1: two bits of exponent, one of mantissa, a sign
        const uint32_t exponent = code / 2 % 4, mantissa = code % 2;
        const float magnitude =
            exponent == 0 ? 0.5f * static_cast<float>(mantissa)
                          : std::ldexp(1.0f + 0.5f * static_cast<float>(mantissa), static_cast<int>(exponent) - 1);
        want.push_back(std::ldexp(code >= 8 ? -magnitude : magnitude, e - 127));
      }
    }
  }
  mxfp4_from_blocks(blocks.data(), scales.data(), kCount, out.data());
  std::vector<float> got(want.size());
  dequantise_row(DType::kMXFP4, out.data(), got.data(), 32 * kCount);
  EXPECT_EQ(got, want);
}

TEST(Quant, EachBitOfThePackedSubScalesBelongsToOne) {
  for (int bit = 0; bit < 96; ++bit) {
    uint8_t scales[12] = {};
    scales[bit / 8] = static_cast<uint8_t>(1 << (bit % 8));
    int owners = 0;
    for (int s = 0; s < 8; ++s) {
      const ScaleMin sub = unpack_scale_min_k4(scales, s);
      owners += (sub.scale != 0) + (sub.min != 0);
    }
    ASSERT_EQ(owners, 1) << bit;
    owners = 0;
    for (int s = 0; s < 16; ++s) owners += unpack_scale_q3_k(scales, s) != -32;
    ASSERT_EQ(owners, 1) << bit;
  }
}

}  // namespace
}  // namespace quire::weights
