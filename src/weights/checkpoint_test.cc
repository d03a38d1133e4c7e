// SPDX-License-Identifier: Apache-2.0
// Paths that users give: which open, and the message for each wrong one.
#include "weights/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weights/test_files.h"

namespace quire::weights {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using testing::counting;
using testing::GgufWriter;
using testing::safetensors_file;
using testing::TempFolder;

std::string some_safetensors(const std::string& tensor) {
  return safetensors_file({{tensor, "F32", {2}, counting(8)}});
}
std::string some_gguf(const std::string& tensor) {
  GgufWriter w;
  w.string("general.architecture", "llama");
  w.tensor(tensor, {2}, 0, counting(8));
  return w.finish();
}
// The error's message, or "opened" and the tensor names.
std::string outcome(const std::filesystem::path& path) {
  const auto checkpoint = open_checkpoint(path);
  if (!checkpoint.ok()) return checkpoint.error().message;
  std::string out = "opened";
  for (const std::string& name : checkpoint->weights->names()) out += " " + name;
  return out;
}

TEST(Checkpoint, OpensAFolderWithOneSafetensorsFile) {
  const TempFolder folder;
  folder.write("config.json", "{}");
  folder.write("model.safetensors", some_safetensors("a"));
  const auto checkpoint = open_checkpoint(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->files.format, CheckpointFormat::kSafetensors);
  EXPECT_EQ(checkpoint->files.folder, folder.path());
  EXPECT_EQ(checkpoint->gguf, nullptr);
  EXPECT_NE(checkpoint->weights->find("a"), nullptr);
}

TEST(Checkpoint, OpensAnyOneSafetensorsNameButPrefersTheUsualOne) {
  const TempFolder folder;
  folder.write("odd.safetensors", some_safetensors("odd"));
  EXPECT_EQ(outcome(folder.path()), "opened odd");
  folder.write("model.safetensors", some_safetensors("usual"));
  EXPECT_EQ(outcome(folder.path()), "opened usual");
  EXPECT_EQ(outcome(folder.path() / "odd.safetensors"), "opened odd");
  EXPECT_EQ(outcome(folder.path() / "model.safetensors"), "opened usual");
}

TEST(Checkpoint, OpensAShardedFolderAlsoThroughOneOfItsShards) {
  const TempFolder folder;
  folder.write("one.safetensors", some_safetensors("a"));
  folder.write("two.safetensors", some_safetensors("b"));
  EXPECT_THAT(outcome(folder.path()), HasSubstr("no model.safetensors.index.json"));
  folder.write("model.safetensors.index.json", R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  EXPECT_EQ(outcome(folder.path()), "opened a b");
  EXPECT_EQ(outcome(folder.path() / "two.safetensors"), "opened a b");
  EXPECT_EQ(outcome(folder.path() / "model.safetensors.index.json"), "opened a b");
  folder.write("consolidated.safetensors", some_safetensors("c"));
  EXPECT_EQ(outcome(folder.path()), "opened a b");
  EXPECT_EQ(outcome(folder.path() / "consolidated.safetensors"), "opened c");
}

TEST(Checkpoint, OpensAGgufFileOrAFolderWithOne) {
  const TempFolder folder;
  folder.write("README.md", "hello");
  folder.write("m.gguf", some_gguf("t"));
  for (const auto& path : {folder.path(), folder.path() / "m.gguf"}) {
    const auto checkpoint = open_checkpoint(path);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    EXPECT_EQ(checkpoint->files.format, CheckpointFormat::kGguf);
    EXPECT_EQ(checkpoint->files.folder, folder.path());
    ASSERT_NE(checkpoint->gguf, nullptr);
    EXPECT_EQ(checkpoint->gguf->metadata().get_string("general.architecture").value(), "llama");
    EXPECT_EQ(checkpoint->weights.get(), checkpoint->gguf.get());
  }
  folder.write("sha256-0123", some_gguf("blob"));
  EXPECT_EQ(outcome(folder.path() / "sha256-0123"), "opened blob") << "a GGUF is known by its first bytes too";
}

TEST(Checkpoint, SeveralGgufModelsNeedAName) {
  const TempFolder folder;
  folder.write("m.Q4.gguf", some_gguf("t"));
  folder.write("m.Q8.gguf", some_gguf("t"));
  EXPECT_THAT(outcome(folder.path()), AllOf(HasSubstr("'m.Q4.gguf', 'm.Q8.gguf'"), HasSubstr("name the one")));
  EXPECT_EQ(outcome(folder.path() / "m.Q8.gguf"), "opened t");
}

TEST(Checkpoint, ASplitSetCountsAsOneModel) {
  const TempFolder folder;
  for (uint16_t i = 0; i < 2; ++i) {
    GgufWriter w;
    w.number<uint16_t>("split.no", 2, i);
    w.number<uint16_t>("split.count", 2, 2);
    w.tensor("t" + std::to_string(i), {2}, 0, counting(8));
    folder.write(gguf_split_name({"m", i + 1, 2}), w.finish());
  }
  EXPECT_EQ(outcome(folder.path()), "opened t0 t1");
  std::filesystem::remove(folder.path() / "m-00001-of-00002.gguf");
  EXPECT_THAT(outcome(folder.path()), HasSubstr("m-00001-of-00002.gguf"));
}

TEST(Checkpoint, SaysWhatIsThereInsteadOfAModel) {
  const TempFolder folder;
  EXPECT_THAT(outcome(folder.path() / "nothing"), AllOf(HasSubstr("nothing'"), HasSubstr("no such file or folder")));
  EXPECT_THAT(outcome(""), HasSubstr("no such file or folder"));
  EXPECT_THAT(outcome(folder.path()), HasSubstr("empty folder"));
  folder.write("notes.txt", "hello");
  EXPECT_THAT(outcome(folder.path()), HasSubstr("no *.safetensors and no *.gguf"));
  EXPECT_THAT(outcome(folder.path() / "notes.txt"), HasSubstr("not a model that quire reads"));
  folder.write("config.json", "{}");
  EXPECT_THAT(outcome(folder.path()), HasSubstr("--load-format dummy"));
  folder.write("model.safetensors.incomplete", "x");
  EXPECT_THAT(outcome(folder.path()), HasSubstr("unfinished downloads"));
  folder.write("pytorch_model.bin", "PK\x03\x04");
  EXPECT_THAT(outcome(folder.path()), AllOf(HasSubstr("pytorch_model.bin"), HasSubstr("convert them to safetensors")));
  EXPECT_THAT(outcome("/dev/null"), HasSubstr("neither a file nor a folder"));
}

TEST(Checkpoint, RecognisesFilesThatOnlyHaveAModelsName) {
  const std::pair<std::string, const char*> wrong[] = {
      {"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n", "Git LFS pointer"},
      {"<!DOCTYPE html>\n<html><body>Not found</body></html>", "web page"},
      {"\n  <HTML>", "web page"},
      {"{\"error\":\"Repository not found\"}", "error message"},
      {"Entry not found", "error message"},
      {std::string("PK\x03\x04zip", 7), "zip archive"},
      {"", "is empty"},
  };
  for (const char* name : {"m.gguf", "model.safetensors"}) {
    for (const auto& [bytes, says] : wrong) {
      const TempFolder folder;
      folder.write(name, bytes);
      EXPECT_THAT(outcome(folder.path()), AllOf(HasSubstr(name), HasSubstr(says))) << name;
      EXPECT_THAT(outcome(folder.path() / name), AllOf(HasSubstr(name), HasSubstr(says))) << name;
    }
  }
  const TempFolder folder;
  folder.write("model.safetensors.index.json", "version https://git-lfs.github.com/spec/v1\n");
  EXPECT_THAT(outcome(folder.path()), AllOf(HasSubstr("index.json"), HasSubstr("Git LFS pointer")));
}

TEST(Checkpoint, ACutDownloadSaysToFetchItAgain) {
  const TempFolder folder;
  const std::string gguf = some_gguf("t");
  const std::string safetensors = some_safetensors("a");
  folder.write("m.gguf", std::string_view(gguf).substr(0, gguf.size() - 3));
  folder.write("model.safetensors", std::string_view(safetensors).substr(0, safetensors.size() - 3));
  EXPECT_THAT(outcome(folder.path() / "m.gguf"), AllOf(HasSubstr("m.gguf"), HasSubstr("fetch it again")));
  EXPECT_THAT(outcome(folder.path()), AllOf(HasSubstr("model.safetensors"), HasSubstr("fetch it again")));
}

}  // namespace
}  // namespace quire::weights
