// SPDX-License-Identifier: Apache-2.0
// Quantised checkpoints: every format packed by its published rules (and by its own library: goldens), the expected
// values, and invalid files.
#include "weights/quantised.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "base/half.h"
#include "weights/safetensors.h"
#include "weights/test_files.h"

namespace quire::weights {
namespace {

using testing::append;
using testing::exact_copy;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::safetensors_file;
using Tensors = std::vector<testing::SafetensorsTensor>;

std::shared_ptr<const SafetensorsSource> source_of(const Tensors& tensors) {
  const auto copy = exact_copy(safetensors_file(tensors));
  auto source = SafetensorsSource::parse(*copy, "test.safetensors", copy);
  EXPECT_TRUE(source.ok()) << source.error().message;
  return std::move(source).value();
}

QuantScheme scheme_of(const char* config) {
  const auto json = json::parse(config);
  EXPECT_TRUE(json.ok()) << json.error().message;
  auto scheme = parse_quantisation(*json);
  EXPECT_TRUE(scheme.ok()) << scheme.error().message;
  return scheme.ok() ? std::move(scheme).value() : QuantScheme{};
}

QuantRequest ask(int64_t n, int64_t k) {
  QuantRequest r;
  r.prefix = "m";
  r.n = n;
  r.k = k;
  return r;
}

LoadedMatrix load(const Tensors& tensors, const QuantScheme& scheme, const QuantRequest& request) {
  const auto source = source_of(tensors);
  EXPECT_TRUE(scheme.applies_to(*source, request.prefix));
  auto loaded = load_quantised(*source, scheme, request);
  EXPECT_TRUE(loaded.ok()) << loaded.error().message;
  return loaded.ok() ? std::move(loaded).value() : LoadedMatrix{};
}

// Bit by bit: element i starts at bit i*b, low bits first, in words of 32 bits.
std::string packed(const std::vector<int>& codes, int bits) {
  std::vector<uint32_t> words((codes.size() * static_cast<size_t>(bits) + 31) / 32);
  for (size_t i = 0; i < codes.size(); ++i) {
    for (size_t b = 0; b < static_cast<size_t>(bits); ++b) {
      const size_t at = i * static_cast<size_t>(bits) + b;
      words[at / 32] |= static_cast<uint32_t>((codes[i] >> b) & 1) << (at % 32);
    }
  }
  std::string out;
  for (const uint32_t w : words) append(out, w);
  return out;
}
std::string words_of(std::initializer_list<uint32_t> words) {
  std::string out;
  for (const uint32_t w : words) append(out, w);
  return out;
}
template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  std::string out;
  for (const T v : values) append(out, v);
  return out;
}

// A matrix of codes [n, k] with scales and zeros [n, groups]: what every integer format represents.
struct Integers {
  Integers(int64_t n, int64_t k, int bits, int64_t group, uint32_t seed)
      : n(n), k(k), bits(bits), group(group), groups((k + group - 1) / group), random(seed) {
    for (int64_t i = 0; i < n * k; ++i) codes.push_back(draw(1 << bits));
    for (int64_t i = 0; i < n * groups; ++i) {
      scales.push_back(float_to_fp16(0.002f * static_cast<float>(1 + draw(900))));
      zeros.push_back(draw(1 << bits));
    }
    for (int64_t i = 0; i < k; ++i) group_of.push_back(static_cast<int32_t>(i / group));
  }
  int draw(int below) { return static_cast<int>(random() % static_cast<uint32_t>(below)); }
  int code(int64_t row, int64_t i) const { return codes[static_cast<size_t>(row * k + i)]; }
  // (code - zero) * scale, exact.
  double value(int64_t row, int64_t i) const {
    const auto at = static_cast<size_t>(row * groups + group_of[static_cast<size_t>(i)]);
    return (code(row, i) - zeros[at]) * static_cast<double>(fp16_to_float(scales[at]));
  }
  template <typename T>
  std::vector<T> by_group(const std::vector<T>& rows) const {  // from [n, groups] to [groups, n]
    std::vector<T> out;
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t row = 0; row < n; ++row) out.push_back(rows[static_cast<size_t>(row * groups + g)]);
    }
    return out;
  }
  // The words of rows of `length` codes, each row padded to whole words.
  static std::string pack_rows(const std::vector<int>& codes, size_t length, int bits) {
    std::string out;
    for (size_t at = 0; at < codes.size(); at += length) {
      out += packed(
          {codes.begin() + static_cast<std::ptrdiff_t>(at), codes.begin() + static_cast<std::ptrdiff_t>(at + length)},
          bits);
    }
    return out;
  }
  void expect(const LoadedMatrix& got) const {
    const auto values = got.values();
    ASSERT_EQ(std::ssize(values), n * k);
    for (int64_t i = 0; i < n * k; ++i) {
      // Products of fp16 scales are exact in floats; what is left is one rounding of the sum.
      const double want = value(i / k, i % k);
      ASSERT_NEAR(static_cast<double>(values[static_cast<size_t>(i)]), want, std::fabs(want) * 0x1p-23)
          << "row " << i / k << " column " << i % k << " of " << bits << " bits, groups of " << group;
    }
  }

  int64_t n, k;
  int bits;
  int64_t group, groups;
  std::mt19937 random;
  std::vector<int> codes, zeros;
  std::vector<uint16_t> scales;
  std::vector<int32_t> group_of;
};

// Words transposed, from rows of words to columns.
std::string transposed_words(const std::string& words, size_t rows) {
  const size_t columns = words.size() / 4 / rows;
  std::string out;
  for (size_t c = 0; c < columns; ++c) {
    for (size_t r = 0; r < rows; ++r) out += words.substr(4 * (r * columns + c), 4);
  }
  return out;
}

