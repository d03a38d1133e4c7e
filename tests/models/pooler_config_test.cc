// SPDX-License-Identifier: Apache-2.0
// What the files beside a model say of pooling, and --pooler-config.
#include "model/pooling/pooler_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/test_folder.h"

namespace quire::model {
namespace {

using testing::HasSubstr;

class PoolerFiles : public testing::Test {
 protected:
  Result<PoolerConfig> read(const char* config = "{}") {
    DecoderConfig model;
    model.encoder.on = true;
    model.has_head = false;
    model.architecture = architecture_;
    return read_hf_pooler(*json::parse(config), folder_.path(), model);
  }
  void write(const char* name, std::string_view text) {
    std::filesystem::create_directories((folder_.path() / name).parent_path());
    folder_.write(name, text);
  }
  std::string error(const char* config = "{}") {
    const auto found = read(config);
    return found.ok() ? "" : found.error().message;
  }

  const TempFolder folder_;
  std::string architecture_ = "BertModel";
};

TEST_F(PoolerFiles, AnEncoderPoolsItsFirstTokenUnlessTheFilesSayOtherwise) {
  ASSERT_TRUE(read().ok());
  EXPECT_EQ(read()->rows, PoolRows::kFirst);
  EXPECT_TRUE(read()->normalise);
  write("modules.json", R"([{"path":"","type":"a.Transformer"},{"path":"1_Pooling","type":"a.Pooling"}])");
  write("1_Pooling/config.json", R"({"pooling_mode_mean_tokens":true})");
  EXPECT_EQ(read()->rows, PoolRows::kMean);
  EXPECT_FALSE(read()->normalise);
  write("1_Pooling/config.json", R"({"pooling_mode":"lasttoken"})");
  EXPECT_EQ(read()->rows, PoolRows::kLast);
}

TEST_F(PoolerFiles, RefusesWhatItDoesNotCompute) {
  write("modules.json", R"([{"path":"1_Pooling","type":"a.Pooling"}])");
  write("1_Pooling/config.json", R"({"pooling_mode_max_tokens":true})");
  EXPECT_THAT(error(), HasSubstr("cls, mean and lasttoken"));
  write("1_Pooling/config.json", R"({"pooling_mode_mean_tokens":true,"pooling_mode_cls_token":true})");
  EXPECT_THAT(error(), HasSubstr("cls, mean and lasttoken"));
  write("modules.json", R"([{"path":"../../etc","type":"a.Pooling"}])");
  EXPECT_THAT(error(), HasSubstr("not inside the model's folder"));
  write("modules.json", R"([{"path":"x","type":"a.Dance"}])");
  EXPECT_THAT(error(), HasSubstr("a.Dance"));
  write("modules.json", "{}");
  EXPECT_THAT(error(), HasSubstr("list of modules"));
}

TEST_F(PoolerFiles, ReadsClassesAndWhatBecomesOfTheirScores) {
  architecture_ = "BertForSequenceClassification";
  auto three = read(R"({"id2label":{"0":"a","1":"b","2":"c"}})");
  ASSERT_TRUE(three.ok());
  EXPECT_EQ(three->labels, 3);
  EXPECT_EQ(three->scores, PoolActivation::kSoftmax);
  EXPECT_EQ(read(R"({"num_labels":1})")->scores, PoolActivation::kSigmoid);
  EXPECT_EQ(read(R"({"num_labels":1,"problem_type":"regression"})")->scores, PoolActivation::kNone);
  EXPECT_EQ(read(R"({"sbert_ce_default_activation_function":"torch.nn.modules.linear.Identity"})")->scores,
            PoolActivation::kNone);
  EXPECT_THAT(error(R"({"sbert_ce_default_activation_function":"os.system"})"), HasSubstr("os.system"));
  EXPECT_THAT(error(R"({"id2label":{"7":"a"}})"), HasSubstr("id2label"));
}

TEST(PoolerFlag, ChangesWhatTheFilesSay) {
  PoolerConfig config;
  ASSERT_TRUE(apply_pooler_flag(R"({"pooling_type":"MEAN","use_activation":false,"logit_sigma":2})", config).ok());
  EXPECT_EQ(config.rows, PoolRows::kMean);
  EXPECT_FALSE(config.normalise);
  EXPECT_EQ(config.logit_sigma, 2);
  const auto error = [](const char* text) {
    PoolerConfig other;
    const Status status = apply_pooler_flag(text, other);
    return status.ok() ? std::string() : status.error().message;
  };
  EXPECT_THAT(error("["), HasSubstr("JSON object"));
  EXPECT_THAT(error(R"({"normalize":true})"), HasSubstr("use_activation"));
  EXPECT_THAT(error(R"({"pooling_type":"SUM"})"), HasSubstr("CLS, LAST or MEAN"));
  EXPECT_THAT(error(R"({"logit_sigma":0})"), HasSubstr("logit_sigma"));
  EXPECT_THAT(error(R"({"colour":1})"), HasSubstr("colour"));
}

}  // namespace
}  // namespace quire::model
