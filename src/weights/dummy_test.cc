// SPDX-License-Identifier: Apache-2.0
// Dummy weights: the rule's known answers (tests/goldens/philox.json), and independence from threads and order.
#include "weights/dummy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "base/file.h"
#include "base/half.h"
#include "base/json.h"
#include "base/philox.h"
#include "weights/test_files.h"

namespace quire::weights {
namespace {

using testing::bytes_of;
using ::testing::HasSubstr;

std::vector<float> floats_of(const TensorRef& tensor) {
  std::vector<float> out(tensor.data.size() / sizeof(float));
  std::memcpy(out.data(), tensor.data.data(), tensor.data.size());
  return out;
}

TEST(Dummy, MakesTheGoldenNumbers) {
  const auto text = read_file(QUIRE_SOURCE_DIR "/tests/goldens/philox.json");
  ASSERT_TRUE(text.ok()) << text.error().message;
  const auto root = json::parse(*text);
  ASSERT_TRUE(root.ok());
  int tensors = 0;
  for (const json::Value& entry : root->find("tensors")->as_array()) {
    const std::string& name = entry.find("name")->as_string();
    const uint64_t seed = std::strtoull(entry.find("seed")->as_string().c_str(), nullptr, 10);
    EXPECT_EQ(fnv1a64(name.data(), name.size()),
              std::strtoull(entry.find("fnv1a64")->as_string().c_str(), nullptr, 16));
    std::vector<int64_t> shape;
    for (const json::Value& d : entry.find("shape")->as_array()) shape.push_back(d.as_int());
    const DummySource source(seed, DType::kF32);
    const auto made = source.make(name, shape);
    ASSERT_TRUE(made.ok()) << made.error().message;
    const std::vector<float> values = floats_of(**made);
    const json::Array& first = entry.find("first")->as_array();
    for (size_t i = 0; i < first.size(); ++i) {
      EXPECT_EQ(values[i], std::strtof(first[i].as_string().c_str(), nullptr)) << name << " element " << i;
    }
    EXPECT_EQ(values.back(), std::strtof(entry.find("last")->as_string().c_str(), nullptr)) << name;
    uint32_t bits = 0;
    for (const float v : values) bits ^= std::bit_cast<uint32_t>(v);
    EXPECT_EQ(bits, std::strtoul(entry.find("bits_xor")->as_string().c_str(), nullptr, 16)) << name;
    ++tensors;
  }
  EXPECT_GT(tensors, 5);
}

// The rule written out once more, one element at a time.
float rule(uint64_t seed, const std::string& name, const std::vector<int64_t>& shape, uint64_t i) {
  const uint64_t key = seed ^ fnv1a64(name.data(), name.size());
  const uint32_t word = Philox::generate(key, i / 4)[i % 4];
  const float v = 2.0f * (static_cast<float>(word >> 8) * 0x1p-24f) - 1.0f;
  if (shape.size() >= 2) return v * static_cast<float>(std::sqrt(3.0 / static_cast<double>(shape.back())));
  const bool bias = name.size() >= 5 && name.substr(name.size() - 5) == ".bias";
  return bias ? v * 0.1f : 1.0f + v * 0.1f;
}

TEST(Dummy, FollowsTheRuleAtEveryLengthAndOffset) {
  for (const char* name : {"a.weight", "a.bias", "odd"}) {
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{1}, {3}, {1031}, {7, 149}, {2, 3, 173}}) {
      int64_t elements = 1;
      for (const int64_t d : shape) elements *= d;
      for (const int64_t begin : {0, 1, 2, 3, 4, 5, 255, 257}) {
        if (begin > elements) continue;
        std::vector<float> values(static_cast<size_t>(elements - begin));
        fill_dummy(99, name, shape, begin, values);
        for (size_t i = 0; i < values.size(); ++i) {
          ASSERT_EQ(values[i], rule(99, name, shape, static_cast<uint64_t>(begin) + i))
              << name << " " << begin << " " << i;
        }
      }
    }
  }
}