Tensors mlx_tensors(const Integers& m) {
  std::vector<uint16_t> biases;
  for (size_t i = 0; i < m.scales.size(); ++i) {
    biases.push_back(float_to_fp16(-fp16_to_float(m.scales[i]) * static_cast<float>(m.zeros[i])));
  }
  return {{"m.weight", "U32", {m.n, m.k * m.bits / 32}, Integers::pack_rows(m.codes, static_cast<size_t>(m.k), m.bits)},
          {"m.scales", "F16", {m.n, m.groups}, bytes_of(m.scales)},
          {"m.biases", "F16", {m.n, m.groups}, bytes_of(biases)}};
}

Tensors awq_tensors(const Integers& m) {
  const auto interleaved = [&](const std::vector<int>& rows, int64_t length) {  // rows of n codes, in words of eight
    std::vector<int> out;
    for (size_t at = 0; at < rows.size(); at += 8) {
      for (const size_t column : {0, 2, 4, 6, 1, 3, 5, 7}) out.push_back(rows[at + column]);
    }
    return Integers::pack_rows(out, static_cast<size_t>(length), 4);
  };
  std::vector<int> by_input;
  for (int64_t i = 0; i < m.k; ++i) {
    for (int64_t row = 0; row < m.n; ++row) by_input.push_back(m.code(row, i));
  }
  return {{"m.qweight", "I32", {m.k, m.n / 8}, interleaved(by_input, m.n)},
          {"m.qzeros", "I32", {m.groups, m.n / 8}, interleaved(m.by_group(m.zeros), m.n)},
          {"m.scales", "F16", {m.groups, m.n}, bytes_of(m.by_group(m.scales))}};
}

Tensors gptq_tensors(const Integers& m, bool zeros_minus_one) {
  const std::string rows = Integers::pack_rows(m.codes, static_cast<size_t>(m.k), m.bits);
  std::vector<int> zeros = m.by_group(m.zeros);
  for (int& z : zeros) z -= zeros_minus_one ? 1 : 0;
  return {
      {"m.qweight", "I32", {m.k * m.bits / 32, m.n}, transposed_words(rows, static_cast<size_t>(m.n))},
      {"m.qzeros", "I32", {m.groups, m.n * m.bits / 32}, Integers::pack_rows(zeros, static_cast<size_t>(m.n), m.bits)},
      {"m.scales", "F16", {m.groups, m.n}, bytes_of(m.by_group(m.scales))},
      {"m.g_idx", "I32", {m.k}, bytes_of(m.group_of)}};
}

Tensors compressed_tensors(const Integers& m, bool symmetric) {
  const int64_t words = (m.k * m.bits + 31) / 32, zero_words = (m.n * m.bits + 31) / 32;
  const std::string by_group =
      Integers::pack_rows(m.by_group(m.zeros), static_cast<size_t>(m.n), m.bits);  // [groups, words]
  Tensors out = {
      {"m.weight_packed", "I32", {m.n, words}, Integers::pack_rows(m.codes, static_cast<size_t>(m.k), m.bits)},
      {"m.weight_scale", "F16", {m.n, m.groups}, bytes_of(m.scales)},
      {"m.weight_shape", "I64", {2}, bytes_of(std::vector<int64_t>{m.n, m.k})}};
  if (!symmetric) {
    out.push_back({"m.weight_zero_point",
                   "I32",
                   {zero_words, m.groups},
                   transposed_words(by_group, static_cast<size_t>(m.groups))});
  }
  return out;
}

constexpr const char* kAwq = R"({"quantization_config": {"quant_method": "awq", "bits": 4, "version": "gemm"}})";
constexpr const char* kCompressed =
    R"({"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": []}})";

std::string mlx_config(int bits, int64_t group) {
  return R"({"quantization": {"group_size": )" + std::to_string(group) + R"(, "bits": )" + std::to_string(bits) + "}}";
}
std::string gptq_config(int bits, const std::string& format) {
  return R"({"quantization_config": {"quant_method": "gptq", "bits": )" + std::to_string(bits) +
         R"(, "checkpoint_format": ")" + format + R"("}})";
}

