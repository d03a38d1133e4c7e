// SPDX-License-Identifier: Apache-2.0
// Tests of the files that a pull chooses, of the globs, and of the names that are rejected.
#include "cli/hub/file_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

std::vector<HubFile> files(std::initializer_list<const char*> paths) {
  std::vector<HubFile> all;
  for (const char* path : paths) all.push_back({path, 10, true, ""});
  return all;
}

std::vector<std::string> chosen(const std::vector<HubFile>& all, const ChoiceOptions& options = {}) {
  const auto choice = choose_files(all, options);
  EXPECT_TRUE(choice.ok()) << (choice.ok() ? "" : choice.error().message);
  std::vector<std::string> paths;
  if (choice.ok()) {
    for (const auto& file : choice->files) paths.push_back(file.path);
  }
  return paths;
}

std::string refused(const std::vector<HubFile>& all, const ChoiceOptions& options = {}) {
  const auto choice = choose_files(all, options);
  EXPECT_FALSE(choice.ok());
  return choice.ok() ? "" : choice.error().message;
}

TEST(FileChoice, TakesSafetensorsWithTheirCompanionsAndNothingElse) {
  const auto all = files({"README.md", "config.json", "model-00001-of-00002.safetensors", "LICENSE",
                          "model-00002-of-00002.safetensors", "model.safetensors.index.json", "tokenizer.json",
                          "chat_template.jinja", "consolidated.safetensors", "pytorch_model.bin", "onnx/model.onnx",
                          "original/params.json", "additional_chat_templates/tool_use.jinja", ".gitattributes"});
  EXPECT_THAT(chosen(all),
              UnorderedElementsAre("config.json", "model-00001-of-00002.safetensors", "LICENSE",
                                   "model-00002-of-00002.safetensors", "model.safetensors.index.json", "tokenizer.json",
                                   "chat_template.jinja", "additional_chat_templates/tool_use.jinja"));
}

TEST(FileChoice, TakesTheSmallFilesFirst) {
  const std::vector<HubFile> all = {{"model.safetensors", 1000, true, ""}, {"config.json", 10, true, ""}};
  EXPECT_EQ(chosen(all).front(), "config.json");
}

TEST(FileChoice, TakesOneQuantisationAndSaysWhatElseThereIs) {
  const auto all = files({"m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-Q2_K.gguf", "mmproj-F16.gguf", "config.json"});
  EXPECT_THAT(chosen(all), UnorderedElementsAre("m-Q4_K_M.gguf"));
  EXPECT_EQ(choose_files(all, {})->note, "Q4_K_M of Q2_K, Q4_K_M, Q8_0 (choose another with --quant)");
  EXPECT_THAT(chosen(all, {"a/m", {}, "q8_0"}), UnorderedElementsAre("m-Q8_0.gguf"));
  EXPECT_EQ(choose_files(all, {"a/m", {}, "Q8_0"})->note, "");
}

TEST(FileChoice, TakesAllPartsOfASplitFile) {
  EXPECT_THAT(chosen(files({"q/m-Q8_0-00001-of-00002.gguf", "q/m-Q8_0-00002-of-00002.gguf"})),
              UnorderedElementsAre("q/m-Q8_0-00001-of-00002.gguf", "q/m-Q8_0-00002-of-00002.gguf"));
}

TEST(FileChoice, NeverGuessesAmongDifferentModels) {
  EXPECT_THAT(refused(files({"a-Q8_0.gguf", "b-Q8_0.gguf"}), {"x/y", {}, ""}),
              AllOf(HasSubstr("a-Q8_0.gguf, b-Q8_0.gguf"), HasSubstr("--include")));
  EXPECT_THAT(refused(files({"a-IQ2_XS.gguf", "a-IQ3_XS.gguf"}), {"x/y", {}, ""}), HasSubstr("IQ2_XS, IQ3_XS"));
}

TEST(FileChoice, AMissingQuantisationListsTheOthers) {
  EXPECT_THAT(refused(files({"m-Q8_0.gguf"}), {"x/y", {}, "Q4_0"}),
              HasSubstr("x/y has no Q4_0 GGUF file; it has Q8_0"));
  EXPECT_THAT(refused(files({"config.json", "model.safetensors"}), {"x/y", {}, "Q4_0"}), HasSubstr("no GGUF files"));
}

TEST(FileChoice, PickledWeightsAloneAreRefused) {
  EXPECT_THAT(refused(files({"config.json", "pytorch_model.bin"}), {"x/y", {}, ""}), HasSubstr("neither safetensors"));
}

TEST(FileChoice, IncludeTakesExactlyWhatMatches) {
  const auto all = files({"config.json", "model.safetensors", "sub/a.txt"});
  EXPECT_THAT(chosen(all, {"x/y", {"*.txt", "config.*"}, ""}), UnorderedElementsAre("config.json", "sub/a.txt"));
  EXPECT_THAT(refused(all, {"x/y", {"*.zip"}, ""}), HasSubstr("--include *.zip"));
}

TEST(Glob, MatchesAsAShellDoes) {
  EXPECT_TRUE(glob_matches("*", ""));
  EXPECT_TRUE(glob_matches("*.json", "a.json"));
  EXPECT_TRUE(glob_matches("*.json", "sub/a.json"));
  EXPECT_FALSE(glob_matches("*.json", "a.jsonl"));
  EXPECT_TRUE(glob_matches("a?c", "abc"));
  EXPECT_FALSE(glob_matches("a?c", "ac"));
  EXPECT_TRUE(glob_matches("[a-c]x[!0-9]", "bxz"));
  EXPECT_FALSE(glob_matches("[a-c]x[!0-9]", "bx3"));
  EXPECT_TRUE(glob_matches("[]]", "]"));
  EXPECT_TRUE(glob_matches("[abc", "[abc"));
  EXPECT_TRUE(glob_matches("*a*b*c*", "xxaxxbxxcxx"));
  EXPECT_FALSE(glob_matches("*a*b*c*", "xxaxxcxxbxx"));
  EXPECT_TRUE(glob_matches("", ""));
  EXPECT_FALSE(glob_matches("", "a"));
  EXPECT_TRUE(glob_matches("*Q4_K_M*", "m-Q4_K_M-00001-of-00002.gguf"));
}

TEST(Glob, ManyStarsTakeNoExponentialTime) {
  std::string pattern;
  for (int i = 0; i < 200; ++i) pattern += "*a";
  EXPECT_FALSE(glob_matches(pattern + "b", std::string(5000, 'a')));
}

TEST(SafePath, RefusesWhatCouldLeaveTheFolder) {
  for (const char* path : {"config.json", "sub/a.gguf", "a..b", "..a", "a.", ".gitattributes", "\xc3\xa9.json"}) {
    EXPECT_TRUE(is_safe_path(path)) << path;
  }
  for (const char* path : {"", "/etc/passwd", "..", "../x", "a/../b", "a/..", "./a", "a//b", "a/", "a\\b", "a\nb",
                           "\x7f", ".quire-pull.json", "sub/.quire-pull.lock", "x.part", "x.part.etag"}) {
    EXPECT_FALSE(is_safe_path(path)) << path;
  }
  EXPECT_FALSE(is_safe_path(std::string_view("a\0b", 3)));
  EXPECT_FALSE(is_safe_path(std::string(300, 'a')));
}

}  // namespace
}  // namespace quire::cli
