// SPDX-License-Identifier: Apache-2.0
// Reading config.json: both spellings of fields, each family's own fields, what is rejected and how, and the rotary
// frequencies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <set>
#include <utility>

#include "base/file.h"
#include "base/json.h"
#include "model/families/family.h"
#include "model/layers/rope_table.h"

namespace quire::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Changes = std::initializer_list<std::pair<const char*, const char*>>;

// A small config of `architecture` with some fields set to JSON values, or removed if the value is "".
json::Value config_json(const char* architecture, Changes changes = {}) {
  json::Value out = json::parse(R"({"vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 4,
      "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128,
      "max_position_embeddings": 1024, "rms_norm_eps": 1e-5})")
                        .value();
  out.set("architectures", json::Array{json::Value(architecture)});
  for (const auto& [field, value] : changes) {
    out.set(field, value[0] == '\0' ? json::Value(nullptr) : json::parse(value).value());
  }
  return out;
}

Result<DecoderConfig> try_read(const json::Value& config, int64_t k_rows = 0) {
  QUIRE_ASSIGN(HfConfig read, parse_hf_config(config));
  QUIRE_TRY(complete(read.config, k_rows));
  return read.config;
}

DecoderConfig read(const char* architecture, Changes changes = {}, int64_t k_rows = 0) {
  auto config = try_read(config_json(architecture, changes), k_rows);
  EXPECT_TRUE(config.ok()) << (config.ok() ? "" : config.error().message);
  return config.ok() ? *config : DecoderConfig{};
}

std::string refusal(const char* architecture, Changes changes) {
  const auto config = try_read(config_json(architecture, changes));
  return config.ok() ? "accepted" : config.error().message;
}

constexpr const char* kArchitectures[] = {
    "LlamaForCausalLM", "SmolLM3ForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM",   "Qwen3ForCausalLM",
    "Phi3ForCausalLM",  "GlmForCausalLM",     "Glm4ForCausalLM",    "GraniteForCausalLM", "Olmo2ForCausalLM"};

TEST(HfConfig, EveryFamilyReadsTheCommonSizes) {
  for (const char* architecture : kArchitectures) {
    SCOPED_TRACE(architecture);
    const DecoderConfig c = read(architecture);
    EXPECT_EQ(c.architecture, architecture);
    EXPECT_EQ(c.vocab_size, 512);
    EXPECT_EQ(c.hidden, 64);
    EXPECT_EQ(c.layers, 4);
    EXPECT_EQ(c.heads, 4);
    EXPECT_EQ(c.kv_heads, 2);
    EXPECT_EQ(c.head_dim, 16);
    EXPECT_EQ(c.intermediate, 128);
    EXPECT_EQ(c.max_position, 1024);
    EXPECT_FLOAT_EQ(c.norm_eps, 1e-5f);
    EXPECT_EQ(c.activation, Activation::kSilu);
  }
}

// The configs of the golden cases, by name.
std::map<std::string, json::Value> golden_configs() {
  std::map<std::string, json::Value> out;
  const std::filesystem::path tests = std::filesystem::path(QUIRE_SOURCE_DIR) / "tests";
  for (const auto& folder : {tests / "goldens", tests / "pooling" / "goldens"}) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const auto text = read_file(entry.path() / "config.json");
      if (text.ok()) out[entry.path().filename().string()] = json::parse(*text).value();
    }
  }
  return out;
}

TEST(HfConfig, EveryFamilyHasAGoldenThatItReads) {
  std::set<const Family*> seen;
  for (const auto& [name, config] : golden_configs()) {
    const auto found = parse_hf_config(config);
    ASSERT_TRUE(found.ok()) << name << ": " << found.error().message;
    seen.insert(found->family);
  }
  EXPECT_EQ(seen.size(), families().size());
}

