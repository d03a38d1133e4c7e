// SPDX-License-Identifier: Apache-2.0
// The safetensors reader: valid files, and every kind of invalid header.
#include "weights/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "weights/test_files.h"

namespace quire::weights {
namespace {

using ::testing::AllOf;
using testing::bytes_of;
using testing::counting;
using testing::exact_copy;
using ::testing::HasSubstr;
using testing::safetensors_file;
using testing::SafetensorsTensor;
using testing::TempFolder;

Result<std::shared_ptr<const SafetensorsSource>> parse_safetensors(std::string_view bytes) {
  const auto copy = exact_copy(bytes);
  return SafetensorsSource::parse(*copy, "lie.safetensors", copy);
}

TEST(Safetensors, ReadsTensorsOfEveryUsableType) {
  const auto source = parse_safetensors(safetensors_file({{"a.weight", "F32", {2, 3}, counting(24)},
                                                          {"b.weight", "F16", {4}, counting(8, 50)},
                                                          {"c.weight", "BF16", {1, 2, 3}, counting(12, 90)},
                                                          {"scalar", "F32", {}, counting(4, 120)},
                                                          {"none", "F32", {0, 7}, ""}}));
  ASSERT_TRUE(source.ok()) << source.error().message;
  const SafetensorsSource& s = **source;
  EXPECT_EQ(s.names(), (std::vector<std::string>{"a.weight", "b.weight", "c.weight", "scalar", "none"}));
  EXPECT_EQ(s.total_bytes(), 24 + 8 + 12 + 4);
  const TensorRef* a = s.find("a.weight");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->dtype, DType::kF32);
  EXPECT_EQ(a->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(a->rows(), 2);
  EXPECT_EQ(a->columns(), 3);
  EXPECT_EQ(bytes_of(*a), counting(24));
  EXPECT_EQ(bytes_of(*s.find("b.weight")), counting(8, 50));
  EXPECT_EQ(s.find("c.weight")->dtype, DType::kBF16);
  EXPECT_EQ(s.find("scalar")->elements(), 1);
  EXPECT_EQ(s.find("none")->elements(), 0);
  EXPECT_EQ(s.metadata(), (std::vector<std::pair<std::string, std::string>>{{"format", "pt"}}));
  EXPECT_THAT(s.describe(), HasSubstr("5 tensors (3 F32, 1 F16, 1 BF16)"));
}

TEST(Safetensors, MissingTensorIsAnErrorThatNamesItAndTheFile) {
  const auto source = parse_safetensors(safetensors_file({{"a", "F32", {1}, counting(4)}}));
  ASSERT_TRUE(source.ok());
  EXPECT_EQ((*source)->find("model.norm.weight"), nullptr);
  const auto missing = (*source)->get("model.norm.weight");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(missing.error().message, AllOf(HasSubstr("model.norm.weight"), HasSubstr("lie.safetensors")));
}

TEST(Safetensors, RequireChecksTheShapeAndForgivesLeadingOnes) {
  const auto source = parse_safetensors(safetensors_file({{"a", "F32", {1, 2, 3}, counting(24)}}));
  ASSERT_TRUE(source.ok());
  EXPECT_TRUE((*source)->require("a", std::vector<int64_t>{1, 2, 3}).ok());
  EXPECT_TRUE((*source)->require("a", std::vector<int64_t>{2, 3}).ok());
  const auto wrong = (*source)->require("a", std::vector<int64_t>{3, 2});
  ASSERT_FALSE(wrong.ok());
  EXPECT_THAT(wrong.error().message, AllOf(HasSubstr("'a'"), HasSubstr("[1, 2, 3]"), HasSubstr("[3, 2]")));
  EXPECT_FALSE((*source)->require("a", std::vector<int64_t>{6}).ok());
}

TEST(Safetensors, OtherTypesAreListedButNotForUse) {
  const auto source = parse_safetensors(safetensors_file({{"position_ids", "I64", {2}, counting(16)},
                                                          {"w", "F8_E4M3", {4}, counting(4)},
                                                          {"fp4", "F4", {2, 2}, counting(2)},
                                                          {"ok", "F32", {1}, counting(4)}}));
  ASSERT_TRUE(source.ok()) << source.error().message;
  EXPECT_EQ((*source)->names().size(), 4u);
  EXPECT_EQ((*source)->find("position_ids"), nullptr);
  const auto got = (*source)->get("position_ids");
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(got.error().message, AllOf(HasSubstr("position_ids"), HasSubstr("I64")));
  ASSERT_EQ((*source)->unsupported().size(), 3u);
  EXPECT_EQ((*source)->unsupported()[1].type_name, "F8_E4M3");
  EXPECT_EQ((*source)->total_bytes(), 26);
}

TEST(Safetensors, DataThatIsNotAlignedIsCopiedToAnAlignedPlace) {
  for (size_t pad = 0; pad < 8; ++pad) {
    std::string header = R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}})";
    header.append(pad, ' ');
    const auto source = parse_safetensors(safetensors_file(header, counting(12)));
    ASSERT_TRUE(source.ok()) << source.error().message;
    const TensorRef* a = (*source)->find("a");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(a->data.data()) % 4, 0u);
    EXPECT_EQ(bytes_of(*a), counting(12));
  }
}

