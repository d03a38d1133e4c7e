// SPDX-License-Identifier: Apache-2.0
// What the files beside a model say of pooling, and --pooler-config.
#include "model/pooling/pooler_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
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
  for (const char* config : {R"({"pooling_mode_mean_tokens":true,"pooling_mode_cls_token":true})",
                             R"({"pooling_mode":["mean","max"]})", R"({"pooling_mode":"median"})", "{}"}) {
    write("1_Pooling/config.json", config);
    EXPECT_THAT(error(), HasSubstr("one of cls, mean, lasttoken, max")) << config;
  }
  write("1_Pooling/config.json", R"({"pooling_mode":[1]})");
  EXPECT_THAT(error(), HasSubstr("a word or a list of words"));
  write("modules.json", R"([{"path":"../../etc","type":"a.Pooling"}])");
  EXPECT_THAT(error(), HasSubstr("not inside the model's folder"));
  write("modules.json", R"([{"path":"x","type":"a.Dance"}])");
  EXPECT_THAT(error(), HasSubstr("a.Dance"));
  write("modules.json", "{}");
  EXPECT_THAT(error(), HasSubstr("list of modules"));
}

TEST_F(PoolerFiles, ReadsEveryWayOfPooling) {
  write("modules.json", R"([{"path":"1_Pooling","type":"a.Pooling"}])");
  const std::pair<const char*, PoolRows> modes[] = {
      {R"({"pooling_mode_max_tokens":true})", PoolRows::kMax},
      {R"({"pooling_mode":["weightedmean"]})", PoolRows::kWeightedMean},
      {R"({"pooling_mode":"mean_sqrt_len_tokens"})", PoolRows::kMeanSqrt},
      {R"({"pooling_mode":"cls","pooling_mode_cls_token":true})", PoolRows::kFirst},
  };
  for (const auto& [config, rows] : modes) {
    write("1_Pooling/config.json", config);
    ASSERT_TRUE(read().ok()) << error();
    EXPECT_EQ(read()->rows, rows) << config;
  }
}

TEST_F(PoolerFiles, KeepsTheOrderOfNormalizeAndDense) {
  write("2_Dense/config.json", R"({"in_features":4,"out_features":2,"activation_function":"torch.nn.SiLU"})");
  const auto with = [&](std::initializer_list<const char*> kinds) {
    std::string list;
    for (const std::string kind : kinds) {
      list += (list.empty() ? "" : ",") + ("{\"path\":\"2_Dense\",\"type\":\"a." + kind) + "\"}";
    }
    write("modules.json", "[" + list + "]");
    return read().value();
  };
  const PoolerConfig before = with({"Normalize", "Dense"});
  EXPECT_TRUE(before.dense[0].of_normalised);
  EXPECT_FALSE(before.normalise);
  EXPECT_EQ(before.dense[0].activation, PoolActivation::kSilu);
  const PoolerConfig both = with({"Dense", "Normalize", "Dropout", "Dense", "Normalize"});
  EXPECT_FALSE(both.dense[0].of_normalised);
  EXPECT_TRUE(both.dense[1].of_normalised);
  EXPECT_TRUE(both.normalise);
}

// sentence-transformers 6 writes the length into the tokenizer's file.
TEST_F(PoolerFiles, ReadsTheLengthOfTexts) {
  write("modules.json", "[]");
  write("tokenizer_config.json", R"({"model_max_length": 16})");
  EXPECT_EQ(read()->max_length, 16);
  write("sentence_roberta_config.json", R"({"max_seq_length": 12, "do_lower_case": true})");
  EXPECT_EQ(read()->max_length, 12);
  EXPECT_TRUE(read()->lower_case);
  write("sentence_bert_config.json", R"({"transformer_task": "feature-extraction"})");
  EXPECT_EQ(read()->max_length, 16);
  EXPECT_FALSE(read()->lower_case);
  write("tokenizer_config.json", R"({"model_max_length": 1000000000000000019884624838656})");
  EXPECT_EQ(read()->max_length, 0);
}