// Whatever a field contains, reading ends with a config or an error message.
TEST(HfConfig, AbsurdValuesInAnyFieldOfAnyFamilyAreHandled) {
  const char* const values[] = {"0",  "-1",  "3",  "1e30", "9223372036854775807", "null", "\"x\"",
                                "[]", "[0]", "{}", "true"};
  for (const auto& [name, config] : golden_configs()) {
    for (const auto& [field, old] : config.as_object()) {
      for (const char* value : values) {
        json::Value changed = config;
        changed.set(field, json::parse(value).value());
        const auto read = try_read(changed);
        if (!read.ok()) {
          EXPECT_FALSE(read.error().message.empty()) << name << " " << field;
        }
      }
    }
  }
}

TEST(HfConfig, TheTextPartOfALargerModelIsRead) {
  json::Value outer{json::Object{}};
  outer.set("architectures", json::Array{json::Value("Qwen3_5ForConditionalGeneration")});
  outer.set("tie_word_embeddings", true);
  outer.set("text_config", golden_configs().at("qwen3.5"));
  const auto config = try_read(outer);
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->family, "qwen3.5");
  EXPECT_EQ(config->hidden, 96);
}

// gemma-3-4b-it, smaller: the text part has no heads, head size, vocabulary or context, which are those of its class.
TEST(HfConfig, Gemma3WithVisionLeavesOutTheDefaultsOfItsClass) {
  const auto config = try_read(json::parse(R"({"architectures": ["Gemma3ForConditionalGeneration"],
      "model_type": "gemma3", "eos_token_id": [1, 106], "vision_config": {"hidden_size": 1152},
      "text_config": {"hidden_size": 64, "intermediate_size": 128, "model_type": "gemma3_text", "num_hidden_layers": 7,
                      "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}})")
                                   .value());
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->vocab_size, 262208);
  EXPECT_EQ(config->heads, 8);
  EXPECT_EQ(config->kv_heads, 4);
  EXPECT_EQ(config->head_dim, 256);
  EXPECT_EQ(config->max_position, 131072);
  EXPECT_EQ(config->rope.factor, 8.0);
  EXPECT_EQ(config->per_layer[5].window, 0);
  EXPECT_EQ(config->per_layer[6].window, 1024);
}

// Mistral-Small-3.1 and Ministral-3 have the same class; their text parts are of different families.
TEST(HfConfig, Mistral3WithVisionReadsEitherTextPart) {
  const auto text = [](const char* fields) {
    return try_read(json::parse(std::string(R"({"architectures": ["Mistral3ForConditionalGeneration"], "text_config": {
        "vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 32,
        "num_key_value_heads": 2, "intermediate_size": 128, "max_position_embeddings": 1024, )") +
                                fields + "}}")
                        .value());
  };
  const auto small = text(R"("model_type": "mistral", "rope_theta": 1000000000.0, "sliding_window": null)");
  ASSERT_TRUE(small.ok()) << small.error().message;
  EXPECT_EQ(small->rope.theta, 1e9);
  EXPECT_EQ(small->attention_temperature, 0.0f);
  const auto ministral = text(R"("model_type": "ministral3", "rope_parameters": {"rope_type": "yarn", "factor": 4.0,
      "rope_theta": 1000000.0, "original_max_position_embeddings": 256, "llama_4_scaling_beta": 0.1})");
  ASSERT_TRUE(ministral.ok()) << ministral.error().message;
  EXPECT_EQ(ministral->attention_temperature, 0.1f);
  EXPECT_EQ(ministral->attention_temperature_length, 256);
}

TEST(HfConfig, GemmasOwnFieldForTheActivationWins) {
  const Changes both = {{"hidden_act", "\"silu\""}, {"hidden_activation", "\"gelu_pytorch_tanh\""}};
  EXPECT_EQ(read("Gemma2ForCausalLM", both).activation, Activation::kGeluTanh);
  EXPECT_EQ(read("Gemma2ForCausalLM", {{"hidden_act", "\"gelu\""}}).activation, Activation::kGelu);
  EXPECT_THAT(refusal("Gemma2ForCausalLM", {{"hidden_activation", "\"xielu\""}}), HasSubstr("'hidden_activation'"));
}

