// SPDX-License-Identifier: Apache-2.0
// The fields of --speculative-config and the errors about them.
#include "llm/speculative_config.h"

#include <gtest/gtest.h>

namespace quire::llm {
namespace {

std::string error_of(std::string_view json) {
  const auto options = parse_speculative_config(json);
  return options.ok() ? "" : options.error().message;
}

TEST(SpeculativeConfig, ReadsTheFields) {
  EXPECT_FALSE(parse_speculative_config("")->options.on());
  const auto all = parse_speculative_config(
      R"({"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2})");
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->options.num_tokens, 5);
  EXPECT_EQ(all->options.prompt_lookup_max, 4);
  EXPECT_EQ(all->options.prompt_lookup_min, 2);
  const auto none = parse_speculative_config(R"({"method": "ngram", "num_speculative_tokens": 1})");
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->options.prompt_lookup_max, 5);
  EXPECT_EQ(none->options.prompt_lookup_min, 5);
  const auto one =
      parse_speculative_config(R"({"method": "ngram", "num_speculative_tokens": 1, "prompt_lookup_max": 3})");
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(one->options.prompt_lookup_min, 3);
}

// The bug: configurations of vLLM with members that are null or change no answer, and its older name of prompt lookup,
// were refused.
TEST(SpeculativeConfig, TakesWhatProgramsForVllmSend) {
  for (
      const char* json :
      {R"({"model": "[ngram]", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": null})",
       R"({"model": "ngram", "method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4})",
       R"({"method": "ngram", "model": null, "num_speculative_tokens": 5, "prompt_lookup_max": 4, "enforce_eager": true,
            "disable_by_batch_size": 8, "disable_padded_drafter_batch": false, "max_model_len": null})"}) {
    const auto ngram = parse_speculative_config(json);
    ASSERT_TRUE(ngram.ok()) << ngram.error().message;
    EXPECT_EQ(ngram->options.method, engine::SpeculationOptions::Method::kNgram);
    EXPECT_EQ(ngram->options.num_tokens, 5);
    EXPECT_EQ(ngram->options.prompt_lookup_max, 4);
    EXPECT_EQ(ngram->options.prompt_lookup_min, 4);
    EXPECT_EQ(ngram->model, "");
  }
  EXPECT_NE(error_of(R"({"method": "suffix", "model": "[ngram]"})"), "");
}

TEST(SpeculativeConfig, ReadsADraftModel) {
  const auto draft = parse_speculative_config(
      R"({"model": "a/b", "num_speculative_tokens": 3, "max_model_len": 512, "draft_tensor_parallel_size": 1})");
  ASSERT_TRUE(draft.ok());
  EXPECT_EQ(draft->options.method, engine::SpeculationOptions::Method::kDraftModel);
  EXPECT_EQ(draft->options.num_tokens, 3);
  EXPECT_EQ(draft->model, "a/b");
  EXPECT_EQ(draft->max_model_len, 512);
}

TEST(SpeculativeConfig, ReadsMtpUnderAllOfItsNames) {
  for (const char* name : {"mtp", "deepseek_mtp", "qwen3_next_mtp", "qwen3_5_mtp", "glm4_moe_mtp"}) {
    const auto mtp =
        parse_speculative_config(R"({"method": ")" + std::string(name) + R"(", "num_speculative_tokens": 2})");
    ASSERT_TRUE(mtp.ok()) << name;
    EXPECT_EQ(mtp->options.method, engine::SpeculationOptions::Method::kMtp) << name;
    EXPECT_EQ(mtp->model, "");
  }
}

TEST(SpeculativeConfig, ReadsSuffixDecoding) {
  const auto plain = parse_speculative_config(R"({"method": "suffix"})");
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->options.method, engine::SpeculationOptions::Method::kSuffix);
  EXPECT_EQ(plain->options.num_tokens, 24) << "as many as the tree is deep";
  EXPECT_EQ(plain->options.suffix.max_cached_requests, 10000);
  const auto all = parse_speculative_config(
      R"({"method": "suffix", "num_speculative_tokens": 6, "suffix_decoding_max_tree_depth": 12,
          "suffix_decoding_max_cached_requests": 0, "suffix_decoding_max_spec_factor": 2,
          "suffix_decoding_min_token_prob": 0.25})");
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->options.num_tokens, 6);
  EXPECT_EQ(all->options.suffix.max_tree_depth, 12);
  EXPECT_EQ(all->options.suffix.max_cached_requests, 0);
  EXPECT_EQ(all->options.suffix.max_spec_factor, 2);
  EXPECT_EQ(all->options.suffix.min_token_prob, 0.25);
}

TEST(SpeculativeConfig, SaysWhatIsWrong) {
  for (const auto& [json, part] : std::initializer_list<std::pair<const char*, const char*>>{
           {"ngram", "must be a JSON object"},
           {"[1]", "must be a JSON object"},
           {"{}", "method"},
           {R"({"method": "ngram"})", "num_speculative_tokens"},
           {R"({"method": "ngram", "num_speculative_tokens": 0})", "num_speculative_tokens"},
           {R"({"method": "ngram", "num_speculative_tokens": 129})", "num_speculative_tokens"},
           {R"({"method": "ngram", "num_speculative_tokens": "5"})", "num_speculative_tokens"},
           {R"({"method": "eagle", "num_speculative_tokens": 3})", "'eagle' is not supported"},
           {R"({"method": "eagle3", "num_speculative_tokens": 3})", "model"},
           {R"({"method": "mtp", "model": "x", "num_speculative_tokens": 3})", "belongs to the method \"draft_model\""},
           {R"({"model": "", "num_speculative_tokens": 3})", "'model' is empty"},
           {R"({"method": "draft_model", "num_speculative_tokens": 3})", "model"},
           {R"({"model": "x", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 2})", "must be 1"},
           {R"({"model": "x", "num_speculative_tokens": 3, "prompt_lookup_max": 2})",
            "belongs to the method \"ngram\""},
           {R"({"method": "ngram", "model": "x", "num_speculative_tokens": 3})",
            "belongs to the method \"draft_model\""},
           {R"({"method": "suffix", "prompt_lookup_max": 3})", "belongs to the method \"ngram\""},
           {R"({"method": "suffix", "suffix_decoding_max_tree_depth": 0})", "suffix_decoding_max_tree_depth"},
           {R"({"method": "suffix", "suffix_decoding_min_token_prob": 1.5})", "must be a number from 0 to 1"},
           {R"({"method": "suffix", "suffix_decoding_max_spec_factor": "1"})", "suffix_decoding_max_spec_factor"},
           {R"({"method": "suffix", "suffix_decoding_max_tree_dept": 3})",
            "did you mean 'suffix_decoding_max_tree_depth'?"},
           {R"({"method": "ngram", "num_speculative_token": 3})", "did you mean 'num_speculative_tokens'?"},
           {R"({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 65})", "prompt_lookup_max"},
           {R"({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2, "prompt_lookup_min": 3})",
            "must not be greater"}}) {
    EXPECT_NE(error_of(json).find(part), std::string::npos) << json << ": " << error_of(json);
    EXPECT_EQ(error_of(json).find("--speculative-config"), 0u) << error_of(json);
  }
}

}  // namespace
}  // namespace quire::llm