// Made by mlx 0.32: mx.quantize of one row of 32 elements, and mx.dequantize of the result.
TEST(Quantised, UnpacksWhatMlxPacked) {
  struct Golden {
    int bits;
    std::string words;
    float scale;
    std::vector<float> values;
  };
  const Golden goldens[] = {
      {2,
       words_of({0xe3d47eff, 0xaab7578d}),
       3.09375f,
       {3.09375f, 3.09375f, 3.09375f, 3.09375f, 0, 3.09375f, 3.09375f, -3.09375f, -6.1875f}},
      {3,
       words_of({0x905f5f6f, 0x7871f07e, 0x9649d64d}),
       1.546875f,
       {4.640625f,  1.546875f, 1.546875f,  4.640625f, 1.546875f, 3.09375f,  4.640625f,  -3.09375f,
        -6.1875f,   -3.09375f, -3.09375f,  4.640625f, 4.640625f, -6.1875f,  0,          4.640625f,
        -4.640625f, 3.09375f,  -4.640625f, 0,         4.640625f, -3.09375f, -1.546875f, -3.09375f}},
      {5,
       words_of({0xf32eda9e, 0xde25423e, 0x9344d401, 0x174ad5a7, 0x94e0f77d}),
       0.38671875f,
       {5.4140625f,  1.546875f,   2.3203125f,   5.02734375f, 0.7734375f,  3.48046875f, 4.25390625f, -3.48046875f,
        -5.4140625f, -2.3203125f, -2.70703125f, 4.640625f,   5.02734375f, -6.1875f,    0,           3.8671875f,
        -4.640625f,  3.8671875f,  -4.640625f,   -0.38671875f}},
      {6,
       words_of({0xa5eaca3c, 0x24c33b5c, 0xd6003be1, 0xf4787cc8, 0xf42e4564, 0x8e581e73}),
       0.193359375f,
       {5.4140625f, 1.546875f, 2.3203125f, 5.02734375f, 0.966796875f, 3.48046875f, 4.060546875f, -3.48046875f,
        -5.607421875f, -2.513671875f, -2.70703125f, 4.640625f, 5.220703125f, -6.1875f}},
  };
  for (const Golden& g : goldens) {
    const Tensors tensors = {{"m.weight", "U32", {1, g.bits}, g.words},
                             {"m.scales", "F32", {1, 1}, bytes_of<float>({g.scale})},
                             {"m.biases", "F32", {1, 1}, bytes_of<float>({-6.1875f})}};
    const LoadedMatrix got = load(tensors, scheme_of(mlx_config(g.bits, 32).c_str()), ask(1, 32));
    EXPECT_EQ(got.dtype, g.bits <= 4 ? DType::kG4 : DType::kG8);
    const auto values = got.values();
    for (size_t i = 0; i < g.values.size(); ++i) EXPECT_EQ(values[i], g.values[i]) << g.bits << " bits, element " << i;
  }
  const Tensors fp4 = {{"m.weight", "U32", {1, 4}, words_of({0xb4314225, 0x40d54bad, 0xbaa40c4c, 0x110095b3})},
                       {"m.scales", "U8", {1, 1}, std::string(1, '\x80')}};
  const LoadedMatrix got =
      load(fp4, scheme_of(R"({"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}})"), ask(1, 32));
  EXPECT_EQ(got.dtype, DType::kMXFP4);
  EXPECT_EQ(got.values(), (std::vector<float>{6,  2, 2,  4, 1, 3,  4,  -3, -6, -2, -3, 4,  6, -6, 0, 4,
                                              -4, 4, -4, 0, 4, -2, -2, -3, 3,  -3, 6,  -1, 0, 0,  1, 1}));
}

// Made by compressed-tensors 0.20: pack_to_int32 of two rows of codes, and of zero points down the columns.
TEST(Quantised, UnpacksWhatCompressedTensorsPacked) {
  const int codes[2][8] = {{2, 0, 1, -5, 0, 0, -8, -3}, {4, -7, -5, 2, -3, 0, 6, -7}};
  const Tensors tensors = {
      {"m.weight_packed",
       "I32",
       {2, 4},
       words_of({0x5088398a, 0x5a99ba3d, 0xe7dc4067, 0xf226a1a8, 0x1e85a31c, 0xb87eb8ad, 0x1e450fb1, 0x067c4ef5})},
      {"m.weight_scale", "BF16", {2, 1}, bytes_of<uint16_t>({float_to_bf16(0.5f), float_to_bf16(2.0f)})}};
  const auto values = load(tensors, scheme_of(kCompressed), ask(2, 32)).values();
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(values[i], 0.5f * static_cast<float>(codes[0][i]));
    EXPECT_EQ(values[32 + i], 2.0f * static_cast<float>(codes[1][i]));
  }
  // Nine rows of two groups: zero points fill one word and begin a second.
  const int zeros[9][2] = {{-8, 1}, {-6, -4}, {7, -3}, {0, 0}, {-1, -3}, {5, 6}, {-7, -7}, {-7, -3}, {-3, -1}};
  const Tensors asymmetric = {{"m.weight_packed", "I32", {9, 8}, std::string(9 * 32, '\x88')},  // all codes 0
                              {"m.weight_scale", "F32", {9, 2}, bytes_of(std::vector<float>(18, 1.0f))},
                              {"m.weight_zero_point", "I32", {2, 2}, words_of({0x11d78f20, 0x51e58549, 0x5, 0x7})}};
  const auto offset = load(asymmetric, scheme_of(kCompressed), ask(9, 64)).values();
  for (size_t row = 0; row < 9; ++row) {
    EXPECT_EQ(offset[row * 64], static_cast<float>(-zeros[row][0]));
    EXPECT_EQ(offset[row * 64 + 63], static_cast<float>(-zeros[row][1]));
  }
  // Three bits, across words.
  const int three[] = {-2, -1, 0, 0, -1, -1, -4, 3, -4, -4, -4, -2, -2, -1, 3, -4, 3, 1, 1, 2, -4, 1, -3, 0, -3};
  const Tensors dense = {{"m.weight_packed", "I32", {1, 3}, words_of({0x00e1b91a, 0x8d6f1da4, 0x0a44a186})},
                         {"m.weight_scale", "F32", {1}, bytes_of<float>({1.0f})}};
  const auto of_three = load(dense, scheme_of(kCompressed), ask(1, 32)).values();
  for (size_t i = 0; i < std::size(three); ++i) EXPECT_EQ(of_three[i], static_cast<float>(three[i]));
}

TEST(Quantised, ReadsEveryBitWidthAndGroupOfMlx) {
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    for (const int64_t group : {32, 64, 128}) {
      const Integers m(5, 3 * group, bits, group, static_cast<uint32_t>(bits));
      const Tensors tensors = mlx_tensors(m);
      const LoadedMatrix got = load(tensors, scheme_of(mlx_config(bits, group).c_str()), ask(m.n, m.k));
      EXPECT_EQ(got.dtype, bits <= 4 ? DType::kG4 : DType::kG8);
      EXPECT_EQ(got.group, group);
      EXPECT_EQ(got.raw().scales, got.scales.data());
      const auto values = got.values();
      for (int64_t i = 0; i < m.n * m.k; ++i) {
        const auto at = static_cast<size_t>(i / m.k * m.groups + i % m.k / group);
        const float scale = fp16_to_float(m.scales[at]);
        const float bias = fp16_to_float(float_to_fp16(-scale * static_cast<float>(m.zeros[at])));
        const double want = static_cast<double>(scale) * m.codes[static_cast<size_t>(i)] + static_cast<double>(bias);
        ASSERT_NEAR(static_cast<double>(values[static_cast<size_t>(i)]), want, 0x1p-20);
      }
      EXPECT_EQ(got.tensors, (std::vector<std::string>{"m.weight", "m.scales", "m.biases"}));
    }
  }
}

