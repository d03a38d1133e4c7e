// SPDX-License-Identifier: Apache-2.0
// The GGUF reader: metadata of every kind, tensors of every type, split sets.
#include "weights/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "weights/ggml_types.h"
#include "weights/test_files.h"

namespace quire::weights {
namespace {

using ::testing::AllOf;
using testing::append;
using testing::bytes_of;
using testing::counting;
using ::testing::ElementsAre;
using testing::exact_copy;
using testing::GgufWriter;
using ::testing::HasSubstr;
using testing::TempFolder;

Result<std::shared_ptr<const GgufSource>> parse_gguf(std::string_view bytes) {
  const auto copy = exact_copy(bytes);
  return GgufSource::parse(*copy, "test.gguf", copy);
}

TEST(Gguf, ReadsMetadataOfEveryKind) {
  GgufWriter w;
  w.number<uint8_t>("u8", 0, 200);
  w.number<int8_t>("i8", 1, -100);
  w.number<uint16_t>("u16", 2, 60000);
  w.number<int16_t>("i16", 3, -30000);
  w.number<uint32_t>("u32", 4, 4'000'000'000u);
  w.number<int32_t>("i32", 5, -2'000'000'000);
  w.number<float>("f32", 6, 0.1f);
  w.number<uint8_t>("yes", 7, 1);
  w.string("s", "grüße");
  w.number<uint64_t>("u64", 10, std::numeric_limits<uint64_t>::max());
  w.number<int64_t>("i64", 11, std::numeric_limits<int64_t>::min());
  w.number<double>("f64", 12, 0.25);
  const auto source = parse_gguf(w.finish());
  ASSERT_TRUE(source.ok()) << source.error().message;
  const GgufMetadata& m = (*source)->metadata();
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(m.get_int("u8", 0, 255).value(), 200);
  EXPECT_EQ(m.get_int("i8", -128, 0).value(), -100);
  EXPECT_EQ(m.get_int("u16", 0, 65535).value(), 60000);
  EXPECT_EQ(m.get_int("i16", kMin, kMax).value(), -30000);
  EXPECT_EQ(m.get_int("u32", 0, kMax).value(), 4'000'000'000);
  EXPECT_EQ(m.get_int("i32", kMin, 0).value(), -2'000'000'000);
  EXPECT_EQ(m.get_int("i64", kMin, kMax).value(), kMin);
  EXPECT_EQ(m.get_double("f32").value(), static_cast<double>(0.1f));
  EXPECT_EQ(m.get_double("f64").value(), 0.25);
  EXPECT_EQ(m.get_double("u8").value(), 200.0);
  EXPECT_TRUE(m.get_bool("yes").value());
  EXPECT_EQ(m.get_string("s").value(), "grüße");
  EXPECT_EQ(m.pairs().size(), 12u);
  EXPECT_EQ(m.pairs()[8].key, "s");
  const auto huge = m.get_int("u64", kMin, kMax);
  ASSERT_FALSE(huge.ok());
  EXPECT_THAT(huge.error().message, AllOf(HasSubstr("'u64'"), HasSubstr("18446744073709551615")));
  EXPECT_FALSE(m.get_double("u64").ok());
}

TEST(Gguf, GettersNameTheFileTheKeyAndWhatWasFound) {
  GgufWriter w;
  w.number<uint32_t>("n", 4, 7);
  w.string("s", "x");
  w.strings("list", {"a", "b"});
  const auto source = parse_gguf(w.finish());
  ASSERT_TRUE(source.ok());
  const GgufMetadata& m = (*source)->metadata();
  EXPECT_THAT(m.get_int("llama.block_count", 1, 9).error().message,
              AllOf(HasSubstr("test.gguf"), HasSubstr("llama.block_count")));
  EXPECT_THAT(m.get_int("s", 1, 9).error().message, AllOf(HasSubstr("'s'"), HasSubstr("string")));
  EXPECT_THAT(m.get_int("n", 8, 9).error().message, AllOf(HasSubstr("'n'"), HasSubstr("7"), HasSubstr("8 to 9")));
  EXPECT_THAT(m.get_string("n").error().message, AllOf(HasSubstr("'n'"), HasSubstr("uint32")));
  EXPECT_THAT(m.get_ints("list").error().message, AllOf(HasSubstr("'list'"), HasSubstr("array of string")));
  EXPECT_THAT(m.get_strings("n").error().message, HasSubstr("'n'"));
  EXPECT_FALSE(m.get_double("s").ok());
  EXPECT_FALSE(m.get_bool("n").ok());
  EXPECT_FALSE(m.get_floats("list").ok());
  EXPECT_FALSE(m.get_bools("list").ok());
  EXPECT_EQ(m.get_int_or("absent", 5, 0, 9).value(), 5);
  EXPECT_EQ(m.get_double_or("absent", 0.5).value(), 0.5);
  EXPECT_EQ(m.get_string_or("absent", "d").value(), "d");
  EXPECT_EQ(m.get_bool_or("absent", true).value(), true);
  EXPECT_FALSE(m.get_int_or("s", 5, 0, 9).ok()) << "a wrong kind is not a missing key";
}

TEST(Gguf, ReadsArraysOfEveryKindAndNestedOnes) {
  GgufWriter w;
  std::string i32s;
  for (const int32_t v : {1, -2, 3}) append(i32s, v);
  w.pair("i32s", 9, GgufWriter::array(5, 3, i32s));
  std::string f32s;
  for (const float v : {0.5f, -1.5f}) append(f32s, v);
  w.pair("f32s", 9, GgufWriter::array(6, 2, f32s));
  w.pair("bools", 9, GgufWriter::array(7, 3, std::string("\1\0\1", 3)));
  w.strings("words", {"", "a", "long word"});
  w.pair("none", 9, GgufWriter::array(8, 0, ""));
  w.pair("nested", 9,
         GgufWriter::array(9, 2, GgufWriter::array(0, 2, "\x05\x06") + GgufWriter::array(8, 1, GgufWriter::text("z"))));
  w.number<uint32_t>("one", 4, 8);
  const auto source = parse_gguf(w.finish());
  ASSERT_TRUE(source.ok()) << source.error().message;
  const GgufMetadata& m = (*source)->metadata();
  EXPECT_THAT(m.get_ints("i32s").value(), ElementsAre(1, -2, 3));
  EXPECT_THAT(m.get_floats("f32s").value(), ElementsAre(0.5f, -1.5f));
  EXPECT_THAT(m.get_floats("i32s").value(), ElementsAre(1.0f, -2.0f, 3.0f));
  EXPECT_THAT(m.get_bools("bools").value(), ElementsAre(true, false, true));
  const auto words = m.get_strings("words").value();
  EXPECT_THAT(std::vector<std::string_view>(words.begin(), words.end()), ElementsAre("", "a", "long word"));
  EXPECT_TRUE(m.get_strings("none").value().empty());
  const GgufArray& nested = *m.find("nested")->array;
  ASSERT_EQ(nested.arrays.size(), 2u);
  EXPECT_EQ(nested.arrays[0].at(1).integer, 6);
  EXPECT_EQ(nested.arrays[1].strings[0], "z");
  EXPECT_THAT(m.get_ints_per("one", 3).value(), ElementsAre(8, 8, 8));
  EXPECT_THAT(m.get_ints_per("i32s", 3).value(), ElementsAre(1, -2, 3));
  EXPECT_THAT(m.get_ints_per("i32s", 4).error().message, AllOf(HasSubstr("'i32s'"), HasSubstr("3")));
}

TEST(Gguf, StringsAreViewsIntoTheFile) {
  GgufWriter w;
  w.strings("tokenizer.ggml.tokens", {"abc", "def"});
  const auto bytes = exact_copy(w.finish());
  const auto source = GgufSource::parse(*bytes, "test.gguf", bytes);
  ASSERT_TRUE(source.ok());
  const auto tokens = (*source)->metadata().get_strings("tokenizer.ggml.tokens").value();
  ASSERT_EQ(tokens.size(), 2u);
  for (const std::string_view token : tokens) {
    const auto* at = reinterpret_cast<const std::byte*>(token.data());
    EXPECT_GE(at, bytes->data());
    EXPECT_LT(at, bytes->data() + bytes->size());
  }
}

TEST(Gguf, TurnsDimensionsRoundToOutIn) {
  GgufWriter w;
  w.tensor("output.weight", {64, 5}, 0, counting(64 * 5 * 4));
  w.tensor("norm.weight", {3}, 0, counting(12, 9));
  w.tensor("cube", {2, 3, 4}, 1, counting(48, 3));
  w.tensor("scalar", {}, 0, counting(4, 7));
  const auto source = parse_gguf(w.finish());
  ASSERT_TRUE(source.ok()) << source.error().message;
  EXPECT_EQ((*source)->find("output.weight")->shape, (std::vector<int64_t>{5, 64}));
  EXPECT_EQ((*source)->find("norm.weight")->shape, (std::vector<int64_t>{3}));
  EXPECT_EQ((*source)->find("cube")->shape, (std::vector<int64_t>{4, 3, 2}));
  EXPECT_EQ(bytes_of(*(*source)->find("cube")), counting(48, 3));
  EXPECT_EQ(bytes_of(*(*source)->find("scalar")), counting(4, 7));
  EXPECT_EQ((*source)->names(), (std::vector<std::string>{"output.weight", "norm.weight", "cube", "scalar"}));
  EXPECT_EQ((*source)->total_bytes(), 64 * 5 * 4 + 12 + 48 + 4);
}

TEST(Gguf, ReadsVersion2AndTensorsOfEveryTypeInTheTable) {
  GgufWriter w;
  w.version = 2;
  for (const DTypeInfo& type : kGgufDTypes) {
    w.tensor(type.name, {static_cast<uint64_t>(type.block_elems) * 2, 3}, static_cast<uint32_t>(type.gguf_type),
             counting(static_cast<size_t>(type.block_bytes) * 6, type.gguf_type));
  }
  const auto source = parse_gguf(w.finish());
  ASSERT_TRUE(source.ok()) << source.error().message;
  EXPECT_EQ((*source)->version(), 2);
  for (const DTypeInfo& type : kGgufDTypes) {
    const TensorRef* tensor = (*source)->find(type.name);
    ASSERT_NE(tensor, nullptr) << type.name;
    EXPECT_EQ(tensor->dtype, type.type);
    EXPECT_EQ(tensor->shape, (std::vector<int64_t>{3, type.block_elems * 2}));
    EXPECT_EQ(bytes_of(*tensor), counting(static_cast<size_t>(type.block_bytes) * 6, type.gguf_type));
  }
}

TEST(Gguf, OtherGgmlTypesAreListedButNotForUse) {
  GgufWriter w;
  for (const GgmlType& type : kOtherGgmlTypes) {
    w.tensor(type.name, {static_cast<uint64_t>(type.block_elems)}, type.number,
             counting(static_cast<size_t>(type.block_bytes)));
  }
  w.tensor("good", {1}, 0, counting(4));
  const auto source = parse_gguf(w.finish());
  ASSERT_TRUE(source.ok()) << source.error().message;
  for (const GgmlType& type : kOtherGgmlTypes) {
    EXPECT_EQ((*source)->find(type.name), nullptr);
    const auto got = (*source)->get(type.name);
    ASSERT_FALSE(got.ok());
    EXPECT_EQ(got.error().code, ErrorCode::kUnsupported);
    EXPECT_THAT(got.error().message, AllOf(HasSubstr("tensor '" + std::string(type.name) + "'"),
                                           HasSubstr("(ggml type " + std::to_string(type.number) + ")")));
    EXPECT_EQ(ggml_type_name(type.number), type.name);
  }
  EXPECT_TRUE((*source)->get("good").ok());
  EXPECT_EQ(ggml_type_name(4), "");
}

TEST(Gguf, HonoursTheFilesAlignment) {
  for (const uint32_t alignment : {8u, 64u, 4096u}) {
    GgufWriter w;
    w.alignment = alignment;
    w.number<uint32_t>("general.alignment", 4, alignment);
    w.tensor("a", {3}, 0, counting(12));
    w.tensor("b", {1}, 0, counting(4, 70));
    const auto source = parse_gguf(w.finish());
    ASSERT_TRUE(source.ok()) << source.error().message;
    EXPECT_EQ(bytes_of(*(*source)->find("b")), counting(4, 70));
  }
}

TEST(Gguf, PaddingAfterTheLastTensorIsFine) {
  GgufWriter w;
  w.tensor("a", {3}, 0, counting(12));
  EXPECT_TRUE(parse_gguf(w.finish() + std::string(20, '\0')).ok());
  EXPECT_FALSE(parse_gguf(w.finish() + std::string(32, '\0')).ok());
  GgufWriter vocab_only;
  vocab_only.string("general.architecture", "llama");
  EXPECT_TRUE(parse_gguf(vocab_only.finish()).ok());
  EXPECT_TRUE(parse_gguf(vocab_only.finish() + std::string(31, '\0')).ok());
}

TEST(Gguf, RandomFilesRoundTrip) {
  std::mt19937_64 random(21);
  for (int round = 0; round < 300; ++round) {
    GgufWriter w;
    std::vector<std::pair<std::string, std::vector<std::string>>> lists;
    for (uint64_t i = random() % 5; i > 0; --i) {
      std::vector<std::string> words;
      for (uint64_t n = random() % 20; n > 0; --n)
        words.push_back(counting(random() % 10, static_cast<int>(random() % 90)));
      lists.emplace_back("key." + std::to_string(i), words);
      w.strings(lists.back().first, words);
    }
    struct Expected {
      std::string name;
      DType type;
      std::vector<int64_t> shape;
      std::string data;
    };
    std::vector<Expected> tensors;
    for (uint64_t i = random() % 8; i > 0; --i) {
      const DTypeInfo& type = kGgufDTypes[random() % kNumGgufDTypes];
      std::vector<uint64_t> dims = {(1 + random() % 3) * static_cast<uint64_t>(type.block_elems)};
      uint64_t rows = 1;
      for (uint64_t d = random() % 4; d > 0; --d) {
        dims.push_back(1 + random() % 4);
        rows *= dims.back();
      }
      const size_t bytes = static_cast<size_t>(row_bytes(type.type, static_cast<int64_t>(dims[0]))) * rows;
      tensors.push_back(
          {"t" + std::to_string(i), type.type, {dims.rbegin(), dims.rend()}, counting(bytes, static_cast<int>(i))});
      w.tensor(tensors.back().name, dims, static_cast<uint32_t>(type.gguf_type), tensors.back().data);
    }
    const auto source = parse_gguf(w.finish());
    ASSERT_TRUE(source.ok()) << source.error().message;
    for (const auto& [key, words] : lists) {
      const auto got = (*source)->metadata().get_strings(key).value();
      EXPECT_EQ(std::vector<std::string>(got.begin(), got.end()), words);
    }
    for (const Expected& t : tensors) {
      const TensorRef* found = (*source)->find(t.name);
      ASSERT_NE(found, nullptr);
      EXPECT_EQ(found->dtype, t.type);
      EXPECT_EQ(found->shape, t.shape);
      EXPECT_EQ(bytes_of(*found), t.data);
    }
  }
}

TEST(GgufSplit, NamesOfPartsAreRecognised) {
  const auto part = parse_gguf_split_name("big-model-00002-of-00011.gguf");
  ASSERT_TRUE(part.has_value());
  EXPECT_EQ(part->stem, "big-model");
  EXPECT_EQ(part->number, 2);
  EXPECT_EQ(part->count, 11);
  EXPECT_EQ(gguf_split_name(*part), "big-model-00002-of-00011.gguf");
  for (const char* other :
       {"model.gguf", "m-00003-of-00002.gguf", "m-00000-of-00002.gguf", "m-0001-of-00002.gguf", "m-00001-of-00002.bin",
        "-00001-of-00002.gguf", "m--0001-of-00002.gguf", "m-1x001-of-00002.gguf"}) {
    EXPECT_FALSE(parse_gguf_split_name(other).has_value()) << other;
  }
}

std::string split_part(uint16_t number, uint16_t count, std::string_view tensor, int32_t all = 3) {
  GgufWriter w;
  w.number<uint16_t>("split.no", 2, number);
  w.number<uint16_t>("split.count", 2, count);
  w.number<int32_t>("split.tensors.count", 5, all);
  if (number == 0) w.string("general.architecture", "llama");
  w.tensor(tensor, {2}, 0, counting(8, number));
  return w.finish();
}

TEST(GgufSplit, AllPartsAreOpenedThroughTheFirst) {
  const TempFolder folder;
  for (uint16_t i = 0; i < 3; ++i) {
    folder.write(gguf_split_name({"m", i + 1, 3}), split_part(i, 3, "t" + std::to_string(i)));
  }
  const auto source = GgufSource::open(folder.path() / "m-00001-of-00003.gguf");
  ASSERT_TRUE(source.ok()) << source.error().message;
  EXPECT_EQ((*source)->names(), (std::vector<std::string>{"t0", "t1", "t2"}));
  EXPECT_EQ(bytes_of(*(*source)->find("t2")), counting(8, 2));
  EXPECT_EQ((*source)->metadata().get_string("general.architecture").value(), "llama");
  EXPECT_THAT((*source)->describe(), HasSubstr("3 files"));

  const auto second = GgufSource::open(folder.path() / "m-00002-of-00003.gguf");
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.error().message, AllOf(HasSubstr("part 2"), HasSubstr("'m-00001-of-00003.gguf'")));
}

TEST(GgufSplit, BrokenSetsAreRefused) {
  const auto message = [](std::string_view second, std::string_view name, int32_t all = 2,
                          std::string_view first_name = "m-00001-of-00002.gguf") {
    const TempFolder folder;
    const auto first = folder.write(std::string(first_name), split_part(0, 2, "a", all));
    if (!name.empty()) folder.write(std::string(name), second);
    const auto source = GgufSource::open(first);
    return source.ok() ? std::string("no error") : source.error().message;
  };
  const char* kSecond = "m-00002-of-00002.gguf";
  EXPECT_EQ(message(split_part(1, 2, "b", 2), kSecond), "no error");
  EXPECT_THAT(message("", ""), AllOf(HasSubstr(kSecond), HasSubstr("part 2 of 2")));
  EXPECT_THAT(message(split_part(0, 2, "b"), kSecond), HasSubstr("its metadata says part 1 of 2"));
  EXPECT_THAT(message(split_part(1, 3, "b"), kSecond), HasSubstr("part 2 of 3"));
  EXPECT_THAT(message(split_part(1, 2, "a"), kSecond), HasSubstr("'a' is in another part"));
  EXPECT_THAT(message(split_part(1, 2, "b"), kSecond, 3), HasSubstr("split.tensors.count"));
  EXPECT_THAT(message("", "", 2, "renamed.gguf"), AllOf(HasSubstr("renamed.gguf"), HasSubstr("-00001-of-00002.gguf")));
  EXPECT_THAT(message("garbage", kSecond), AllOf(HasSubstr(kSecond), HasSubstr("not a GGUF file")));
  const auto part = parse_gguf(split_part(0, 2, "a"));
  ASSERT_FALSE(part.ok());
  EXPECT_THAT(part.error().message, HasSubstr("it is a part of a set of 2"));
}

}  // namespace
}  // namespace quire::weights