// As in MiniCPM3-4B.
TEST(HfConfig, MiniCpm3WithoutASizeOfValuesDividesTheHiddenSize) {
  const Changes latent = {
      {"kv_lora_rank", "20"}, {"q_lora_rank", "24"}, {"qk_nope_head_dim", "24"}, {"qk_rope_head_dim", "8"}};
  EXPECT_EQ(read("MiniCPM3ForCausalLM", latent).mla.v_dim, 16);
  EXPECT_THAT(refusal("DeepseekV3ForCausalLM", latent), HasSubstr("'v_head_dim'"));
}

TEST(HfConfig, AWindowOfQwen3MoeIsInAllLayers) {
  const Changes on = {{"use_sliding_window", "true"}, {"sliding_window", "40"},     {"max_window_layers", "3"},
                      {"num_experts", "4"},           {"num_experts_per_tok", "2"}, {"moe_intermediate_size", "16"}};
  for (const LayerConfig& layer : read("Qwen3MoeForCausalLM", on).per_layer) EXPECT_EQ(layer.window, 40);
  const DecoderConfig dense = read("Qwen3ForCausalLM", {*on.begin(), *(on.begin() + 1), *(on.begin() + 2)});
  EXPECT_EQ(dense.per_layer[2].window, 0);
  EXPECT_EQ(dense.per_layer[3].window, 40);
}

TEST(HfConfig, LfmsFirstNameOfTheWidthWins) {
  const Changes first = {{"block_ff_dim", "96"},
                         {"intermediate_size", ""},
                         {"block_auto_adjust_ff_dim", "false"},
                         {"full_attn_idxs", "[1]"},
                         {"norm_eps", "1e-5"}};
  EXPECT_EQ(read("Lfm2ForCausalLM", first).intermediate, 96);
  EXPECT_EQ(read("Lfm2ForCausalLM",
                 {{"block_ff_dim", "96"}, {"block_auto_adjust_ff_dim", "false"}, {"full_attn_idxs", "[1]"}})
                .intermediate,
            96);
  EXPECT_THAT(refusal("Lfm2ForCausalLM", {{"intermediate_size", ""}, {"full_attn_idxs", "[1]"}}),
              HasSubstr("'intermediate_size'"));
}

TEST(HfConfig, RopeIsTheSameInBothSpellings) {
  for (const char* architecture : {"LlamaForCausalLM", "Qwen2ForCausalLM", "GraniteForCausalLM"}) {
    SCOPED_TRACE(architecture);
    const DecoderConfig v4 =
        read(architecture, {{"rope_theta", "500000.0"}, {"rope_scaling", R"({"type": "linear", "factor": 2.0})"}});
    const DecoderConfig v5 =
        read(architecture, {{"rope_parameters", R"({"rope_type": "linear", "factor": 2.0, "rope_theta": 500000.0})"}});
    for (const DecoderConfig& c : {v4, v5}) {
      EXPECT_EQ(c.rope.type, RopeType::kLinear);
      EXPECT_EQ(c.rope.theta, 500000.0);
      EXPECT_EQ(c.rope.factor, 2.0);
      EXPECT_EQ(c.max_position, 2048);
    }
  }
}

TEST(HfConfig, DtypeIsTheSameInBothSpellings) {
  EXPECT_EQ(read("LlamaForCausalLM").dtype, DType::kF32);
  EXPECT_EQ(read("LlamaForCausalLM", {{"torch_dtype", "\"bfloat16\""}}).dtype, DType::kBF16);
  EXPECT_EQ(read("LlamaForCausalLM", {{"dtype", "\"bfloat16\""}}).dtype, DType::kBF16);
  EXPECT_EQ(read("LlamaForCausalLM", {{"torch_dtype", "\"torch.float16\""}}).dtype, DType::kF16);
  EXPECT_THAT(refusal("LlamaForCausalLM", {{"torch_dtype", "\"float64\""}}),
              AllOf(HasSubstr("'torch_dtype'"), HasSubstr("float64")));
  EXPECT_THAT(refusal("LlamaForCausalLM", {{"dtype", "\"int4\""}}), AllOf(HasSubstr("'dtype'"), HasSubstr("int4")));
}

