// SPDX-License-Identifier: Apache-2.0
// Tests of the model cache: what an argument means, and the error messages.
#include "cli/hub/model_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/test_folder.h"
#include "cli/hub/pull_record.h"

namespace quire::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class ModelCache : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(models_); }

  fs::path put(const fs::path& relative, std::string_view bytes = "x") { return temp_.write(relative, bytes); }
  fs::path resolved(std::string_view argument) {
    auto result = resolve_model(argument, models_);
    EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message);
    return result.ok() ? *result : fs::path();
  }
  std::string refused(std::string_view argument) {
    auto result = resolve_model(argument, models_);
    EXPECT_FALSE(result.ok()) << result.value();
    return result.ok() ? "" : result.error().message;
  }

  const TempFolder temp_;
  const fs::path& root_ = temp_.path();
  const fs::path models_ = root_ / "models";
};

TEST_F(ModelCache, NothingMeansTheDefaultModel) {
  EXPECT_THAT(refused(""), AllOf(HasSubstr("SmolLM2-135M-Instruct"), HasSubstr("scripts/get-default-model")));
  const auto file = put("models/SmolLM2-135M-Instruct/SmolLM2-135M-Instruct.Q4_1.gguf");
  EXPECT_EQ(resolved(""), file);
}

TEST_F(ModelCache, AnExistingGgufFileIsItself) {
  const auto file = put("here/a.gguf");
  EXPECT_EQ(resolved(file.string()), file);
}

TEST_F(ModelCache, AFolderWithAConfigIsItself) {
  put("here/config.json");
  put("here/model.safetensors");
  EXPECT_EQ(resolved((root_ / "here").string()), root_ / "here");
}

TEST_F(ModelCache, AFolderWithOneGgufMeansThatFile) {
  const auto file = put("here/b.gguf");
  EXPECT_EQ(resolved((root_ / "here").string()), file);
}

TEST_F(ModelCache, AFolderOfSafetensorsWinsOverAGgufBesideThem) {
  put("here/config.json");
  put("here/model.safetensors");
  put("here/b.gguf");
  EXPECT_EQ(resolved((root_ / "here").string()), root_ / "here");
}

TEST_F(ModelCache, AFolderThatIsNoModelIsRefused) {
  put("here/readme.txt");
  EXPECT_THAT(refused((root_ / "here").string()), HasSubstr("neither config.json nor a .gguf file"));
}

TEST_F(ModelCache, ASafetensorsFileAsksForItsFolder) {
  const auto file = put("here/model.safetensors");
  EXPECT_THAT(refused(file.string()), HasSubstr("give the folder"));
}

TEST_F(ModelCache, AMissingPathSaysSo) {
  EXPECT_THAT(refused("/nowhere/a.gguf"), HasSubstr("does not exist"));
}

TEST_F(ModelCache, ANameIsFoundInAnyCaseWithAndWithoutItsOwner) {
  put("models/Acme/Tiny-LM/config.json");
  put("models/Acme/Tiny-LM/model.safetensors");
  const auto folder = models_ / "Acme" / "Tiny-LM";
  EXPECT_EQ(resolved("Acme/Tiny-LM"), folder);
  EXPECT_EQ(resolved("acme/tiny-lm"), folder);
  EXPECT_EQ(resolved("TINY-lm"), folder);
}

TEST_F(ModelCache, ANameOfTwoOwnersAsksWhich) {
  put("models/a/m/x.gguf");
  put("models/b/M/x.gguf");
  EXPECT_THAT(refused("m"), AllOf(HasSubstr("a/m"), HasSubstr("b/M")));
  EXPECT_EQ(resolved("B/m"), models_ / "b" / "M" / "x.gguf");
}

TEST_F(ModelCache, AnUnknownNameListsWhatIsCachedAndHowToGetIt) {
  EXPECT_THAT(refused("who/knows"), AllOf(HasSubstr("no models are cached"), HasSubstr("quire pull who/knows")));
  put("models/a/m/x.gguf");
  EXPECT_THAT(refused("who/knows:Q8_0"), AllOf(HasSubstr("cached models: a/m"), HasSubstr("quire pull who/knows")));
}