TEST(Dummy, TheCounterGoesOnPast32Bits) {
  const std::vector<int64_t> shape = {int64_t{1} << 30, 64};
  const int64_t begin = (int64_t{1} << 34) - 6;  // i / 4 crosses 2^32 here
  std::vector<float> values(600);
  fill_dummy(5, "big.weight", shape, begin, values);
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(values[i], rule(5, "big.weight", shape, static_cast<uint64_t>(begin) + i)) << i;
  }
}

TEST(Dummy, IsTheSameWithAnyNumberOfThreadsAndInAnyOrder) {
  const std::vector<int64_t> shape = {1000, 1001};
  const DummySource one(3, DType::kF32, 1);
  const DummySource four(3, DType::kF32, 4);
  ASSERT_TRUE(four.make("other.weight", shape).ok());
  const std::string a = bytes_of(**one.make("w.weight", shape));
  EXPECT_EQ(a, bytes_of(**four.make("w.weight", shape)));
  EXPECT_NE(a, bytes_of(**four.make("other.weight", shape)));
  EXPECT_NE(a, bytes_of(**DummySource(4, DType::kF32).make("w.weight", shape)));
}

TEST(Dummy, HalfTypesAreTheFloatsRounded) {
  const std::vector<int64_t> shape = {33, 7};
  const DummySource f32(8, DType::kF32);
  const std::vector<float> floats = floats_of(**f32.make("w", shape));
  for (const DType type : {DType::kF16, DType::kBF16}) {
    const DummySource source(8, type);
    const TensorRef& tensor = **source.make("w", shape);
    EXPECT_EQ(tensor.dtype, type);
    ASSERT_EQ(tensor.data.size(), floats.size() * 2);
    for (size_t i = 0; i < floats.size(); ++i) {
      uint16_t h;
      std::memcpy(&h, tensor.data.data() + i * 2, sizeof h);
      ASSERT_EQ(h, type == DType::kF16 ? float_to_fp16(floats[i]) : float_to_bf16(floats[i])) << i;
    }
  }
}

TEST(Dummy, KeepsWhatItMadeUntilReleased) {
  const DummySource source(1, DType::kF32);
  EXPECT_TRUE(source.is_dummy());
  EXPECT_EQ(source.find("w"), nullptr);
  EXPECT_FALSE(source.get("w").ok());
  const TensorRef* made = *source.require("w", std::vector<int64_t>{2, 3});
  EXPECT_EQ(*source.make("w", std::vector<int64_t>{2, 3}), made);
  EXPECT_EQ(source.find("w"), made);
  EXPECT_EQ(source.names(), (std::vector<std::string>{"w"}));
  EXPECT_EQ(source.total_bytes(), 24);
  const TensorRef kept = *made;
  const std::string bytes = bytes_of(kept);
  source.release(*made);
  EXPECT_EQ(source.find("w"), nullptr);
  EXPECT_EQ(bytes_of(kept), bytes) << "a copy of the TensorRef keeps its bytes";
  EXPECT_EQ(bytes_of(**source.make("w", std::vector<int64_t>{2, 3})), bytes);
}

TEST(Dummy, RefusesShapesThatCannotBe) {
  const DummySource source(1, DType::kF32);
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{0}, {-1}, {3, 0}, {int64_t{1} << 40, int64_t{1} << 40}, {int64_t{1} << 62}}) {
    const auto made = source.make("w.weight", shape);
    ASSERT_FALSE(made.ok());
    EXPECT_THAT(made.error().message, HasSubstr("'w.weight'"));
  }
  ASSERT_TRUE(source.make("w.weight", std::vector<int64_t>{4}).ok());
  const auto other = source.make("w.weight", std::vector<int64_t>{5});
  ASSERT_FALSE(other.ok());
  EXPECT_THAT(other.error().message, HasSubstr("[5] after [4]"));
}

TEST(Dummy, ServesManyThreadsAtOnce) {
  const DummySource source(2, DType::kBF16);
  std::vector<std::thread> threads;
  std::vector<std::string> bytes(8);
  for (size_t t = 0; t < bytes.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        const auto made = source.require("w" + std::to_string(i % 5), std::vector<int64_t>{50, 40});
        if (i % 5 == 0) bytes[t] = bytes_of(**made);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& b : bytes) EXPECT_EQ(b, bytes[0]);
  EXPECT_EQ(source.names().size(), 5u);
}

}  // namespace
}  // namespace quire::weights