TEST(Safetensors, ATensorOutlivesItsSource) {
  TensorRef a;
  {
    const auto source = parse_safetensors(safetensors_file({{"a", "F32", {2}, counting(8)}}));
    ASSERT_TRUE(source.ok());
    a = *(*source)->find("a");
  }
  EXPECT_EQ(bytes_of(a), counting(8));
}

struct HeaderLie {
  const char* name;
  std::string header;
  std::string data;
  const char* says;  // must be in the message
};

TEST(Safetensors, EachLieIsOneClearError) {
  const std::string good = R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const std::string eight = counting(8);
  const std::vector<HeaderLie> lies = {
      {"not JSON", R"({"a":)", "", "not valid JSON"},
      {"an array", R"([1,2,3])", "", "not a JSON object"},
      {"text after it", R"({} {})", "", "not valid JSON"},
      {"too deep", R"({"a":[[[[[[[[[[[[1]]]]]]]]]]]]})", "", "nested too deeply"},
      {"entry is a number", R"({"a":3})", "", "not an object"},
      {"no dtype", R"({"a":{"shape":[2],"data_offsets":[0,8]}})", eight, "dtype is not a string"},
      {"dtype a number", R"({"a":{"dtype":32,"shape":[2],"data_offsets":[0,8]}})", eight, "dtype is not a string"},
      {"unknown dtype", R"({"a":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})", eight, "'F33'"},
      {"lower case dtype", R"({"a":{"dtype":"f32","shape":[2],"data_offsets":[0,8]}})", eight, "'f32'"},
      {"no shape", R"({"a":{"dtype":"F32","data_offsets":[0,8]}})", eight, "shape is not an array"},
      {"negative shape", R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", eight, "whole number"},
      {"fractional shape", R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", eight, "whole number"},
      {"product overflows", R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,2],"data_offsets":[0,8]}})", eight,
       "too large"},
      {"product overflows to the right size",
       R"({"a":{"dtype":"F32","shape":[4611686018427387905,4],"data_offsets":[0,16]}})", counting(16), "too large"},
      {"bytes overflow", R"({"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,8]}})", eight,
       "does not fill"},
      {"shape larger than int64", R"({"a":{"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,8]}})", eight,
       "whole number"},
      {"shape too small", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}})", eight, "does not fill"},
      {"half a byte", R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}})", counting(1), "does not fill"},
      {"no offsets", R"({"a":{"dtype":"F32","shape":[2]}})", eight, "data_offsets"},
      {"three offsets", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4,8]}})", eight, "data_offsets"},
      {"offsets of strings", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":["0","8"]}})", eight, "data_offsets"},
      {"offsets reversed", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", eight, "not a range"},
      {"negative offset", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[-8,0]}})", eight, "not a range"},
      {"past the end", R"({"a":)" + good + R"(,"b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})", eight,
       "tensor 'b' ends at byte 16"},
      {"overlap", R"({"a":)" + good + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", eight,
       "'a' and 'b' overlap"},
      {"same place twice", R"({"a":)" + good + R"(,"b":)" + good + "}", eight, "overlap"},
      {"hole", R"({"a":)" + good + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}})", counting(16),
       "bytes 8 to 12"},
      {"hole in front", R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", eight, "bytes 0 to 4"},
      {"rest", R"({"a":)" + good + "}", counting(9), "1 bytes after the last tensor"},
      {"data without tensors", "{}", counting(1), "1 bytes after"},
      {"empty tensor in the middle", R"({"a":)" + good + R"(,"b":{"dtype":"F32","shape":[0],"data_offsets":[4,4]}})",
       eight, "overlap"},
      {"name twice", R"({"a":)" + good + R"(,"a":)" + good + "}", eight, "same member name twice"},
      {"field twice", R"({"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", eight, "twice"},
      {"metadata a string", R"({"__metadata__":"x"})", "", "__metadata__"},
      {"metadata of numbers", R"({"__metadata__":{"x":1}})", "", "__metadata__"},
  };
  for (const HeaderLie& lie : lies) {
    const auto source = parse_safetensors(safetensors_file(lie.header, lie.data));
    ASSERT_FALSE(source.ok()) << lie.name;
    EXPECT_THAT(source.error().message, AllOf(HasSubstr("lie.safetensors"), HasSubstr(lie.says))) << lie.name;
    EXPECT_EQ(source.error().code, ErrorCode::kCorrupt) << lie.name;
  }
  EXPECT_TRUE(parse_safetensors(safetensors_file(R"({"a":)" + good + "}", eight)).ok())
      << "the base of the lies is true";
}