TEST(Quantised, MlxModulesMayDiffer) {
  const Integers eight(3, 64, 8, 64, 1);
  const auto scheme = scheme_of(
      R"({"quantization": {"group_size": 32, "bits": 4, "m": {"group_size": 64, "bits": 8}, "plain": false}})");
  EXPECT_EQ(load(mlx_tensors(eight), scheme, ask(3, 64)).dtype, DType::kG8);
  Tensors plain = mlx_tensors(eight);
  for (auto& t : plain) t.name = "plain" + t.name.substr(1);
  EXPECT_FALSE(scheme.applies_to(*source_of(plain), "plain"));
}

TEST(Quantised, ReadsAwq) {
  for (const int64_t group : {32, 128, 24}) {  // 24: no backend has such groups
    const Integers m(40, 2 * group, 4, group, 3);
    const LoadedMatrix got = load(awq_tensors(m), scheme_of(kAwq), ask(m.n, m.k));
    EXPECT_EQ(got.dtype, group == 24 ? DType::kF32 : DType::kG4);
    m.expect(got);
  }
}

TEST(Quantised, ReadsGptqOfAllBitsAndBothFormats) {
  for (const int bits : {2, 3, 4, 8}) {
    for (const bool zeros_minus_one : {true, false}) {
      Integers m(64, 128, bits, 32, static_cast<uint32_t>(bits));
      // A stored zero of -1 is none; the largest zero is one more than a code can be.
      for (size_t i = 0; i < m.zeros.size(); ++i) m.zeros[i] = zeros_minus_one ? m.zeros[i] + 1 : m.zeros[i];
      const auto scheme = scheme_of(gptq_config(bits, zeros_minus_one ? "gptq" : "gptq_v2").c_str());
      const LoadedMatrix got = load(gptq_tensors(m, zeros_minus_one), scheme, ask(m.n, m.k));
      EXPECT_EQ(got.dtype, bits <= 4 ? DType::kG4 : DType::kG8);
      EXPECT_TRUE(got.column_order.empty());
      m.expect(got);
      EXPECT_THAT(got.tensors, ::testing::UnorderedElementsAre("m.qweight", "m.qzeros", "m.scales", "m.g_idx"));
      const auto mixed = scheme_of((R"({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128,
          "dynamic": {"+:m": {"group_size": 32}}, "checkpoint_format": )" +
                                    std::string(zeros_minus_one ? R"("gptq"}})" : R"("gptq_v2"}})"))
                                       .c_str());
      m.expect(load(gptq_tensors(m, zeros_minus_one), mixed, ask(m.n, m.k)));
    }
  }
}

TEST(Quantised, GptqMayTakeWholeRowsAndPartialGroups) {
  const Integers row(32, 96, 4, 96, 5);
  auto scheme = scheme_of(
      R"({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": -1, "checkpoint_format": "gptq_v2"}})");
  const LoadedMatrix whole = load(gptq_tensors(row, false), scheme, ask(32, 96));
  EXPECT_EQ(whole.group, 96);
  row.expect(whole);
  const Integers partial(32, 96, 4, 64, 5);
  scheme.group = 64;
  Tensors tensors = gptq_tensors(partial, false);
  for (const bool with_index : {true, false}) {
    if (!with_index) tensors.pop_back();
    const LoadedMatrix rest = load(tensors, scheme, ask(32, 96));
    EXPECT_EQ(rest.dtype, DType::kF32);
    partial.expect(rest);
  }
}

TEST(Quantised, ActOrderBringsGroupsTogetherAndSaysHow) {
  for (const int bits : {4, 8}) {
    Integers m(16, 96, bits, 32, 7);
    std::shuffle(m.group_of.begin(), m.group_of.end(), m.random);
    const auto scheme = scheme_of(gptq_config(bits, "gptq_v2").c_str());
    const LoadedMatrix got = load(gptq_tensors(m, false), scheme, ask(16, 96));
    EXPECT_EQ(got.dtype, bits == 4 ? DType::kG4 : DType::kG8);
    m.expect(got);
    // Column j of the codes is column column_order[j] of the file, and its group is j / 32.
    ASSERT_EQ(std::ssize(got.column_order), 96);
    for (size_t j = 0; j < 96; ++j) {
      const auto byte = static_cast<int>(got.data[bits == 4 ? j / 2 : j]);
      const int code = bits == 8 ? byte : (byte >> (4 * (j % 2))) & 15;
      EXPECT_EQ(code, m.code(0, got.column_order[j]));
      EXPECT_EQ(m.group_of[static_cast<size_t>(got.column_order[j])], static_cast<int32_t>(j / 32));
    }
    QuantRequest fixed = ask(16, 96);
    fixed.may_reorder = false;
    const LoadedMatrix plain = load(gptq_tensors(m, false), scheme, fixed);
    EXPECT_EQ(plain.dtype, DType::kF32);
    EXPECT_TRUE(plain.column_order.empty());
    m.expect(plain);
    // Groups of unequal size cannot stand together in runs of 32.
    m.group_of.assign(96, 0);
    m.group_of[50] = 2;
    const LoadedMatrix torn = load(gptq_tensors(m, false), scheme, ask(16, 96));
    EXPECT_EQ(torn.dtype, DType::kF32);
    m.expect(torn);
  }
}

