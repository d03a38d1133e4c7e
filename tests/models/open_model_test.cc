// SPDX-License-Identifier: Apache-2.0
// What is inferred from a folder's tensors where its config.json says nothing: the main type, and the head size.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "model/model.h"
#include "weights/test_files.h"

namespace quire::model {
namespace {

using weights::testing::SafetensorsTensor;
using weights::testing::TempFolder;

// A Llama with 4 heads, 2 KV heads and 64 hidden elements; `more` are further fields of config.json.
std::string config_json(const std::string& more) {
  return R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 32, "hidden_size": 64, "num_hidden_layers": 1,
      "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "max_position_embeddings": 1024)" +
         more + "}";
}

SafetensorsTensor tensor(std::string name, const std::string& type, std::vector<int64_t> shape) {
  const int64_t bits = type == "F32" || type == "I32" || type == "U32" ? 32 : type == "F16" || type == "BF16" ? 16 : 8;
  int64_t size = bits / 8;
  for (const int64_t dim : shape) size *= dim;
  return {std::move(name), type, std::move(shape), std::string(static_cast<size_t>(size), '\0')};
}

Result<ModelFiles> open(const std::string& more, const std::vector<SafetensorsTensor>& tensors) {
  const TempFolder folder;
  folder.write("config.json", config_json(more));
  folder.write("model.safetensors", weights::testing::safetensors_file(tensors));
  return open_model(folder.path(), {});
}

DType dtype_of(const std::string& more, const std::vector<SafetensorsTensor>& tensors) {
  const auto files = open(more, tensors);
  EXPECT_TRUE(files.ok()) << files.error().message;
  return files.ok() ? files->config.dtype : DType::kI8;
}

std::vector<SafetensorsTensor> plain(const std::string& type) {
  return {tensor("model.embed_tokens.weight", type, {32, 64}),
          tensor("model.layers.0.self_attn.k_proj.weight", type, {32, 64}),
          tensor("model.layers.0.input_layernorm.weight", "F32", {64}), tensor("model.norm.weight", "F32", {64})};
}

// The bug: a BF16 folder without a dtype in its config.json was taken for float32, and its pages had twice the size.
TEST(OpenModel, TheTypeIsThatOfTheTensorsWhereTheConfigDoesNotSay) {
  EXPECT_EQ(dtype_of("", plain("BF16")), DType::kBF16);
  EXPECT_EQ(dtype_of("", plain("F16")), DType::kF16);
  EXPECT_EQ(dtype_of("", plain("F32")), DType::kF32);
  EXPECT_EQ(dtype_of(R"(, "dtype": null)", plain("BF16")), DType::kBF16);
}

TEST(OpenModel, TheConfigsTypeIsReadInEitherSpelling) {
  EXPECT_EQ(dtype_of(R"(, "dtype": "float16")", plain("BF16")), DType::kF16);
  EXPECT_EQ(dtype_of(R"(, "torch_dtype": "float32")", plain("BF16")), DType::kF32);
  EXPECT_EQ(dtype_of(R"(, "dtype": null, "torch_dtype": "float16")", plain("BF16")), DType::kF16);
}

TEST(OpenModel, MostWeightsDecideTheTypeAndNormsOnlyWhereThereIsNothingElse) {
  auto tensors = plain("BF16");
  tensors.push_back(tensor("model.layers.0.mlp.gate.weight", "F32", {8, 64}));
  EXPECT_EQ(dtype_of("", tensors), DType::kBF16);
  // Tensors of layers beyond the model's own do not count.
  tensors.push_back(tensor("model.layers.1.mlp.up_proj.weight", "F32", {512, 64}));
  EXPECT_EQ(dtype_of("", tensors), DType::kBF16);
  EXPECT_EQ(dtype_of("", {tensor("model.norm.weight", "F16", {64}), tensor("model.ids", "I32", {64, 64})}),
            DType::kF16);
}

// The bug: a head that was trained beside a config that still says tie_word_embeddings was dropped without a word.
TEST(OpenModel, AHeadWithValuesOfItsOwnIsNotTiedWhateverTheConfigSays) {
  const auto tied = [](const SafetensorsTensor& head, const char* config = R"(, "tie_word_embeddings": true)") {
    auto tensors = plain("F16");
    if (!head.name.empty()) tensors.push_back(head);
    const auto files = open(config, tensors);
    EXPECT_TRUE(files.ok()) << files.error().message;
    return files.ok() && files->config.tied_embeddings;
  };
  EXPECT_TRUE(tied({}));
  EXPECT_TRUE(tied(tensor("lm_head.weight", "F16", {32, 64})));  // a copy
  EXPECT_FALSE(tied(tensor("lm_head.weight", "F16", {32, 64}), ""));
  EXPECT_TRUE(tied(tensor("lm_head.weight", "F16", {31, 64})));  // of another shape: not used, as before
  for (const size_t at : {size_t{1}, size_t{31 * 64 * 2}}) {
    SafetensorsTensor own = tensor("lm_head.weight", "F16", {32, 64});
    own.data[at] = 1;
    EXPECT_FALSE(tied(own)) << at;
  }
  EXPECT_FALSE(tied(tensor("lm_head.weight", "F32", {32, 64})));
}

// The bug: comparing a head and an embedding that claim 2^50 rows of nothing took for ever.
TEST(OpenModel, AHeadOfManyEmptyRowsEndsAtOnce) {
  auto tensors = plain("F16");
  for (SafetensorsTensor& t : tensors) {
    if (t.name == "model.embed_tokens.weight") t = tensor(t.name, "F16", {int64_t{1} << 50, 0});
  }
  tensors.push_back(tensor("lm_head.weight", "F16", {int64_t{1} << 50, 0}));
  const auto files = open(R"(, "tie_word_embeddings": true)", tensors);
  EXPECT_TRUE(!files.ok() || files->config.tied_embeddings);
}

// How the formats store a k_proj of 48 rows (2 heads of 24, where hidden / heads is 16) with 64 inputs.
struct Layout {
  const char* name;
  const char* config;
  std::vector<SafetensorsTensor> tensors;
};

std::vector<Layout> layouts() {
  const std::string k = "model.layers.0.self_attn.k_proj";
  return {
      {"plain", "", {tensor(k + ".weight", "BF16", {48, 64})}},
      {"MLX, 4 bits",
       R"(, "quantization": {"group_size": 32, "bits": 4})",
       {tensor(k + ".weight", "U32", {48, 8}), tensor(k + ".scales", "BF16", {48, 2}),
        tensor(k + ".biases", "BF16", {48, 2})}},
      {"AWQ",
       R"(, "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32})",
       {tensor(k + ".qweight", "I32", {64, 6}), tensor(k + ".qzeros", "I32", {2, 6}),
        tensor(k + ".scales", "BF16", {2, 48})}},
      {"GPTQ, 8 bits",
       R"(, "quantization_config": {"quant_method": "gptq", "bits": 8, "group_size": 32})",
       {tensor(k + ".qweight", "I32", {16, 48}), tensor(k + ".qzeros", "I32", {2, 12}),
        tensor(k + ".scales", "BF16", {2, 48})}},
      {"FP8",
       R"(, "quantization_config": {"quant_method": "fp8"})",
       {tensor(k + ".weight", "F8_E4M3", {48, 64}), tensor(k + ".weight_scale", "BF16", {48, 1})}},
      {"compressed-tensors, packed",
       R"(, "quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized",
           "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int"}}}})",
       {tensor(k + ".weight_packed", "I32", {48, 8}), tensor(k + ".weight_scale", "BF16", {48, 2})}},
      {"compressed-tensors, int8",
       R"(, "quantization_config": {"quant_method": "compressed-tensors", "format": "int-quantized",
           "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int"}}}})",
       {tensor(k + ".weight", "I8", {48, 64}), tensor(k + ".weight_scale", "BF16", {48, 1})}},
      {"left plain by a quantised folder",
       R"(, "quantization_config": {"quant_method": "awq", "bits": 4, "modules_to_not_convert": ["self_attn"]})",
       {tensor(k + ".weight", "BF16", {48, 64})}},
  };
}