TEST(Safetensors, EveryHeaderSizeButTheRightOneIsRefused) {
  const std::string file = safetensors_file({{"a", "F32", {2}, counting(8)}});
  uint64_t right = 0;
  std::memcpy(&right, file.data(), 8);
  std::vector<uint64_t> sizes = {~uint64_t{0}, uint64_t{1} << 63, uint64_t{1} << 32, 100'000'001, file.size()};
  for (uint64_t size = 0; size < file.size() + 9; ++size) sizes.push_back(size);
  for (const uint64_t size : sizes) {
    std::string changed = file;
    std::memcpy(changed.data(), &size, 8);
    // Cutting padding off the header moves the data, which then has bytes left over: an error, too.
    EXPECT_EQ(parse_safetensors(changed).ok(), size == right) << size;
  }
}

TEST(Safetensors, TruncatedAtAnyByteIsRefused) {
  const std::string file = safetensors_file({{"a", "F32", {2}, counting(8)}, {"b", "BF16", {3}, counting(6)}});
  ASSERT_TRUE(parse_safetensors(file).ok());
  for (size_t size = 0; size < file.size(); ++size) {
    const auto source = parse_safetensors(std::string_view(file).substr(0, size));
    ASSERT_FALSE(source.ok()) << size;
    EXPECT_THAT(source.error().message, HasSubstr("lie.safetensors"));
  }
}

// Every file that is accepted, whatever its origin, has tensors that are inside the buffer and cover it.
TEST(Safetensors, AnyByteChangedIsRefusedOrStillConsistent) {
  const std::string file = safetensors_file({{"a", "F32", {2, 2}, counting(16)}, {"b", "I8", {6}, counting(6)}});
  for (size_t at = 0; at + 22 < file.size(); ++at) {
    for (int flip = 1; flip < 256; ++flip) {
      std::string changed = file;
      changed[at] = static_cast<char>(changed[at] ^ flip);
      const auto source = parse_safetensors(changed);
      if (!source.ok()) continue;
      EXPECT_EQ((*source)->total_bytes(), 22) << at << " ^ " << flip;
      for (const std::string& name : (*source)->names()) {
        const TensorRef* tensor = (*source)->find(name);
        if (tensor == nullptr) continue;
        EXPECT_EQ(static_cast<int64_t>(tensor->data.size()), tensor->elements() * info(tensor->dtype).block_bytes);
      }
    }
  }
}

TEST(Safetensors, RandomFilesRoundTrip) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<SafetensorsTensor> tensors;
    const int count = static_cast<int>(random() % 12);
    for (int i = 0; i < count; ++i) {
      static constexpr const char* kNames[] = {"F32", "F16", "BF16", "I64", "U8", "BOOL"};
      static constexpr size_t kSizes[] = {4, 2, 2, 8, 1, 1};
      const size_t type = random() % 6;
      SafetensorsTensor t{"t" + std::to_string(i), kNames[type], {}, ""};
      size_t elements = 1;
      for (size_t d = random() % 4; d > 0; --d) {
        t.shape.push_back(static_cast<int64_t>(random() % 5));
        elements *= static_cast<size_t>(t.shape.back());
      }
      t.data = counting(elements * kSizes[type], static_cast<int>(random() % 100));
      tensors.push_back(std::move(t));
    }
    const auto source = parse_safetensors(safetensors_file(tensors));
    ASSERT_TRUE(source.ok()) << source.error().message;
    for (const SafetensorsTensor& t : tensors) {
      const TensorRef* found = (*source)->find(t.name);
      if (t.dtype == "I64" || t.dtype == "U8" || t.dtype == "BOOL") {
        EXPECT_EQ(found, nullptr);
      } else {
        ASSERT_NE(found, nullptr);
        EXPECT_EQ(found->shape, t.shape);
        EXPECT_EQ(bytes_of(*found), t.data);
      }
    }
  }
}