TEST(Quantised, ReadsPackedCompressedTensors) {
  for (const int bits : {2, 3, 4, 6, 8}) {
    for (const int64_t group : {32, 96}) {
      for (const bool symmetric : {true, false}) {
        Integers m(7, 96, bits, group, static_cast<uint32_t>(bits));
        if (symmetric) std::fill(m.zeros.begin(), m.zeros.end(), 1 << (bits - 1));
        const LoadedMatrix got = load(compressed_tensors(m, symmetric), scheme_of(kCompressed), ask(7, 96));
        EXPECT_EQ(got.dtype, bits <= 4 ? DType::kG4 : DType::kG8);
        EXPECT_EQ(got.group, group);
        m.expect(got);
      }
    }
  }
  Integers m(8, 96, 4, 32, 9);
  std::shuffle(m.group_of.begin(), m.group_of.end(), m.random);
  Tensors ordered = compressed_tensors(m, false);
  ordered.push_back({"m.weight_g_idx", "I32", {96}, bytes_of(m.group_of)});
  const LoadedMatrix got = load(ordered, scheme_of(kCompressed), ask(8, 96));
  EXPECT_EQ(got.column_order.size(), 96u);
  m.expect(got);
  const Integers plain(8, 96, 4, 32, 9);
  Tensors unused = compressed_tensors(plain, false);
  unused.push_back({"m.weight_g_idx", "I32", {96}, bytes_of(std::vector<int32_t>(96, -1))});
  plain.expect(load(unused, scheme_of(kCompressed), ask(8, 96)));
}

TEST(Quantised, ReadsInt8WithScalesOfRows) {
  for (const bool symmetric : {true, false}) {
    Integers m(6, 64, 8, 64, 11);
    if (symmetric) std::fill(m.zeros.begin(), m.zeros.end(), 128);
    std::string codes, zeros;
    for (const int c : m.codes) codes.push_back(static_cast<char>(c - 128));
    for (const int z : m.zeros) zeros.push_back(static_cast<char>(z - 128));
    Tensors tensors = {{"m.weight", "I8", {6, 64}, codes}, {"m.weight_scale", "F16", {6, 1}, bytes_of(m.scales)}};
    if (!symmetric) tensors.push_back({"m.weight_zero_point", "I8", {6, 1}, zeros});
    tensors.push_back({"m.input_scale", "F32", {1}, bytes_of<float>({1.0f})});
    const LoadedMatrix got = load(tensors, scheme_of(kCompressed), ask(6, 64));
    EXPECT_EQ(got.dtype, DType::kG8);
    m.expect(got);
    EXPECT_THAT(got.tensors, ::testing::Contains("m.input_scale"));
  }
}

// By the definition: four bits of exponent with a bias of 7, three of mantissa.
float e4m3(int byte) {
  const int exponent = (byte >> 3) & 15, mantissa = byte & 7;
  const double size = exponent == 0 ? mantissa * std::pow(2.0, -9) : (1 + mantissa / 8.0) * std::pow(2.0, exponent - 7);
  return static_cast<float>(byte >= 128 ? -size : size);
}

TEST(Quantised, KeepsFp8WhereItsGroupsAreWhole) {
  const char* blocks = R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})";
  const char* thin = R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 48]}})";
  const char* rows = R"({"quantization_config": {"quant_method": "fbgemm_fp8"}})";
  const char* one = R"({"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}})";
  struct Case {
    const char* config;
    int64_t k;
    std::vector<int64_t> scales;
    int64_t group;  // 0: it is expanded
    const char* type = "F8_E4M3";
  };
  const int64_t n = 150;
  const Case cases[] = {
      {blocks, 256, {2, 2}, 128}, {blocks, 192, {2, 2}, 64},    {blocks, 96, {2, 1}, 96}, {blocks, 132, {2, 2}, 0},
      {rows, 96, {n, 1}, 96},     {rows, 100, {n, 1}, 0},       {one, 64, {1}, 64},       {one, 64, {}, 64},
      {thin, 96, {2, 2}, 0},      {one, 64, {1}, 0, "F8_E5M2"},
  };
  for (const Case& c : cases) {
    std::mt19937 random(5);
    std::string weight;
    for (int64_t i = 0; i < n * c.k; ++i) weight.push_back(static_cast<char>(random() % 120));
    std::vector<float> scales;
    const auto count = std::accumulate(c.scales.begin(), c.scales.end(), int64_t{1}, std::multiplies<>());
    for (int64_t i = 0; i < count; ++i) scales.push_back(0.001f * static_cast<float>(1 + random() % 1000));
    const Tensors tensors = {{"m.weight", c.type, {n, c.k}, weight},
                             {"m.weight_scale", "F32", c.scales, bytes_of(scales)}};
    QuantRequest request = ask(n, c.k);
    const LoadedMatrix plain = load(tensors, scheme_of(c.config), request);
    request.keep_fp8 = true;
    const LoadedMatrix kept = load(tensors, scheme_of(c.config), request);
    EXPECT_EQ(kept.group, c.group) << c.config << " " << c.k;
    EXPECT_EQ(kept.dtype, c.group > 0 ? DType::kGF8 : DType::kBF16);
    EXPECT_EQ(kept.tensors, plain.tensors);
    EXPECT_EQ(kept.bytes_read, plain.bytes_read);
    if (c.group == 0) continue;
    const RawMatrix raw = kept.raw();
    EXPECT_EQ(raw.mins, nullptr);
    const auto values = plain.values();
    for (int64_t i = 0; i < n * c.k; ++i) {
      const float want = e4m3(static_cast<uint8_t>(raw.data[i])) * raw.scales[i / c.group];
      ASSERT_EQ(values[static_cast<size_t>(i)], bf16_to_float(float_to_bf16(want))) << c.config << " " << c.k;
    }
  }
}