TEST_F(ModelCache, AColonChoosesAQuantisationOrAFile) {
  const auto q4 = put("models/a/m/m-Q4_K_M.gguf");
  const auto q8 = put("models/a/m/m-Q8_0.gguf");
  EXPECT_EQ(resolved("m:q4_k_m"), q4);
  EXPECT_EQ(resolved("a/m:m-Q8_0.gguf"), q8);
  EXPECT_EQ(resolved("a/m:m-Q8_0"), q8);
  EXPECT_THAT(refused("m"), AllOf(HasSubstr("a/m:Q4_K_M"), HasSubstr("Q4_K_M, Q8_0")));
  EXPECT_THAT(refused("m:Q2_K"), AllOf(HasSubstr("Q4_K_M, Q8_0"), HasSubstr("--quant Q2_K")));
}

TEST_F(ModelCache, ASplitGgufIsItsFirstPartOnceAllPartsAreThere) {
  const auto first = put("models/a/m/m-Q8_0-00001-of-00002.gguf");
  EXPECT_FALSE(resolve_model("m", models_).ok());
  put("models/a/m/m-Q8_0-00002-of-00002.gguf");
  EXPECT_EQ(resolved("m"), first);
  EXPECT_EQ(resolved("m:Q8_0"), first);
}

TEST_F(ModelCache, AHalfPulledModelSaysHowToFinishIt) {
  put("models/a/m/config.json");
  PullRecord record;
  record.files["config.json"] = {1, "", true};
  record.files["model.safetensors"] = {1, "", false};
  ASSERT_TRUE(record.save(models_ / "a" / "m").ok());
  EXPECT_THAT(refused("m"), HasSubstr("finish it with: quire pull a/m"));
  put("models/a/m/model.safetensors");
  record.files["model.safetensors"].done = true;
  ASSERT_TRUE(record.save(models_ / "a" / "m").ok());
  EXPECT_EQ(resolved("m"), models_ / "a" / "m");
}

TEST_F(ModelCache, ListsModelsWithTheSizeOfTheirFinishedFiles) {
  put("models/b/two/config.json", "12345");
  put("models/b/two/sub/model.safetensors", "123");
  put("models/b/two/other.safetensors.part", "123456789");
  put("models/one/one.gguf", "1234567");
  put("models/empty/readme.txt");
  put("models/.incoming/x.gguf");
  const auto cached = list_cached_models(models_);
  ASSERT_EQ(cached.size(), 2u);
  EXPECT_EQ(cached[0].name, "b/two");
  EXPECT_EQ(cached[0].bytes, 8u);
  EXPECT_TRUE(cached[0].has_config);
  EXPECT_EQ(cached[1].name, "one");
  EXPECT_EQ(cached[1].bytes, 7u);
  EXPECT_THAT(cached[1].gguf_files, ::testing::ElementsAre("one.gguf"));
}

TEST_F(ModelCache, AMissingCacheIsEmpty) {
  EXPECT_TRUE(list_cached_models(root_ / "nowhere").empty());
}