TEST(HfConfig, AnAbsentHeadSizeComesFromTheShapeOfKElseFromTheHiddenSize) {
  EXPECT_EQ(read("LlamaForCausalLM", {}, 2 * 24).head_dim, 24);
  EXPECT_EQ(read("LlamaForCausalLM", {}, 0).head_dim, 16);
  EXPECT_EQ(read("LlamaForCausalLM", {{"head_dim", "null"}}, 2 * 32).head_dim, 32);
  EXPECT_EQ(read("LlamaForCausalLM", {{"head_dim", "32"}}, 2 * 24).head_dim,
            32);  // the loader then reports the wrong shape
  EXPECT_EQ(read("LlamaForCausalLM", {{"hidden_size", "63"}}, 2 * 32).head_dim, 32);
  EXPECT_THAT(refusal("LlamaForCausalLM", {{"hidden_size", "63"}}), AllOf(HasSubstr("'head_dim'"), HasSubstr("63")));
}

TEST(HfConfig, AnAbsentNumberOfKvHeadsIsThatOfHeads) {
  EXPECT_EQ(read("LlamaForCausalLM", {{"num_key_value_heads", ""}}).kv_heads, 4);
}

TEST(HfConfig, BiasesNormsAndFusedTensorsAreTheFamilys) {
  EXPECT_FALSE(read("LlamaForCausalLM").qkv_bias);
  const DecoderConfig biased = read("LlamaForCausalLM", {{"attention_bias", "true"}, {"mlp_bias", "true"}});
  EXPECT_TRUE(biased.qkv_bias && biased.o_bias && biased.mlp_bias);
  const DecoderConfig qwen2 = read("Qwen2ForCausalLM");
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.o_bias && !qwen2.mlp_bias);
  EXPECT_EQ(read("Qwen3ForCausalLM").qk_norm, QkNorm::kPerHead);
  EXPECT_FALSE(read("Qwen3ForCausalLM").qkv_bias);
  const DecoderConfig phi3 = read("Phi3ForCausalLM");
  EXPECT_TRUE(phi3.fused_qkv && phi3.fused_gate_up && !phi3.qkv_bias);
  const DecoderConfig olmo2 = read("Olmo2ForCausalLM");
  EXPECT_EQ(olmo2.qk_norm, QkNorm::kWhole);
  EXPECT_EQ(olmo2.norms, NormPlacement::kPost);
}

TEST(HfConfig, GlmRotatesHalfOfEachHeadInNeighbouringPairs) {
  const DecoderConfig glm = read("GlmForCausalLM", {{"attention_bias", "true"}});
  EXPECT_TRUE(glm.rope.interleaved && glm.fused_gate_up && glm.qkv_bias && !glm.o_bias);
  EXPECT_EQ(glm.rope.rot_dim, 8);
  EXPECT_EQ(glm.norms, NormPlacement::kPre);
  EXPECT_EQ(read("Glm4ForCausalLM").norms, NormPlacement::kSandwich);
  EXPECT_EQ(read("Glm4ForCausalLM", {{"partial_rotary_factor", "1.0"}}).rope.rot_dim, 16);
}

TEST(HfConfig, GraniteHasFourMultipliers) {
  const DecoderConfig c = read("GraniteForCausalLM", {{"embedding_multiplier", "12.0"},
                                                      {"attention_multiplier", "0.015625"},
                                                      {"residual_multiplier", "0.22"},
                                                      {"logits_scaling", "8.0"}});
  EXPECT_FLOAT_EQ(c.embedding_scale, 12.0f);
  EXPECT_FLOAT_EQ(c.attention_scale, 0.015625f);
  EXPECT_FLOAT_EQ(c.residual_scale, 0.22f);
  EXPECT_FLOAT_EQ(c.logits_scale, 0.125f);
  for (const char* field : {"embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"}) {
    for (const char* value : {"0", "-1", "1e300", "1e-300"}) {
      EXPECT_THAT(refusal("GraniteForCausalLM", {{field, value}}), HasSubstr(field)) << value;
    }
  }
}