TEST(Quantised, ReadsFp8WithScalesOfTensorsRowsAndBlocks) {
  EXPECT_EQ(e4m3(0x7e), 448.0f);  // as torch has it
  EXPECT_EQ(e4m3(0x01), 0.001953125f);
  EXPECT_EQ(e4m3(0xc1), -2.25f);
  const int64_t n = 150, k = 131;
  std::mt19937 random(5);
  std::string weight;
  for (int64_t i = 0; i < n * k; ++i) weight.push_back(static_cast<char>(random() % 127 + random() % 2 * 128));
  const auto scales = [&](int64_t count) {
    std::vector<float> out;
    for (int64_t i = 0; i < count; ++i) out.push_back(0.001f * static_cast<float>(1 + random() % 1000));
    return out;
  };
  struct Case {
    const char* config;
    const char* suffix;
    std::vector<int64_t> shape;
    int64_t rows, columns;
  };
  const Case cases[] = {
      {R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})",
       ".weight_scale_inv",
       {2, 2},
       128,
       128},
      {R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 32]}})",
       ".weight_scale_inv",
       {3, 5},
       64,
       32},
      {R"({"quantization_config": {"quant_method": "fp8"}})", ".weight_scale", {}, n, k},
      {R"({"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}})", ".weight_scale", {1}, n, k},
      {R"({"quantization_config": {"quant_method": "fbgemm_fp8"}})", ".weight_scale", {n, 1}, 1, k},
      {R"({"quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized",
           "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}}})",
       ".weight_scale",
       {n},
       1,
       k},
      {R"({"quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized",
           "config_groups": {"group_0": {"weights": {"strategy": "block", "block_structure": [128, 128]}}}}})",
       ".weight_scale",
       {2, 2},
       128,
       128},
  };
  for (const Case& c : cases) {
    const auto values = scales(std::accumulate(c.shape.begin(), c.shape.end(), int64_t{1}, std::multiplies<>()));
    const Tensors tensors = {{"m.weight", "F8_E4M3", {n, k}, weight},
                             {std::string("m") + c.suffix, "F32", c.shape, bytes_of(values)}};
    for (const bool want_f32 : {false, true}) {
      QuantRequest request = ask(n, k);
      request.want_f32 = want_f32;
      const LoadedMatrix got = load(tensors, scheme_of(c.config), request);
      EXPECT_EQ(got.dtype, want_f32 ? DType::kF32 : DType::kBF16);
      const auto out = got.values();
      ASSERT_EQ(std::ssize(out), n * k);
      for (int64_t i = 0; i < n * k; ++i) {
        const int64_t blocks = (k + c.columns - 1) / c.columns;
        const float scale = values[static_cast<size_t>(i / k / c.rows * blocks + i % k / c.columns)];
        const float want = e4m3(static_cast<uint8_t>(weight[static_cast<size_t>(i)])) * scale;
        ASSERT_EQ(out[static_cast<size_t>(i)], want_f32 ? want : bf16_to_float(float_to_bf16(want))) << c.config;
      }
    }
  }
  // Scales that are powers of two in a byte, and the other fp8.
  const Tensors e5m2 = {{"m.weight", "F8_E5M2", {1, 2}, std::string("\x3c\xc1")},
                        {"m.weight_scale_inv", "F8_E8M0", {1, 1}, std::string(1, '\x80')}};
  EXPECT_EQ(load(e5m2, scheme_of(cases[0].config), ask(1, 2)).values(), (std::vector<float>{2.0f, -5.0f}));
}

TEST(Quantised, ReadsAnExpertOfAStack) {
  const Integers first(4, 64, 4, 32, 1), second(4, 64, 4, 32, 2);
  Tensors stack = mlx_tensors(first);
  const Tensors more = mlx_tensors(second);
  for (size_t i = 0; i < stack.size(); ++i) {
    stack[i].shape.insert(stack[i].shape.begin(), 2);
    stack[i].data += more[i].data;
  }
  QuantRequest request = ask(4, 64);
  for (const int64_t expert : {0, 1}) {
    request.expert = expert;
    const auto values = load(stack, scheme_of(mlx_config(4, 32).c_str()), request).values();
    const auto alone = load(expert == 0 ? mlx_tensors(first) : more, scheme_of(mlx_config(4, 32).c_str()), ask(4, 64));
    EXPECT_EQ(values, alone.values());
  }
  request.expert = 2;
  const auto none = load_quantised(*source_of(stack), scheme_of(mlx_config(4, 32).c_str()), request);
  ASSERT_FALSE(none.ok());
  EXPECT_THAT(none.error().message, HasSubstr("no expert 2"));

  // GPT-OSS: blocks of 16 bytes, byte j with elements 2j and 2j + 1.
  const Tensors oss = {
      {"e.down_proj_blocks", "U8", {2, 1, 1, 16}, std::string(16, '\0') + "\x21" + std::string(15, '\x7f')},
      {"e.down_proj_scales", "U8", {2, 1, 1}, std::string("\x7f\x80")}};
  QuantRequest down = ask(1, 32);
  down.prefix = "e.down_proj";
  down.expert = 1;
  const LoadedMatrix got = load(oss, scheme_of(R"({"quantization_config": {"quant_method": "mxfp4"}})"), down);
  const auto values = got.values();
  EXPECT_EQ(got.dtype, DType::kMXFP4);
  EXPECT_EQ((std::vector<float>{values[0], values[1], values[2], values[3]}), (std::vector<float>{1, 2, -12, 12}));
  EXPECT_EQ(got.bytes_read, 17);
}