// The bug: the head size of quantised folders was taken to be hidden / heads, whatever the shape of k_proj.
TEST(OpenModel, TheSizeOfAHeadIsReadFromKProjInEveryFormat) {
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(layout.name);
    const auto files = open(layout.config, layout.tensors);
    ASSERT_TRUE(files.ok()) << files.error().message;
    EXPECT_EQ(files->config.head_dim, 24);
    EXPECT_EQ(files->config.dtype, DType::kBF16);  // the type of the scales
  }
}

TEST(OpenModel, KProjIsFoundUnderTheTextPartOfALargerModel) {
  const auto files = open("", {tensor("language_model.model.embed_tokens.weight", "BF16", {32, 64}),
                               tensor("language_model.model.layers.0.self_attn.k_proj.weight", "BF16", {48, 64}),
                               tensor("vision_tower.blocks.weight", "F32", {512, 64})});
  ASSERT_TRUE(files.ok()) << files.error().message;
  EXPECT_EQ(files->config.head_dim, 24);
  EXPECT_EQ(files->config.dtype, DType::kBF16);
}

// The bug: an object for text_config replaced all of it.
TEST(OpenModel, AnOverrideOfAPartOfTheConfigLeavesItsOtherMembers) {
  const TempFolder folder;
  const std::string more = R"(, "rope_theta": 5000.0)", text = config_json(more);
  folder.write("config.json", R"({"architectures": ["LlamaForCausalLM"], "text_config": )" + text + "}");
  folder.write("model.safetensors", weights::testing::safetensors_file(plain("F16")));
  LoadOptions options;
  options.hf_overrides = R"({"text_config": {"max_position_embeddings": 64}})";
  const auto files = open_model(folder.path(), options);
  ASSERT_TRUE(files.ok()) << files.error().message;
  EXPECT_EQ(files->config.max_position, 64);
  EXPECT_EQ(files->config.rope.theta, 5000.0);
}

TEST(OpenModel, TheHeadMayBeAPartOfTheTextPart) {
  auto tensors = std::vector{tensor("language_model.model.embed_tokens.weight", "BF16", {32, 64}),
                             tensor("language_model.lm_head.weight", "BF16", {32, 64})};
  const auto files = open(R"(, "head_dim": 16)", tensors);
  ASSERT_TRUE(files.ok()) << files.error().message;
  EXPECT_EQ(files->config.text_prefix, "language_model.model.");
  EXPECT_EQ(files->config.head_prefix, "language_model.");
  EXPECT_EQ(open(R"(, "head_dim": 16)", plain("F16"))->config.head_prefix, "");
}

// The bugs: faults that show with the tensors were blamed on the file of weights, and others named config.json twice.
TEST(OpenModel, AFaultOfTheConfigIsBlamedOnItOnce) {
  for (const char* config :
       {R"(, "rope_scaling": {"rope_type": "longrope", "short_factor": [1], "long_factor": [1]})",
        R"(, "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "x"})",
        R"(, "quantization_config": 5)"}) {
    const auto files = open(config, plain("F16"));
    ASSERT_FALSE(files.ok()) << config;
    const std::string& message = files.error().message;
    const size_t at = message.find("config.json");
    ASSERT_NE(at, std::string::npos) << message;
    EXPECT_EQ(message.find("config.json", at + 1), std::string::npos) << message;
    EXPECT_EQ(message.find("safetensors"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace quire::model