TEST_F(PoolerFiles, ReadsTheUsualSizeOfEmbeddings) {
  write("modules.json", "[]");
  write("config_sentence_transformers.json", R"({"truncate_dim": 16})");
  EXPECT_EQ(read()->dimensions, 16);
  write("config_sentence_transformers.json", R"({"truncate_dim": null})");
  EXPECT_EQ(read()->dimensions, 0);
  write("config_sentence_transformers.json", R"({"truncate_dim": -1})");
  EXPECT_THAT(error(), HasSubstr("'truncate_dim' must be a positive size"));
}

TEST(Gathering, IsThatOfSentenceTransformersInChunksToo) {
  const std::vector<float> rows = {1, -2, 3, 4, -5, 6};  // three positions
  const std::pair<PoolRows, std::vector<float>> cases[] = {
      {PoolRows::kMean, {-1 / 3.0f, 8 / 3.0f}},
      {PoolRows::kMeanSqrt, {-1 / std::sqrt(3.0f), 8 / std::sqrt(3.0f)}},
      {PoolRows::kWeightedMean, {-8 / 6.0f, 24 / 6.0f}},
      {PoolRows::kMax, {3, 6}},
  };
  for (const auto& [kind, wanted] : cases) {
    ASSERT_TRUE(gathers(kind));
    std::vector<float> whole, chunks;
    gather(kind, 0, rows, 2, whole);
    gather(kind, 0, std::span(rows).first(2), 2, chunks);
    gather(kind, 1, std::span(rows).subspan(2), 2, chunks);
    finish_gathering(kind, 3, whole);
    finish_gathering(kind, 3, chunks);
    EXPECT_EQ(whole, chunks) << name(kind);
    for (size_t i = 0; i < wanted.size(); ++i) EXPECT_FLOAT_EQ(whole[i], wanted[i]) << name(kind);
  }
  std::vector<float> state;
  gather(PoolRows::kMax, 0, std::vector<float>{1, NAN, 2, 3}, 2, state);
  EXPECT_EQ(state[0], 2);
  EXPECT_TRUE(std::isnan(state[1]));
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
  write("config_sentence_transformers.json", R"({"activation_fn":"torch.nn.modules.linear.Identity"})");
  EXPECT_EQ(read(R"({"num_labels":1})")->scores, PoolActivation::kNone);
  write("config_sentence_transformers.json", R"({"activation_fn":null})");
  EXPECT_EQ(read(R"({"num_labels":1})")->scores, PoolActivation::kSigmoid);
  EXPECT_THAT(error(R"({"id2label":{"7":"a"}})"), HasSubstr("id2label"));
}

TEST(PoolerFlag, ChangesWhatTheFilesSay) {
  PoolerConfig config;
  ASSERT_TRUE(apply_pooler_flag(R"({"pooling_type":"MEAN","use_activation":false,"logit_sigma":2})", config).ok());
  EXPECT_EQ(config.rows, PoolRows::kMean);
  EXPECT_FALSE(config.normalise);
  EXPECT_EQ(config.logit_sigma, 2);
  ASSERT_TRUE(apply_pooler_flag(R"({"dimensions":32,"tok_pooling_type":"ALL"})", config).ok());
  EXPECT_EQ(config.dimensions, 32);
  const auto error = [](const char* text) {
    PoolerConfig other;
    const Status status = apply_pooler_flag(text, other);
    return status.ok() ? std::string() : status.error().message;
  };
  EXPECT_THAT(error("["), HasSubstr("JSON object"));
  EXPECT_THAT(error(R"({"normalize":true})"), HasSubstr("use_activation"));
  EXPECT_THAT(error(R"({"pooling_type":"SUM"})"), HasSubstr("CLS, LAST or MEAN"));
  EXPECT_THAT(error(R"({"dimensions":0})"), HasSubstr("dimensions must be a positive size"));
  EXPECT_THAT(error(R"({"tok_pooling_type":"MEAN"})"), HasSubstr("ALL or STEP"));
  EXPECT_THAT(error(R"({"logit_sigma":0})"), HasSubstr("logit_sigma"));
  EXPECT_THAT(error(R"({"colour":1})"), HasSubstr("colour"));
}

}  // namespace
}  // namespace quire::model