TEST(QuantScheme, ListsOfModulesAreHonoured) {
  const auto scheme = scheme_of(R"({"quantization_config": {"quant_method": "compressed-tensors",
      "format": "pack-quantized", "ignore": ["lm_head", "re:.*mlp[.]gate$", "model.vision", "model.layers.*.router"]}})");
  const auto& list = scheme.ignored;
  EXPECT_TRUE(list.contains("lm_head"));
  EXPECT_TRUE(list.contains("model.lm_head"));
  EXPECT_TRUE(list.contains("model.layers.3.mlp.gate"));
  EXPECT_FALSE(list.contains("model.layers.3.mlp.gate_proj"));
  EXPECT_TRUE(list.contains("model.vision.blocks.0.q"));
  EXPECT_FALSE(list.contains("model.visions"));
  EXPECT_TRUE(list.contains("model.layers.11.router"));
  EXPECT_FALSE(list.contains("model.layers.11.router.x"));
  const Integers m(8, 32, 4, 32, 1);
  Tensors tensors = compressed_tensors(m, true);
  for (auto& t : tensors) t.name = "lm_head" + t.name.substr(1);
  EXPECT_FALSE(scheme.applies_to(*source_of(tensors), "lm_head"));
  EXPECT_FALSE(scheme.applies_to(*source_of(tensors), "other"));
  // A pattern that would backtrack for ever stops.
  ModuleList slow;
  ASSERT_TRUE(slow.add("re:(a*)*b").ok());
  EXPECT_FALSE(slow.contains(std::string(60, 'a')));
}

TEST(QuantScheme, ConfigsThatAreNotReadSayWhy) {
  struct Case {
    const char* config;
    const char* says;
  };
  const Case cases[] = {
      {R"({"quantization_config": {"quant_method": "bitsandbytes"}})", "bitsandbytes"},
      {R"({"quantization_config": {"bits": 4}})", "quant_method"},
      {R"({"quantization_config": 7})", "not an object"},
      {R"({"quantization_config": {"quant_method": "awq", "bits": 3}})", "bits"},
      {R"({"quantization_config": {"quant_method": "awq", "version": "gemv"}})", "gemv"},
      {R"({"quantization_config": {"quant_method": "gptq"}})", "bits"},
      {R"({"quantization_config": {"quant_method": "gptq", "bits": 5}})", "bits"},
      {R"({"quantization_config": {"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}})", "marlin"},
      {R"({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": "x"}})", "group_size"},
      {R"({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}})", "NVFP4"},
      {R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [0, 128]}})", "weight_block_size"},
      {R"({"quantization_config": {"quant_method": "fp8", "modules_to_not_convert": "x"}})", "modules_to_not_convert"},
      {R"({"quantization_config": {"quant_method": "compressed-tensors", "format": "marlin-24"}})", "marlin-24"},
      {R"({"quantization_config": {"quant_method": "compressed-tensors", "ignore": ["re:("]}})", "ignore"},
      {R"({"quantization_config": {"quant_method": "compressed-tensors",
           "sparsity_config": {"format": "sparse-24-bitmask"}}})",
       "sparsity_config"},
      {R"({"quantization": {"group_size": 64, "bits": 7}})", "bits"},
      {R"({"quantization": {"group_size": 48, "bits": 4}})", "group_size"},
      {R"({"quantization": {"group_size": 64, "bits": 4, "mode": "nvfp4"}})", "nvfp4"},
      {R"({"quantization": {"group_size": 64, "bits": 4, "a.b": {"bits": 9}}})", "a.b"},
  };
  for (const Case& c : cases) {
    const auto scheme = parse_quantisation(*json::parse(c.config));
    ASSERT_FALSE(scheme.ok()) << c.config;
    EXPECT_THAT(scheme.error().message, Not(HasSubstr("config.json"))) << c.config;  // open_model names the file
    EXPECT_THAT(scheme.error().message, HasSubstr(c.says)) << c.config;
  }
  EXPECT_EQ(scheme_of("{}").method, QuantMethod::kNone);
  EXPECT_EQ(scheme_of(R"({"quantization_config": null})").method, QuantMethod::kNone);
  EXPECT_TRUE(is_activation_scale("model.layers.0.self_attn.k_proj.input_scale"));
  EXPECT_FALSE(is_activation_scale("model.layers.0.self_attn.k_proj.weight_scale"));
}

struct Sample {
  const char* name;
  std::string config;
  Tensors tensors;
  int64_t n, k;
};
std::vector<Sample> samples() {
  const Integers m(32, 64, 4, 32, 1);
  const std::string block = R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [16, 16]}})";
  const std::string groups = R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [16, 32]}})";
  Tensors ordered = compressed_tensors(m, false);
  ordered.push_back({"m.weight_g_idx", "I32", {64}, bytes_of(m.group_of)});
  return {{"mlx", mlx_config(4, 32), mlx_tensors(m), 32, 64},
          {"mlx3", mlx_config(3, 32), mlx_tensors(Integers(32, 64, 3, 32, 1)), 32, 64},
          {"awq", kAwq, awq_tensors(m), 32, 64},
          {"gptq", gptq_config(4, "gptq_v2"), gptq_tensors(m, false), 32, 64},
          {"compressed", kCompressed, ordered, 32, 64},
          {"fp8 in groups",
           groups,
           {{"m.weight", "F8_E4M3", {32, 64}, std::string(2048, 'a')},
            {"m.weight_scale_inv", "F32", {2, 2}, bytes_of(std::vector<float>(4, 1.0f))}},
           32,
           64},
          {"fp8",
           block,
           {{"m.weight", "F8_E4M3", {32, 64}, std::string(2048, 'a')},
            {"m.weight_scale_inv", "F32", {2, 4}, bytes_of(std::vector<float>(8, 1.0f))}},
           32,
           64},
          {"mxfp4",
           R"({"quantization_config": {"quant_method": "mxfp4"}})",
           {{"m_blocks", "U8", {32, 2, 16}, std::string(1024, 'a')}, {"m_scales", "U8", {32, 2}, std::string(64, 'a')}},
           32,
           64}};
}