TEST_F(ModelCache, OddArgumentsAreErrors) {
  for (const std::string_view argument : {":", "/", ":Q4_0", "a:b:c", "..", "~", "//", " ", "x/", "\xff\xfe"}) {
    EXPECT_FALSE(resolve_model(argument, models_).ok()) << argument;
  }
  EXPECT_FALSE(resolve_model(std::string_view("a\0b", 3), models_).ok());
  EXPECT_FALSE(resolve_model(std::string(100'000, 'a'), models_).ok());
}

TEST(GgufName, FindsTheQuantisation) {
  EXPECT_EQ(gguf_quant("SmolLM2-135M-Instruct.Q4_1.gguf"), "Q4_1");
  EXPECT_EQ(gguf_quant("m-q4_k_m.gguf"), "Q4_K_M");
  EXPECT_EQ(gguf_quant("m-IQ2_XXS.gguf"), "IQ2_XXS");
  EXPECT_EQ(gguf_quant("m.bf16-00001-of-00004.gguf"), "BF16");
  EXPECT_EQ(gguf_quant("m-Q8_0-v2.gguf"), "Q8_0");
  EXPECT_EQ(gguf_quant("Qwen3-8B.gguf"), "");
  EXPECT_EQ(gguf_quant(""), "");
  EXPECT_EQ(gguf_quant("-.-.gguf"), "");
}

TEST(GgufName, FindsThePart) {
  EXPECT_EQ(gguf_part("m-00002-of-00003.gguf").part, 2);
  EXPECT_EQ(gguf_part("m-00002-of-00003.gguf").parts, 3);
  EXPECT_EQ(gguf_part("m-00002-of-00003.gguf").stem, "m");
  EXPECT_EQ(gguf_part("m-2-of-3.gguf").parts, 1);
  EXPECT_EQ(gguf_part("m.gguf").stem, "m");
}

TEST(HumanBytes, ShowsThreeFigures) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(999), "999 B");
  EXPECT_EQ(human_bytes(1000), "1.00 kB");
  EXPECT_EQ(human_bytes(98'362'432), "98.4 MB");
  EXPECT_EQ(human_bytes(999'999), "1.00 MB");
  EXPECT_EQ(human_bytes(123'456'789'012), "123 GB");
}

TEST_F(ModelCache, ListsWhatCanBeLoaded) {
  put("models/b.gguf", "123");
  put("models/split-00001-of-00002.gguf", "12");
  put("models/split-00002-of-00002.gguf", "34");
  put("models/half-00001-of-00002.gguf");
  put("models/folder/config.json");
  put("models/folder/model.safetensors");
  put("models/owner/several/x-Q4_0.gguf", "1");
  put("models/owner/several/x-Q8_0.gguf", "12");
  put("models/owner/one/x-Q8_0.gguf");
  put("models/owner/nothing/readme.md");
  std::vector<std::string> names;
  for (const LoadableModel& model : list_loadable_models(models_)) {
    names.push_back(model.name + " " + std::to_string(model.bytes));
  }
  EXPECT_THAT(names, ::testing::ElementsAre("b 3", "folder 2", "owner/one 1", "owner/several:Q4_0 1",
                                            "owner/several:Q8_0 2", "split 4"));
}

TEST_F(ModelCache, DeletesAModel) {
  put("models/owner/name/x-Q4_0.gguf");
  put("models/owner/name/x-Q8_0-00001-of-00002.gguf");
  put("models/owner/name/x-Q8_0-00002-of-00002.gguf");
  const auto remove = [&](const char* name) {
    auto found = find_in_cache(name, models_);
    ASSERT_TRUE(found.ok()) << found.error().message;
    ASSERT_TRUE(remove_from_cache(*found, models_).ok());
  };
  remove("name:q8_0");
  EXPECT_TRUE(fs::exists(models_ / "owner/name/x-Q4_0.gguf"));
  EXPECT_FALSE(fs::exists(models_ / "owner/name/x-Q8_0-00002-of-00002.gguf"));
  remove("owner/name:Q4_0");  // the last one takes the folder with it
  EXPECT_FALSE(fs::exists(models_ / "owner"));
  EXPECT_TRUE(fs::exists(models_));
}

TEST_F(ModelCache, DeletesWhatWasPulledPartly) {
  PullRecord record;
  record.name = "owner/name";
  record.files["x.gguf"] = {5, "", false};
  put("models/owner/name/x.gguf.part");
  ASSERT_TRUE(record.save(models_ / "owner/name").ok());
  auto found = find_in_cache("owner/name", models_);
  ASSERT_TRUE(found.ok()) << found.error().message;
  EXPECT_TRUE(remove_from_cache(*found, models_).ok());
  EXPECT_FALSE(fs::exists(models_ / "owner"));
}

TEST_F(ModelCache, DeletesNothingOutsideOfTheCache) {
  const auto file = put("here/a.gguf");
  for (const std::string& argument :
       {file.string(), (root_ / "here").string(), std::string("../here"), std::string()}) {
    const auto found = find_in_cache(argument, models_);
    ASSERT_FALSE(found.ok()) << argument;
    EXPECT_THAT(found.error().message, HasSubstr("is not a model of the cache"));
  }
  put("elsewhere/name/a.gguf");
  fs::create_directory_symlink(root_ / "elsewhere", models_ / "owner");
  const auto linked = find_in_cache("owner/name", models_);
  ASSERT_TRUE(linked.ok());
  EXPECT_FALSE(remove_from_cache(*linked, models_).ok()) << "the owner's folder is a link";
  fs::create_directory_symlink(root_ / "here", models_ / "link");
  ASSERT_TRUE(remove_from_cache(*find_in_cache("link", models_), models_).ok());
  EXPECT_FALSE(fs::exists(models_ / "link"));
  EXPECT_TRUE(fs::exists(file)) << "only the link was deleted";
}

}  // namespace
}  // namespace quire::cli