// Two shards and their index in a folder.
struct Sharded {
  TempFolder folder;
  std::filesystem::path index;
  explicit Sharded(std::string_view weight_map) {
    folder.write("one.safetensors", safetensors_file({{"a", "F32", {2}, counting(8)}, {"b", "F32", {1}, counting(4)}}));
    folder.write("two.safetensors", safetensors_file({{"c", "BF16", {2}, counting(4, 60)}}));
    index = folder.write("model.safetensors.index.json",
                         R"({"metadata":{"total_size":16},"weight_map":)" + std::string(weight_map) + "}");
  }
};

TEST(Safetensors, ReadsShardsThroughTheIndex) {
  const Sharded files(R"({"a":"one.safetensors","b":"one.safetensors","c":"two.safetensors"})");
  const auto source = SafetensorsSource::open_sharded(files.index);
  ASSERT_TRUE(source.ok()) << source.error().message;
  EXPECT_EQ((*source)->names(), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(bytes_of(*(*source)->find("c")), counting(4, 60));
  EXPECT_THAT((*source)->describe(), HasSubstr("2 files, 3 tensors"));
  const TensorRef& c = *(*source)->find("c");
  (*source)->release_part(c, c.data.first(2));
  (*source)->release_part(c, {});
  (*source)->release(c);
  EXPECT_EQ(bytes_of(*(*source)->find("c")), counting(4, 60)) << "released bytes come back from the file";
  EXPECT_EQ(safetensors_index_files(files.index).value(),
            (std::vector<std::string>{"one.safetensors", "two.safetensors"}));
}

TEST(Safetensors, AnIndexThatLiesIsRefused) {
  const std::pair<const char*, const char*> lies[] = {
      {R"({"a":"one.safetensors","c":"three.safetensors"})", "three.safetensors"},
      {R"({"a":"one.safetensors","d":"two.safetensors"})", "tensor 'd' should be in 'two.safetensors'"},
      {R"({"a":"two.safetensors","b":"one.safetensors"})", "but is in 'one.safetensors'"},
      {R"({"a":"../one.safetensors"})", "not the plain name"},
      {R"({"a":"/etc/passwd"})", "not the plain name"},
      {R"({"a":".."})", "not the plain name"},
      {R"({"a":""})", "not the plain name"},
      {R"({"a":"x\\y"})", "not the plain name"},
      {R"({"a":"one.safetensors\u0000"})", "not the plain name"},
      {R"({"a":7})", "not the plain name"},
      {R"({"a":"one.safetensors","a":"two.safetensors"})", "same member name twice"},
      {R"({})", "empty"},
      {R"([])", "not an object"},
      {R"({"a":)", "not valid JSON"},
  };
  for (const auto& [map, says] : lies) {
    const Sharded files(map);
    const auto source = SafetensorsSource::open_sharded(files.index);
    ASSERT_FALSE(source.ok()) << map;
    EXPECT_THAT(source.error().message, AllOf(HasSubstr("model.safetensors.index.json"), HasSubstr(says))) << map;
  }
}

TEST(Safetensors, ATensorInTwoShardsIsRefused) {
  const Sharded files(R"({"a":"one.safetensors","c":"two.safetensors"})");
  files.folder.write("two.safetensors",
                     safetensors_file({{"a", "F32", {1}, counting(4)}, {"c", "F32", {1}, counting(4)}}));
  const auto source = SafetensorsSource::open_sharded(files.index);
  ASSERT_FALSE(source.ok());
  EXPECT_THAT(source.error().message, AllOf(HasSubstr("two.safetensors"), HasSubstr("'a' is in another shard")));
}

}  // namespace
}  // namespace quire::weights