TEST(HfConfig, SmolLm3LeavesPositionsOutOfTheLayersMarkedZero) {
  EXPECT_THAT(read("SmolLM3ForCausalLM").rope_layers, ElementsAre(1, 1, 1, 0));
  EXPECT_THAT(read("SmolLM3ForCausalLM", {{"no_rope_layer_interval", "2"}}).rope_layers, ElementsAre(1, 0, 1, 0));
  EXPECT_THAT(read("SmolLM3ForCausalLM", {{"no_rope_layers", "[0, 1, 1, 1]"}}).rope_layers, ElementsAre(0, 1, 1, 1));
  EXPECT_THAT(refusal("SmolLM3ForCausalLM", {{"no_rope_layers", "[1, 1]"}}), HasSubstr("'no_rope_layers'"));
  EXPECT_TRUE(read("SmolLM3ForCausalLM").tied_embeddings);
}

std::vector<int64_t> windows(const DecoderConfig& config) {
  std::vector<int64_t> out;
  for (const LayerConfig& layer : config.per_layer) out.push_back(layer.window);
  return out;
}

TEST(HfConfig, WindowsAreReadLayerByLayer) {
  for (const char* architecture : {"MistralForCausalLM", "Phi3ForCausalLM"}) {
    EXPECT_THAT(windows(read(architecture, {{"sliding_window", "256"}})), ElementsAre(256, 256, 256, 256));
    EXPECT_THAT(windows(read(architecture, {{"sliding_window", "null"}})), ElementsAre(0, 0, 0, 0));
    EXPECT_EQ(read(architecture, {{"sliding_window", "256"}}).max_position, 1024);
  }
  // Qwen has a sliding window and separate fields that say whether it is on, and from which layer on.
  EXPECT_THAT(windows(read("Qwen2ForCausalLM", {{"sliding_window", "256"}, {"use_sliding_window", "false"}})),
              ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(windows(read("Qwen2ForCausalLM",
                           {{"sliding_window", "256"}, {"use_sliding_window", "true"}, {"max_window_layers", "3"}})),
              ElementsAre(0, 0, 0, 256));
  EXPECT_THAT(windows(read("Gemma2ForCausalLM", {{"sliding_window", "64"}})), ElementsAre(64, 0, 64, 0));
  EXPECT_THAT(refusal("Gemma2ForCausalLM", {{"layer_types", R"(["full_attention"])"}}), HasSubstr("'layer_types'"));
}

TEST(HfConfig, EndsOfTextMayBeOneOrSeveral) {
  EXPECT_THAT(read("LlamaForCausalLM", {{"eos_token_id", "2"}}).eos_token_ids, ElementsAre(2));
  EXPECT_THAT(read("LlamaForCausalLM", {{"eos_token_id", "[2, 7]"}}).eos_token_ids, ElementsAre(2, 7));
  EXPECT_TRUE(read("LlamaForCausalLM", {{"eos_token_id", "null"}}).eos_token_ids.empty());
  EXPECT_THAT(refusal("LlamaForCausalLM", {{"eos_token_id", "[\"a\"]"}}), HasSubstr("'eos_token_id'"));
}

TEST(HfConfig, FieldsThatChangeTheMathsAreRefusedByName) {
  const std::pair<const char*, const char*> fields[] = {
      {"attn_logit_softcapping", "50.0"},
      {"final_logit_softcapping", "30.0"},
      {"num_local_experts", "8"},
      {"kv_lora_rank", "512"},
      {"query_pre_attn_scalar", "256"},
      {"use_qk_norm", "true"},
      {"clip_qkv", "8.0"},
      {"use_parallel_residual", "true"},
      {"logit_scale", "0.0625"},
      {"attention_chunk_size", "8192"},
      {"layer_types", R"(["full_attention", "chunked_attention", "full_attention", "full_attention"])"},
      {"lm_head_bias", "true"},
  };
  for (const char* architecture : kArchitectures) {
    for (const auto& [field, value] : fields) {
      EXPECT_THAT(refusal(architecture, {{field, value}}), HasSubstr("'" + std::string(field) + "'")) << architecture;
    }
  }
  EXPECT_THAT(refusal("LlamaForCausalLM", {{"embedding_multiplier", "12"}}), HasSubstr("'embedding_multiplier'"));
  EXPECT_THAT(refusal("MistralForCausalLM", {{"attention_bias", "true"}}), HasSubstr("'attention_bias'"));
}

TEST(HfConfig, FieldsThatChangeTheMathsAreFineWithTheirNeutralValues) {
  read("LlamaForCausalLM", {{"attn_logit_softcapping", "null"},
                            {"num_local_experts", "0"},
                            {"sliding_window", "null"},
                            {"logit_scale", "1.0"},
                            {"layer_types", R"(["full_attention", "full_attention"])"}});
}

TEST(HfConfig, UnknownArchitecturesAndActivationsAreNamed) {
  EXPECT_THAT(refusal("MambaForCausalLM", {}), AllOf(HasSubstr("MambaForCausalLM"), HasSubstr("LlamaForCausalLM")));
  EXPECT_THAT(refusal("LlamaForCausalLM", {{"architectures", "[]"}}), HasSubstr("'architectures'"));
  EXPECT_THAT(refusal("LlamaForCausalLM", {{"architectures", "\"LlamaForCausalLM\""}}), HasSubstr("'architectures'"));
  EXPECT_THAT(refusal("LlamaForCausalLM", {{"hidden_act", "\"xielu\""}}),
              AllOf(HasSubstr("'hidden_act'"), HasSubstr("xielu")));
  EXPECT_EQ(read("LlamaForCausalLM", {{"hidden_act", "\"gelu_pytorch_tanh\""}}).activation, Activation::kGeluTanh);
  for (const char* text : {"[]", "3", "null", "\"x\""}) EXPECT_FALSE(parse_hf_config(json::parse(text).value()).ok());
}

TEST(HfConfig, AbsurdNumbersAreRefusedByName) {
  for (const char* field : {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                            "num_key_value_heads", "intermediate_size", "max_position_embeddings"}) {
    for (const char* value : {"0", "-1", "1e18", "9223372036854775807", "2.5", "\"64\"", "[64]"}) {
      EXPECT_THAT(refusal("LlamaForCausalLM", {{field, value}}), HasSubstr("'" + std::string(field) + "'")) << value;
    }
  }
  for (const char* field : {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"}) {
    EXPECT_THAT(refusal("LlamaForCausalLM", {{field, ""}}), HasSubstr("'" + std::string(field) + "'"));
  }
  EXPECT_THAT(refusal("LlamaForCausalLM", {{"num_key_value_heads", "3"}}), HasSubstr("'num_key_value_heads'"));
  EXPECT_THAT(refusal("LlamaForCausalLM", {{"head_dim", "1024"}}), HasSubstr("1024"));
  EXPECT_THAT(refusal("LlamaForCausalLM", {{"rms_norm_eps", "1"}}), HasSubstr("'rms_norm_eps'"));
  EXPECT_THAT(refusal("LlamaForCausalLM", {{"rms_norm_eps", "-1e-6"}}), HasSubstr("'rms_norm_eps'"));
  EXPECT_THAT(refusal("LlamaForCausalLM", {{"tie_word_embeddings", "\"yes\""}}), HasSubstr("'tie_word_embeddings'"));
}

TEST(HfConfig, WrongRopeSettingsAreRefused) {
  const auto rope = [](const char* value) { return refusal("LlamaForCausalLM", {{"rope_scaling", value}}); };
  EXPECT_THAT(rope(R"({"rope_type": "spiral", "factor": 2})"), HasSubstr("spiral"));
  EXPECT_THAT(rope(R"({"rope_type": "linear"})"), HasSubstr("'factor'"));
  EXPECT_THAT(rope(R"({"rope_type": "linear", "factor": 0})"), HasSubstr("'factor'"));
  EXPECT_THAT(rope(R"({"rope_type": "linear", "factor": -2})"), HasSubstr("'factor'"));
  EXPECT_THAT(rope(R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4})"),
              HasSubstr("'low_freq_factor'"));
  EXPECT_THAT(rope(R"({"rope_type": "longrope", "short_factor": [1], "long_factor": [1]})"), HasSubstr("rope factors"));
  EXPECT_THAT(rope(R"({"rope_type": "longrope", "short_factor": [1, 1]})"), HasSubstr("'long_factor'"));
  EXPECT_THAT(rope(R"({"rope_type": "longrope", "short_factor": [0], "long_factor": [1]})"),
              HasSubstr("'short_factor'"));
  EXPECT_THAT(rope(R"({"rope_type": "yarn", "factor": 4, "beta_fast": -1})"), HasSubstr("'beta_fast'"));
  EXPECT_THAT(refusal("LlamaForCausalLM", {{"rope_theta", "0"}}), HasSubstr("'rope_theta'"));
  EXPECT_THAT(refusal("LlamaForCausalLM", {{"rope_theta", "1e-300"}}), HasSubstr("rope settings"));
  EXPECT_THAT(refusal("LlamaForCausalLM", {{"rope_theta", "1"}, {"rope_scaling", R"({"type": "yarn", "factor": 4})"}}),
              HasSubstr("rope settings"));
  EXPECT_THAT(refusal("LlamaForCausalLM", {{"partial_rotary_factor", "1.5"}}), HasSubstr("'partial_rotary_factor'"));
  EXPECT_THAT(refusal("LlamaForCausalLM", {{"partial_rotary_factor", "0.05"}}), HasSubstr("rotary dimension"));
}

// What transformers 5 computes in float32 for the same settings.
// The bug: a factor without a type, and the key of older files, were ignored.
TEST(GgufConfig, AFactorWithoutATypeScalesLinearly) {
  const auto read_rope = [](std::initializer_list<std::pair<const char*, double>> numbers, const char* type = nullptr) {
    weights::GgufMetadata metadata;
    const std::pair<const char*, int64_t> sizes[] = {{"llama.embedding_length", 64},
                                                     {"llama.block_count", 2},
                                                     {"llama.feed_forward_length", 128},
                                                     {"llama.attention.head_count", 4},
                                                     {"llama.context_length", 1024}};
    weights::GgufValue value;
    value.kind = weights::GgufKind::kInt64;
    for (const auto& [key, size] : sizes) value.integer = size, metadata.add(key, value);
    value.kind = weights::GgufKind::kFloat64;
    for (const auto& [key, number] : numbers) value.real = number, metadata.add(key, value);
    value.kind = weights::GgufKind::kString;
    if (type != nullptr) value.text = type, metadata.add("llama.rope.scaling.type", value);
    const auto config = find_gguf_family("llama").value()->from_gguf(metadata, "llama");
    EXPECT_TRUE(config.ok()) << config.error().message;
    return std::pair(config->rope.type, config->rope.factor);
  };
  EXPECT_EQ(read_rope({}), std::pair(RopeType::kDefault, 1.0));
  EXPECT_EQ(read_rope({{"llama.rope.scaling.factor", 4}}), std::pair(RopeType::kLinear, 4.0));
  EXPECT_EQ(read_rope({{"llama.rope.scale_linear", 8}}), std::pair(RopeType::kLinear, 8.0));
  EXPECT_EQ(read_rope({{"llama.rope.scale_linear", 8}, {"llama.rope.scaling.factor", 2}}).second, 2.0);
  EXPECT_EQ(read_rope({{"llama.rope.scaling.factor", 0}}), std::pair(RopeType::kDefault, 1.0));
  EXPECT_EQ(read_rope({{"llama.rope.scaling.factor", 4}}, "none").first, RopeType::kDefault);
  EXPECT_EQ(read_rope({{"llama.rope.scaling.factor", 4}}, "yarn").first, RopeType::kYarn);
}

struct FrequencyCase {
  const char* name;
  const char* head_dim;
  const char* max_position;
  const char* rope;
  int64_t max_model_len;
  float attention_factor;
  std::vector<std::pair<size_t, float>> frequencies;  // pair, frequency
};

TEST(RopeFrequencies, AreTheReferences) {
  const char* longrope = R"({"rope_type": "longrope", "short_factor": [1, 2], "long_factor": [4, 8],
                             "original_max_position_embeddings": 4096})";
  const char* with_mscale = R"({"type": "longrope", "short_factor": [1, 2], "long_factor": [4, 8], "long_mscale": 1.5,
                                "short_mscale": 1.25, "original_max_position_embeddings": 4096})";
  const FrequencyCase cases[] = {
      {"plain", "8", "1024", R"({"rope_type": "default"})", 1024, 1, {{0, 1}, {1, 0.1f}, {2, 0.01f}, {3, 0.001f}}},
      {"linear", "8", "4096", R"({"rope_type": "linear", "factor": 4})", 16384, 1, {{0, 0.25f}, {1, 0.025f}}},
      {"dynamic",
       "8",
       "1024",
       R"({"rope_type": "dynamic", "factor": 2})",
       2048,
       1,
       {{0, 1}, {1, 0.0693361238f}, {2, 0.00480749831f}, {3, 0.00033333333f}}},
      {"dynamic within the trained length",
       "8",
       "1024",
       R"({"rope_type": "dynamic", "factor": 2})",
       512,
       1,
       {{1, 0.1f}, {3, 0.001f}}},
      {"Llama 3.1",
       "128",
       "131072",
       R"({"rope_type": "llama3", "rope_theta": 500000, "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
           "original_max_position_embeddings": 8192})",
       131072,
       1,
       {{0, 1}, {28, 0.00321144611f}, {31, 0.00085675146f}, {34, 0.000178507791f}, {63, 3.06892588e-07f}}},
      {"Qwen2.5 with yarn",
       "128",
       "131072",
       R"({"rope_type": "yarn", "rope_theta": 1000000, "factor": 4, "original_max_position_embeddings": 32768})",
       131072,
       1.138629436f,
       {{10, 0.115478203f}, {24, 0.00537532149f}, {30, 0.00106436096f}, {39, 6.4903943e-05f}, {63, 3.10234441e-07f}}},
      {"longrope, short", "4", "131072", longrope, 4096, 1.1902380714f, {{0, 1}, {1, 0.005f}}},
      {"longrope, long", "4", "131072", longrope, 4097, 1.1902380714f, {{0, 0.25f}, {1, 0.00125f}}},
      {"Phi-MoE's longrope, short", "4", "131072", with_mscale, 4096, 1.25f, {{0, 1}, {1, 0.005f}}},
      {"Phi-MoE's longrope, long", "4", "131072", with_mscale, 4097, 1.5f, {{0, 0.25f}, {1, 0.00125f}}},
  };
  for (const FrequencyCase& c : cases) {
    SCOPED_TRACE(c.name);
    const DecoderConfig config =
        read("LlamaForCausalLM",
             {{"head_dim", c.head_dim}, {"max_position_embeddings", c.max_position}, {"rope_parameters", c.rope}});
    const RopeFrequencies got = rope_frequencies(config.rope, c.max_model_len);
    EXPECT_FLOAT_EQ(got.attention_factor, c.attention_factor);
    ASSERT_EQ(static_cast<int64_t>(got.inv_freq.size()), config.head_dim / 2);
    for (const auto& [pair, frequency] : c.frequencies) {
      EXPECT_NEAR(got.inv_freq[pair], frequency, 4e-7f * frequency) << "pair " << pair;  // 3 roundings of the reference
    }
  }
}

TEST(RopeTable, HoldsTheCosineAndSineOfEachPosition) {
  const DecoderConfig config = read("LlamaForCausalLM", {{"head_dim", "8"}});
  RopeTable table(rope_frequencies(config.rope, 1024), 1024);
  table.grow_to(3);
  const float angle = 2.0f * 0.1f;
  EXPECT_FLOAT_EQ(table.cosines()[2 * 4 + 1], std::cos(angle));
  EXPECT_FLOAT_EQ(table.sines()[2 * 4 + 1], std::sin(angle));
  table.grow_to(1024);  // growing keeps the existing entries
  EXPECT_FLOAT_EQ(table.cosines()[2 * 4 + 1], std::cos(angle));
  EXPECT_FLOAT_EQ(table.sines()[1023 * 4 + 3], std::sin(1023.0f * 0.001f));
}

}  // namespace
}  // namespace quire::model
