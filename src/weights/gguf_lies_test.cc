// SPDX-License-Identifier: Apache-2.0
// Broken GGUF files: each field changed in turn, files truncated anywhere, any byte flipped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "weights/gguf.h"
#include "weights/test_files.h"

namespace quire::weights {
namespace {

using ::testing::AllOf;
using testing::append;
using testing::counting;
using testing::exact_copy;
using testing::GgufWriter;
using ::testing::HasSubstr;

Result<std::shared_ptr<const GgufSource>> parse_lie(std::string_view bytes) {
  const auto copy = exact_copy(bytes);
  return GgufSource::parse(*copy, "lie.gguf", copy);
}

constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();

// A length that exceeds the file.
std::string length(uint64_t n) {
  std::string out;
  append(out, n);
  return out;
}

struct GgufLie {
  const char* name;
  std::function<void(GgufWriter&)> tell;
  const char* says;  // must be in the message
  ErrorCode code = ErrorCode::kCorrupt;
};

TEST(GgufLies, EachIsOneClearError) {
  const std::string eight = counting(8);
  const std::vector<GgufLie> lies = {
      {"magic", [](GgufWriter& w) { w.magic = 0x46554746; }, "not a GGUF file"},
      {"ggml magic", [](GgufWriter& w) { w.magic = 0x67676a74; }, "not a GGUF file"},
      {"version 0", [](GgufWriter& w) { w.version = 0; }, "version 0", ErrorCode::kUnsupported},
      {"version 1", [](GgufWriter& w) { w.version = 1; }, "version 1", ErrorCode::kUnsupported},
      {"version 4", [](GgufWriter& w) { w.version = 4; }, "version 4", ErrorCode::kUnsupported},
      {"big-endian", [](GgufWriter& w) { w.version = 0x03000000; }, "big-endian", ErrorCode::kUnsupported},
      {"tensor too many", [](GgufWriter& w) { w.tensor_count_error = 1; }, "tensor"},
      {"tensor too few", [](GgufWriter& w) { w.tensor_count_error = -1; }, "after the last tensor"},
      {"tensor count negative", [](GgufWriter& w) { w.tensor_count_error = -3; }, "tensor count"},
      {"tensor count huge", [](GgufWriter& w) { w.tensor_count_error = int64_t{1} << 40; }, "tensor count"},
      {"pair count huge", [](GgufWriter& w) { w.pair_count_error = int64_t{1} << 40; }, "metadata count"},
      {"pair count negative", [](GgufWriter& w) { w.pair_count_error = -7; }, "metadata count"},
      {"key empty", [](GgufWriter& w) { w.string("", "x"); }, "empty"},
      {"key not UTF-8", [](GgufWriter& w) { w.string("\xff\xfe", "x"); }, "not UTF-8"},
      {"key too long", [](GgufWriter& w) { w.string(std::string(70'000, 'k'), "x"); }, "length 70000"},
      {"key twice", [](GgufWriter& w) { w.string("general.name", "x"); }, "'general.name' occurs twice"},
      {"kind unknown", [](GgufWriter& w) { w.pair("k", 13, "xxxxxxxx"); }, "kind 13"},
      {"bool of 2", [](GgufWriter& w) { w.number<uint8_t>("k", 7, 2); }, "neither 0 nor 1"},
      {"bool array of 2", [](GgufWriter& w) { w.pair("k", 9, GgufWriter::array(7, 1, "\2")); }, "neither 0 nor 1"},
      {"string too long", [](GgufWriter& w) { w.pair("k", 8, length(5000)); }, "'k'"},
      {"string length huge", [](GgufWriter& w) { w.pair("k", 8, length(kHuge)); }, "'k'"},
      {"array kind unknown", [](GgufWriter& w) { w.pair("k", 9, GgufWriter::array(14, 1, "xx")); }, "kind 14"},
      {"array too long", [](GgufWriter& w) { w.pair("k", 9, GgufWriter::array(4, 5000, "")); }, "5000 elements"},
      {"array size overflows", [](GgufWriter& w) { w.pair("k", 9, GgufWriter::array(10, (kHuge >> 3) + 2, "")); },
       "'k'"},
      {"array count huge", [](GgufWriter& w) { w.pair("k", 9, GgufWriter::array(0, kHuge, "")); }, "'k'"},
      {"strings too many", [](GgufWriter& w) { w.pair("k", 9, GgufWriter::array(8, kHuge, "")); }, "strings"},
      {"string in an array too long",
       [](GgufWriter& w) { w.pair("k", 9, GgufWriter::array(8, 2, GgufWriter::text("a") + length(9000))); },
       "string 1 of metadata 'k'"},
      {"arrays too many", [](GgufWriter& w) { w.pair("k", 9, GgufWriter::array(9, kHuge, "")); }, "too many arrays"},
      {"arrays too deep",
       [](GgufWriter& w) {
         std::string nested = GgufWriter::array(0, 0, "");
         for (int i = 0; i < 5; ++i) nested = GgufWriter::array(9, 1, nested);
         w.pair("k", 9, nested);
       },
       "nested too deeply"},
      {"alignment 0", [](GgufWriter& w) { w.number<uint32_t>("general.alignment", 4, 0); }, "general.alignment"},
      {"alignment 24", [](GgufWriter& w) { w.number<uint32_t>("general.alignment", 4, 24); }, "power of two"},
      {"alignment huge", [](GgufWriter& w) { w.number<uint32_t>("general.alignment", 4, 1u << 31); },
       "general.alignment"},
      {"alignment a string", [](GgufWriter& w) { w.string("general.alignment", "32"); }, "general.alignment"},
      {"alignment other than the file's", [](GgufWriter& w) { w.number<uint32_t>("general.alignment", 4, 64); },
       "tensor 'b' needs 32 bytes at byte 64"},
      {"tensor name empty", [&](GgufWriter& w) { w.tensor("", {2}, 0, eight); }, "name of tensor 2"},
      {"tensor name not UTF-8", [&](GgufWriter& w) { w.tensor("\x80", {2}, 0, eight); }, "not UTF-8"},
      {"tensor twice", [&](GgufWriter& w) { w.tensor("a", {2}, 0, eight); }, "tensor 'a' occurs twice"},
      {"five dimensions",
       [&](GgufWriter& w) {
         w.tensor("x", {1, 1, 1, 1, 2}, 0, eight);
       },
       "5 dimensions"},
      {"dimension 0",
       [&](GgufWriter& w) {
         w.tensor("x", {2, 0}, 0, eight);
       },
       "dimension 1 is 0"},
      {"dimension negative", [&](GgufWriter& w) { w.tensor("x", {kHuge}, 0, eight); }, "dimension 0"},
      {"product overflows",
       [&](GgufWriter& w) {
         w.tensor("x", {uint64_t{1} << 32, uint64_t{1} << 32}, 0, eight);
       },
       "too large"},
      {"bytes overflow",
       [&](GgufWriter& w) {
         w.tensor("x", {uint64_t{1} << 61, 2}, 0, eight);
       },
       "too large"},
      {"type unknown", [&](GgufWriter& w) { w.tensor("x", {2}, 999, eight); }, "type number 999",
       ErrorCode::kUnsupported},
      {"type removed", [&](GgufWriter& w) { w.tensor("x", {2}, 4, eight); }, "type number 4", ErrorCode::kUnsupported},
      {"not whole blocks",
       [&](GgufWriter& w) {
         w.tensor("x", {48, 2}, 8, counting(102));
       },
       "not a multiple of the 32"},
      {"larger than the file", [&](GgufWriter& w) { w.tensor("x", {3}, 0, eight); }, "'x'"},
      {"offset past the end", [](GgufWriter& w) { w.tensor_at("x", {2}, 0, 1 << 20); }, "'x'"},
      {"offset overflows", [](GgufWriter& w) { w.tensor_at("x", {2}, 0, kHuge - 31); }, "'x'"},
      {"offset not aligned", [](GgufWriter& w) { w.tensor_at("x", {1}, 0, 36); }, "not a multiple of the alignment"},
      {"overlap", [](GgufWriter& w) { w.tensor_at("x", {2}, 0, 0); }, "'a' and 'x' overlap"},
      {"hole",
       [](GgufWriter& w) {
         w.data(std::string(128, '\0'));
         w.tensor("x", {2}, 0, counting(8));
       },
       "belong to no tensor"},
      {"rest", [](GgufWriter& w) { w.data(std::string(100, '\0')); }, "after the last tensor"},
  };
  for (const GgufLie& lie : lies) {
    GgufWriter w;
    w.string("general.name", "truth");
    w.tensor("a", {16}, 0, counting(64));
    w.tensor("b", {8}, 0, counting(32, 7));
    lie.tell(w);
    const auto source = parse_lie(w.finish());
    ASSERT_FALSE(source.ok()) << lie.name;
    EXPECT_THAT(source.error().message, AllOf(HasSubstr("lie.gguf"), HasSubstr(lie.says))) << lie.name;
    EXPECT_EQ(source.error().code, lie.code) << lie.name << ": " << source.error().message;
  }
}

// A small file with every kind of content, which ends with the last byte of its last tensor.
std::string a_bit_of_everything() {
  GgufWriter w;
  w.string("general.architecture", "llama");
  w.number<uint32_t>("llama.block_count", 4, 2);
  w.number<float>("llama.rope.freq_base", 6, 1e4f);
  w.number<uint8_t>("flag", 7, 1);
  w.number<int64_t>("long", 11, -5);
  w.strings("tokens", {"a", "", "ccc"});
  w.pair("nested", 9, GgufWriter::array(9, 1, GgufWriter::array(2, 2, "abcd")));
  w.tensor("a", {32, 2}, 8, counting(68));
  w.tensor("b", {3}, 0, counting(12, 9));
  w.tensor("c", {4}, 24, counting(4, 30));
  return w.finish();
}

TEST(GgufLies, TruncatedAtAnyByteIsRefused) {
  const std::string file = a_bit_of_everything();
  ASSERT_TRUE(parse_lie(file).ok());
  for (size_t size = 0; size < file.size(); ++size) {
    const auto source = parse_lie(std::string_view(file).substr(0, size));
    ASSERT_FALSE(source.ok()) << size;
    EXPECT_THAT(source.error().message, HasSubstr("lie.gguf")) << size;
  }
}

// Without tensors a file ends with its metadata, so the last string, number or array must end inside it.
TEST(GgufLies, MetadataCutAtAnyByteIsRefused) {
  std::string numbers;
  for (const int32_t v : {1, 2, 3}) append(numbers, v);
  for (int last = 0; last < 5; ++last) {
    GgufWriter w;
    w.string("general.architecture", "llama");
    if (last == 0) w.string("k", "a word");
    if (last == 1) w.strings("k", {"a", "list of", "words"});
    if (last == 2) w.pair("k", 9, GgufWriter::array(5, 3, numbers));
    if (last == 3) w.pair("k", 9, GgufWriter::array(9, 1, GgufWriter::array(8, 1, GgufWriter::text("nested"))));
    if (last == 4) w.number<double>("k", 12, 0.5);
    const std::string file = w.finish();
    ASSERT_TRUE(parse_lie(file).ok());
    for (size_t size = 0; size < file.size(); ++size) {
      EXPECT_FALSE(parse_lie(std::string_view(file).substr(0, size)).ok()) << last << " cut at " << size;
    }
  }
}

TEST(GgufLies, AnyByteChangedIsRefusedOrStillConsistent) {
  const std::string file = a_bit_of_everything();
  const auto inside = exact_copy(file);
  for (size_t at = 0; at < file.size(); ++at) {
    for (int flip = 1; flip < 256; ++flip) {
      (*inside)[at] ^= std::byte(flip);
      const auto source = GgufSource::parse(*inside, "lie.gguf", inside);
      (*inside)[at] ^= std::byte(flip);
      if (!source.ok()) {
        EXPECT_THAT(source.error().message, HasSubstr("lie.gguf"));
        continue;
      }
      for (const std::string& name : (*source)->names()) {
        const TensorRef* tensor = (*source)->find(name);
        if (tensor == nullptr) continue;
        ASSERT_EQ(static_cast<int64_t>(tensor->data.size()),
                  row_bytes(tensor->dtype, tensor->columns()) * tensor->rows());
        ASSERT_GE(tensor->data.data(), inside->data());
        ASSERT_LE(tensor->data.data() + tensor->data.size(), inside->data() + inside->size());
      }
    }
  }
}

TEST(GgufLies, NamesInMessagesAreMadeSafeToPrint) {
  GgufWriter w;
  w.string("evil\x1b[2Jkey", "x");
  w.string("evil\x1b[2Jkey", "x");
  const auto source = parse_lie(w.finish());
  ASSERT_FALSE(source.ok());
  EXPECT_THAT(source.error().message, HasSubstr("'evil\\x1b[2Jkey'"));
}

}  // namespace
}  // namespace quire::weights
