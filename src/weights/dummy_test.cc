// SPDX-License-Identifier: Apache-2.0
// Dummy weights: the rule's known answers (tests/goldens/philox.json), and independence from threads and order.
#include "weights/dummy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "base/file.h"
#include "base/half.h"
#include "base/json.h"
#include "base/philox.h"
#include "weights/dummy_form.h"
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

QuantScheme scheme_of_dummies(const std::string& quantization_config) {
  const auto json = json::parse("{\"quantization_config\": " + quantization_config + "}");
  return parse_quantisation(*json).value();
}

TEST(DummyForm, IsWhatALoaderMakesOfTheFormat) {
  const auto form = [](const std::string& config, int64_t k, const char* module = "model.layers.0.mlp.up_proj") {
    return dummy_form(scheme_of_dummies(config), module, 64, k);
  };
  const std::string awq = R"({"quant_method": "awq", "group_size": 64, "modules_to_not_convert": ["visual"]})";
  EXPECT_EQ(form(awq, 256)->type, DType::kG4);
  EXPECT_EQ(form(awq, 256)->group, 64);
  EXPECT_EQ(form(awq, 32)->group, 32) << "a row that is shorter than a group";
  EXPECT_EQ(form(awq, 96)->type, DType::kF32) << "the last group has fewer inputs";
  EXPECT_FALSE(form(awq, 256, "visual.blocks.0.qkv").has_value());
  const std::string gptq = R"({"quant_method": "gptq", "bits": 8, "group_size": -1, "desc_act": true})";
  EXPECT_EQ(form(gptq, 96)->type, DType::kG8);
  EXPECT_EQ(form(gptq, 96)->group, 96);
  EXPECT_FALSE(form(gptq, 96)->reordered) << "one group has no order";
  EXPECT_TRUE(form(R"({"quant_method": "gptq", "bits": 2, "group_size": 32, "desc_act": true})", 96)->reordered);
  const std::string fp8 = R"({"quant_method": "fp8", "weight_block_size": [128, 128]})";
  EXPECT_EQ(form(fp8, 256)->group, 128);
  EXPECT_EQ(form(fp8, 192)->group, 64) << "192 is no multiple of 128";
  EXPECT_EQ(form(fp8, 40)->group, 0);
  EXPECT_EQ(form(fp8, 40)->type, DType::kGF8);
  EXPECT_EQ(form(R"({"quant_method": "fp8"})", 256)->scale_rows, 64) << "of the whole matrix";
  const std::string mixed = R"({"quant_method": "compressed-tensors", "config_groups": {
      "a": {"targets": ["re:.*up_proj$"], "weights": {"num_bits": 4, "type": "int", "group_size": 32}},
      "b": {"targets": ["re:.*down_proj$"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}})";
  EXPECT_EQ(form(mixed, 64)->type, DType::kG4);
  EXPECT_EQ(form(mixed, 64, "model.layers.0.mlp.down_proj")->type, DType::kGF8);
  EXPECT_FALSE(form(mixed, 64, "model.layers.0.mlp.gate_proj").has_value());
}

TEST(DummyForm, OfAFlagIsOneOfGgufsTypesOrAMethod) {
  const auto type = [](const char* flag, int64_t k) {
    const auto form = dummy_form(parse_quantization_flag(flag).value(), "m", 64, k);
    return form ? std::string(name(form->type)) : "none";
  };
  EXPECT_EQ(type("q4_k", 512), "Q4_K");
  EXPECT_EQ(type("Q4_K", 96), "Q5_0");
  EXPECT_EQ(type("q2_k", 96), "IQ4_NL");
  EXPECT_EQ(type("q5_k", 96), "Q5_1");
  EXPECT_EQ(type("q6_k", 96), "Q8_0");
  EXPECT_EQ(type("q6_k", 40), "none");
  EXPECT_EQ(type("awq", 256), "G4");
  EXPECT_EQ(type("gptq", 256), "G4");
  EXPECT_EQ(type("fp8_per_block", 256), "GF8");
  EXPECT_EQ(type("int8_per_channel_weight_only", 96), "G8");
  for (const char* flag : {"", "f16", "bf16", "i8", "g4", "marlin", "q4_k_m", "bitsandbytes"}) {
    const auto refused = parse_quantization_flag(flag);
    ASSERT_FALSE(refused.ok()) << flag;
    EXPECT_THAT(refused.error().message, HasSubstr("choose one of q8_0, q4_0,"));
    EXPECT_THAT(refused.error().message, HasSubstr("fp8_per_block or int8_per_channel_weight_only"));
  }
}

TEST(DummyForm, RefusesSettingsThatNoWeightsHave) {
  for (const char* weights : {R"({"num_bits": 16, "type": "int"})", R"({"num_bits": 4, "type": "float"})", "{}",
                              R"({"num_bits": "4", "type": "int"})", R"({"num_bits": -1, "type": "int"})",
                              R"({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 0})"}) {
    const QuantScheme scheme = scheme_of_dummies(
        R"({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"targets": ["Linear"], "weights": )" +
        std::string(weights) + "}}}");
    const Status checked = check_dummy_scheme(scheme);
    ASSERT_FALSE(checked.ok()) << weights;
    EXPECT_THAT(checked.error().message, HasSubstr("num_bits"));
  }
}

TEST(DummyForm, HasAnOrderOfAllColumns) {
  std::vector<int32_t> order = dummy_order(7, 100);
  EXPECT_EQ(order, dummy_order(7, 100));
  EXPECT_NE(order, dummy_order(8, 100));
  EXPECT_FALSE(std::ranges::is_sorted(order));
  std::ranges::sort(order);
  for (int32_t i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

}  // namespace
}  // namespace quire::weights