TEST(Quantised, RefusesWhatDoesNotFitAndNamesTheTensor) {
  for (const Sample& s : samples()) {
    const QuantScheme scheme = scheme_of(s.config.c_str());
    load(s.tensors, scheme, ask(s.n, s.k));
    for (const auto& [n, k] : {std::pair(s.n + 8, s.k), std::pair(s.n, s.k * 2), std::pair(s.n, s.k + 1)}) {
      const auto wrong = load_quantised(*source_of(s.tensors), scheme, ask(n, k));
      ASSERT_FALSE(wrong.ok()) << s.name << " " << n << " " << k;
      EXPECT_THAT(wrong.error().message, HasSubstr("tensor 'm")) << s.name;
    }
    for (size_t i = 0; i < s.tensors.size(); ++i) {
      const std::string& tensor = s.tensors[i].name;
      const bool optional = tensor == "m.g_idx" || tensor == "m.weight_g_idx" || tensor == "m.weight_shape" ||
                            tensor == "m.weight_zero_point";
      Tensors missing = s.tensors;
      missing.erase(missing.begin() + static_cast<std::ptrdiff_t>(i));
      const auto without = load_quantised(*source_of(missing), scheme, ask(s.n, s.k));
      EXPECT_EQ(without.ok(), optional) << s.name << " without " << tensor;
      if (!without.ok()) {
        EXPECT_THAT(without.error().message, HasSubstr("tensor 'm")) << tensor;
      }
      Tensors other = s.tensors;
      other[i] = {tensor, "F64", {1}, std::string(8, '\0')};
      const auto typed = load_quantised(*source_of(other), scheme, ask(s.n, s.k));
      if (tensor != "m.weight_shape") {
        ASSERT_FALSE(typed.ok()) << s.name << " " << tensor;
        EXPECT_THAT(typed.error().message, HasSubstr("'" + tensor + "'")) << s.name;
      }
      Tensors flat = s.tensors;  // the right bytes, another shape
      const int64_t bytes = static_cast<int64_t>(flat[i].data.size());
      const int64_t elements =
          std::accumulate(flat[i].shape.begin(), flat[i].shape.end(), int64_t{1}, std::multiplies<>());
      flat[i].shape = {1, 1, elements};
      if (tensor != "m.weight_shape") {
        EXPECT_FALSE(load_quantised(*source_of(flat), scheme, ask(s.n, s.k)).ok()) << tensor << " " << bytes;
      }
      if (flat[i].dtype != "F16" && flat[i].dtype != "F32") continue;
      Tensors broken = s.tensors;
      std::fill(broken[i].data.begin(), broken[i].data.end(), '\xff');  // NaN
      const auto nan = load_quantised(*source_of(broken), scheme, ask(s.n, s.k));
      ASSERT_FALSE(nan.ok()) << s.name << " " << tensor;
      EXPECT_THAT(nan.error().message, HasSubstr("finite"));
    }
  }
  Integers m(32, 64, 4, 32, 1);
  for (const int32_t lie : {-5, 2, INT32_MAX}) {
    m.group_of[9] = lie;
    const auto wrong =
        load_quantised(*source_of(gptq_tensors(m, false)), scheme_of(gptq_config(4, "gptq_v2").c_str()), ask(32, 64));
    ASSERT_FALSE(wrong.ok());
    EXPECT_THAT(wrong.error().message, HasSubstr("m.g_idx"));
  }
  Tensors shape = compressed_tensors(Integers(32, 64, 4, 32, 1), true);
  shape[2].data = bytes_of(std::vector<int64_t>{64, 32});
  EXPECT_FALSE(load_quantised(*source_of(shape), scheme_of(kCompressed), ask(32, 64)).ok());
}

// For any shapes in a file: an error or a matrix, never a read out of bounds (which AddressSanitizer would report).
TEST(Quantised, RandomShapesNeverReadOutside) {
  std::mt19937 random(1);
  const auto all = samples();
  int good = 0, kept = 0;
  for (int round = 0; round < 3000; ++round) {
    Sample s = all[random() % all.size()];
    for (auto& t : s.tensors) {
      if (random() % 4 != 0) continue;
      const size_t elements =
          static_cast<size_t>(std::accumulate(t.shape.begin(), t.shape.end(), int64_t{1}, std::multiplies<>()));
      const size_t size = t.data.size() / elements;
      if (random() % 8 == 0) t.shape.push_back(1);
      for (auto& d : t.shape) d = random() % 2 == 0 ? d : static_cast<int64_t>(random() % 70);
      t.data.clear();
      for (const auto d : {std::accumulate(t.shape.begin(), t.shape.end(), int64_t{1}, std::multiplies<>())}) {
        for (int64_t i = 0; i < d * static_cast<int64_t>(size); ++i) t.data.push_back(static_cast<char>(random() % 64));
      }
    }
    QuantRequest request =
        ask(random() % 2 == 0 ? s.n : 1 + random() % 70, random() % 2 == 0 ? s.k : 1 + random() % 99);
    request.expert = random() % 8 == 0 ? 1 : -1;
    request.keep_fp8 = random() % 2 == 0;
    const QuantScheme scheme = scheme_of(s.config.c_str());
    const auto got = load_quantised(*source_of(s.tensors), scheme, request);
    if (!got.ok()) continue;
    ++good;
    if (request.keep_fp8) {
      EXPECT_EQ(got->dtype == DType::kGF8 ? got->group : 0, fp8_group(*source_of(s.tensors), scheme, request));
    }
    if (got->dtype == DType::kGF8) {
      ++kept;
      EXPECT_EQ(std::ssize(got->data), request.n * request.k);
      EXPECT_EQ(std::ssize(got->scales), request.n * (request.k / got->group));
      continue;
    }
    EXPECT_EQ(std::ssize(got->values()), request.n * request.k);
  }
  EXPECT_GT(good, 100);
  EXPECT_GT(kept, 10);
}

}  // namespace
}  // namespace quire::weights
