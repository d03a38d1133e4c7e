// SPDX-License-Identifier: Apache-2.0
// Adapters in the three formats, and files that are wrong in some way: one sentence each.
#include "weights/adapter.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <functional>

#include "base/file.h"
#include "weights/test_files.h"

namespace quire::weights {
namespace {

using testing::append;
using testing::GgufWriter;
using testing::SafetensorsTensor;
using testing::TempFolder;

std::string floats(size_t count, float first = 1) {
  std::string out;
  for (size_t i = 0; i < count; ++i) append<float>(out, first + static_cast<float>(i));
  return out;
}

constexpr const char* kModule = "base_model.model.model.layers.0.self_attn.q_proj";

std::vector<SafetensorsTensor> peft_tensors() {
  return {{std::string(kModule) + ".lora_A.weight", "F32", {2, 3}, floats(6)},
          {std::string(kModule) + ".lora_B.weight", "F32", {4, 2}, floats(8, 10)}};
}

// Writes a PEFT folder and opens it.
Result<AdapterFiles> open_peft(const std::string& config,
                               const std::vector<SafetensorsTensor>& tensors = peft_tensors()) {
  const TempFolder folder;
  EXPECT_TRUE(write_file(folder.path() / "adapter_config.json", config).ok());
  EXPECT_TRUE(write_file(folder.path() / "adapter_model.safetensors", testing::safetensors_file(tensors)).ok());
  return open_adapter(folder.path());
}

std::string message_of(const Result<AdapterFiles>& result) {
  return result.ok() ? "" : result.error().message;
}

void expect_refused(const Result<AdapterFiles>& result, const std::string& part) {
  ASSERT_FALSE(result.ok()) << part;
  EXPECT_NE(result.error().message.find(part), std::string::npos) << result.error().message;
  EXPECT_EQ(result.error().message.find('\n'), std::string::npos);
}

TEST(Adapter, ReadsPeft) {
  const auto files = open_peft(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 3, "lora_dropout": 0.1})");
  ASSERT_TRUE(files.ok()) << message_of(files);
  ASSERT_EQ(files->modules.size(), 1u);
  const AdapterModule& module = files->modules[0];
  EXPECT_EQ(module.name, "model.layers.0.self_attn.q_proj");
  EXPECT_EQ(module.rank, 2);
  EXPECT_EQ(module.in, 3);
  EXPECT_EQ(module.out, 4);
  EXPECT_EQ(module.scale, 1.5);
  EXPECT_EQ(module.a_values().value(), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(module.b_values().value(), (std::vector<float>{10, 11, 12, 13, 14, 15, 16, 17}));
}

TEST(Adapter, ScalesByRootAndByPatterns) {
  const auto rooted = open_peft(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 3, "use_rslora": true})");
  ASSERT_TRUE(rooted.ok()) << message_of(rooted);
  EXPECT_EQ(rooted->modules[0].scale, 3 / std::sqrt(2.0));
  for (const char* key : {"q_proj", "self_attn.q_proj", R"(^model\\.layers\\.\\d+\\..*q_proj)"}) {
    const auto files =
        open_peft(std::string(R"({"peft_type": "LORA", "r": 8, "lora_alpha": 8, "rank_pattern": {"k": 3, ")") + key +
                  R"(": 2}, "alpha_pattern": {")" + key + R"(": 5, ".*": 7}})");
    ASSERT_TRUE(files.ok()) << message_of(files);
    EXPECT_EQ(files->modules[0].scale, 2.5) << key;
  }
}

TEST(Adapter, DigestCoversTensorsAndScales) {
  const auto one = open_peft(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 3})");
  const auto same = open_peft(R"({"lora_alpha": 3, "r": 2, "peft_type": "LORA"})");
  const auto scaled = open_peft(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4})");
  std::vector<SafetensorsTensor> changed = peft_tensors();
  changed[1].data = floats(8, 11);
  const auto other = open_peft(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 3})", changed);
  ASSERT_TRUE(one.ok() && same.ok() && scaled.ok() && other.ok());
  EXPECT_EQ(one->digest(), same->digest());
  EXPECT_NE(one->digest(), scaled->digest());
  EXPECT_NE(one->digest(), other->digest());
}

TEST(Adapter, RefusesWhatItDoesNotCompute) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("use_dora": true)", "DoRA"},
      {R"("bias": "all")", "'bias'"},
      {R"("lora_bias": true)", "'lora_bias'"},
      {R"("modules_to_save": ["embed_tokens"])", "'modules_to_save'"},
      {R"("init_lora_weights": "pissa_niter_4")", "'init_lora_weights'"},
      {R"("alora_invocation_tokens": [1, 2])", "activated"},
      {R"("target_parameters": ["mixer.A_log"])", "'target_parameters'"},
      {R"("target_parameters": "mlp.experts.down_proj")", "'target_parameters'"},
      {R"("layer_replication": [[0, 2]])", "'layer_replication'"},
      {R"("new_maths": 1)", "'new_maths'"},
      {R"("rank_pattern": {"(": 1})", "regular expression"},
      {R"("rank_pattern": 5)", "'rank_pattern'"},
      {R"("lora_alpha": 1e300)", "has a scale of 5e+299"},
  };
  for (const auto& [field, part] : cases) {
    expect_refused(open_peft(std::string(R"({"peft_type": "LORA", "r": 2, )") + field + "}"), part);
  }
  expect_refused(open_peft(R"({"peft_type": "IA3"})"), "'IA3'");
  expect_refused(open_peft(R"({"r": 2})"), "peft_type");
  expect_refused(open_peft(R"({"peft_type": "LORA", "r": 3})"), "has rank 2, but adapter_config.json says 3");
  expect_refused(open_peft("[1]"), "JSON object");
  expect_refused(open_peft("{"), "adapter_config.json");
}

// PEFT's target_parameters name matrices of all experts, whose ranks and scales come from the names alone.
TEST(Adapter, ChecksRanksAndScalesOfExperts) {
  std::vector<SafetensorsTensor> tensors = peft_tensors();
  tensors[0].name = "base_model.model.model.layers.0.mlp.experts.lora_A.weight";
  tensors[1].name = "base_model.model.model.layers.0.mlp.experts.lora_B.weight";
  const auto with = [&](const std::string& field) {
    return open_peft(
        R"({"peft_type": "LORA", "r": 2, "target_parameters": ["mlp.experts.gate_up_proj"], )" + field + "}", tensors);
  };
  const auto good = with(R"("lora_alpha": 4)");
  ASSERT_TRUE(good.ok()) << message_of(good);
  EXPECT_TRUE(good->modules[0].of_experts);
  EXPECT_EQ(good->modules[0].gate_up_scale, 2);
  expect_refused(with(R"("lora_alpha": 1e300)"), "scale");
  expect_refused(with(R"("rank_pattern": {"gate_up_proj": 1e300})"), "rank");
  expect_refused(with(R"("rank_pattern": {"gate_up_proj": 0})"), "rank");
}

// Without a gate, the first parameter is up_proj.
TEST(Adapter, TakesExpertsWithoutAGate) {
  std::vector<SafetensorsTensor> tensors = peft_tensors();
  tensors[0].name = "base_model.model.model.layers.0.mixer.experts.base_layer.lora_A.weight";
  tensors[1].name = "base_model.model.model.layers.0.mixer.experts.base_layer.lora_B.weight";
  const auto files = open_peft(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "alpha_pattern": {"up_proj": 10},
                                   "target_parameters": ["mixer.experts.up_proj", "mixer.experts.down_proj"]})",
                               tensors);
  ASSERT_TRUE(files.ok()) << message_of(files);
  EXPECT_EQ(files->modules[0].name, "model.layers.0.mixer.experts");
  EXPECT_EQ(files->modules[0].gate_up_scale, 5);
  EXPECT_EQ(files->modules[0].down_scale, 2);
}

// "all-linear" makes this of a router, which is a parameter in transformers 5; patterns match the parameter's name.
TEST(Adapter, TakesParametersThatAreWeightsOfModules) {
  std::vector<SafetensorsTensor> tensors = peft_tensors();
  tensors[0].name = "base_model.model.model.layers.0.mlp.gate.lora_A.weight";
  tensors[1].name = "base_model.model.model.layers.0.mlp.gate.lora_B.weight";
  const auto files = open_peft(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "alpha_pattern": {"gate.weight": 10},
                                   "target_parameters": ["gate.weight", "gate_up_proj", "down_proj"]})",
                               tensors);
  ASSERT_TRUE(files.ok()) << message_of(files);
  EXPECT_FALSE(files->modules[0].of_experts);
  EXPECT_EQ(files->modules[0].name, "model.layers.0.mlp.gate");
  EXPECT_EQ(files->modules[0].scale, 5);
}

// A pattern is for the name in the model that was trained, here a part of one that also sees images.
TEST(Adapter, MatchesPatternsWithTheNamesOfTraining) {
  std::vector<SafetensorsTensor> tensors = peft_tensors();
  for (SafetensorsTensor& tensor : tensors) {
    const std::string module = "base_model.model.model.layers.";
    ASSERT_TRUE(tensor.name.starts_with(module));
    tensor.name.replace(0, module.size(), "base_model.model.model.language_model.layers.");
  }
  const auto files = open_peft(
      R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "alpha_pattern": {"^model\\.language_model\\..*": 10}})",
      tensors);
  ASSERT_TRUE(files.ok()) << message_of(files);
  EXPECT_TRUE(files->modules[0].name.starts_with("model.layers.")) << files->modules[0].name;
  EXPECT_EQ(files->modules[0].scale, 5);
}

TEST(Adapter, LeavesOutCopiesOfTheBase) {
  std::vector<SafetensorsTensor> tensors = peft_tensors();
  tensors.push_back({"base_model.model.lm_head.base_layer.weight", "F32", {4, 3}, floats(12)});
  tensors.push_back({"base_model.model.lm_head.base_layer.bias", "F32", {4}, floats(4)});
  const auto files = open_peft(R"({"peft_type": "LORA", "r": 2})", tensors);
  ASSERT_TRUE(files.ok()) << message_of(files);
  EXPECT_EQ(files->modules.size(), 1u);
}

// Whoever may load an adapter names the folder; a pipe in it must not hold a thread for ever.
TEST(Adapter, DoesNotReadPipes) {
  const TempFolder folder;
  ASSERT_TRUE(write_file(folder.path() / "adapter_model.safetensors", testing::safetensors_file(peft_tensors())).ok());
  ASSERT_EQ(::mkfifo((folder.path() / "adapter_config.json").c_str(), 0600), 0);
  expect_refused(open_adapter(folder.path()), "is not a regular file");
}

TEST(Adapter, RefusesWrongTensors) {
  const char* config = R"({"peft_type": "LORA", "r": 2})";
  const auto with = [&](const std::function<void(std::vector<SafetensorsTensor>&)>& change) {
    std::vector<SafetensorsTensor> tensors = peft_tensors();
    change(tensors);
    return open_peft(config, tensors);
  };
  expect_refused(with([](auto& t) { t.pop_back(); }), "only its A matrix");
  expect_refused(with([](auto& t) { t.erase(t.begin()); }), "only its B matrix");
  expect_refused(with([](auto& t) { t.clear(); }), "no LoRA matrices");
  expect_refused(with([](auto& t) { t[1] = {t[1].name, "F32", {8, 1}, floats(8)}; }), "do not fit together");
  expect_refused(with([](auto& t) { t[0] = {t[0].name, "F32", {6}, floats(6)}; }), "has the shape [6]");
  expect_refused(with([](auto& t) { t[0] = {t[0].name, "I64", {2, 3}, std::string(48, '\0')}; }), "type");
  expect_refused(with([](auto& t) {
                   t.push_back({std::string(kModule) + ".lora_magnitude_vector", "F32", {4}, floats(4)});
                 }),
                 "DoRA");
  expect_refused(with([](auto& t) {
                   t.push_back({"base_model.model.score.weight", "F32", {4}, floats(4)});
                 }),
                 "'base_model.model.score.weight'");
  expect_refused(with([](auto& t) {
                   auto again = t[0];
                   again.name = std::string(kModule) + ".lora_A.default.weight";
                   t.push_back(again);
                 }),
                 "two matrices");
  const auto nan = with([](auto& t) { t[0].data = floats(6, NAN); });
  ASSERT_TRUE(nan.ok());
  ASSERT_FALSE(nan->modules[0].a_values().ok());
  EXPECT_NE(nan->modules[0].a_values().error().message.find("not a finite number"), std::string::npos);
}

TEST(Adapter, RefusesMissingFilesAndPickles) {
  const TempFolder folder;
  expect_refused(open_adapter(folder.path() / "nowhere"), "there is no adapter at");
  expect_refused(open_adapter(folder.path()), "neither adapter_model.safetensors");
  ASSERT_TRUE(write_file(folder.path() / "adapter_model.bin", "pickle").ok());
  expect_refused(open_adapter(folder.path()), "pickle");
  ASSERT_TRUE(write_file(folder.path() / "adapter_model.safetensors", "x").ok());
  expect_refused(open_adapter(folder.path()), "adapter_config.json");
  ASSERT_TRUE(write_file(folder.path() / "adapter_config.json", R"({"peft_type": "LORA"})").ok());
  expect_refused(open_adapter(folder.path()), "adapter_model.safetensors");
}

TEST(Adapter, ReadsMlx) {
  const TempFolder folder;
  const std::vector<SafetensorsTensor> tensors = {{"model.layers.3.mlp.up_proj.lora_a", "F32", {3, 2}, floats(6)},
                                                  {"model.layers.3.mlp.up_proj.lora_b", "F32", {2, 4}, floats(8)}};
  ASSERT_TRUE(write_file(folder.path() / "adapters.safetensors", testing::safetensors_file(tensors)).ok());
  const auto write_config = [&](const char* text) {
    ASSERT_TRUE(write_file(folder.path() / "adapter_config.json", text).ok());
  };
  write_config(R"({"fine_tune_type": "lora", "num_layers": 1, "lora_parameters": {"rank": 2, "scale": 20.0}})");
  const auto files = open_adapter(folder.path());
  ASSERT_TRUE(files.ok()) << message_of(files);
  const AdapterModule& module = files->modules.at(0);
  EXPECT_EQ(module.name, "model.layers.3.mlp.up_proj");
  EXPECT_EQ(module.scale, 20);
  EXPECT_EQ(module.in, 3);
  EXPECT_EQ(module.out, 4);
  EXPECT_EQ(module.a_values().value(), (std::vector<float>{1, 3, 5, 2, 4, 6}));
  EXPECT_EQ(module.b_values().value(), (std::vector<float>{1, 5, 2, 6, 3, 7, 4, 8}));
  // All experts of a layer.
  const auto write_stack = [&](const std::string& name, std::vector<int64_t> a, size_t count) {
    const std::vector<SafetensorsTensor> stack = {{name + ".lora_a", "F32", std::move(a), floats(count)},
                                                  {name + ".lora_b", "F32", {2, 4, 1}, floats(8)}};
    ASSERT_TRUE(write_file(folder.path() / "adapters.safetensors", testing::safetensors_file(stack)).ok());
  };
  write_stack("model.layers.3.mlp.switch_mlp.up_proj", {2, 1, 3}, 6);
  const auto experts = open_adapter(folder.path());
  ASSERT_TRUE(experts.ok()) << message_of(experts);
  ASSERT_EQ(experts->modules.size(), 2u);
  EXPECT_EQ(experts->modules[1].name, "model.layers.3.mlp.experts.1.up_proj");
  EXPECT_EQ(experts->modules[1].a_values().value(), (std::vector<float>{4, 5, 6}));
  EXPECT_EQ(experts->modules[1].b_values().value(), (std::vector<float>{5, 6, 7, 8}));
  write_stack("model.layers.3.mlp.switch_mlp.up_proj", {2, 2, 3}, 12);
  expect_refused(open_adapter(folder.path()), "do not fit together");
  write_stack("model.layers.3.mlp.up_proj", {2, 1, 3}, 6);
  expect_refused(open_adapter(folder.path()), "single matrices");
  write_config(R"({"fine_tune_type": "dora", "lora_parameters": {}})");
  expect_refused(open_adapter(folder.path()), "'dora'");
  write_config(R"({"fine_tune_type": "lora"})");
  expect_refused(open_adapter(folder.path()), "'lora_parameters'");
}

TEST(Adapter, ReadsGguf) {
  const TempFolder folder;
  const auto write = [&](const std::function<void(GgufWriter&)>& more) {
    GgufWriter writer;
    writer.string("general.architecture", "llama");
    writer.string("general.type", "adapter");
    writer.string("adapter.type", "lora");
    writer.number<float>("adapter.lora.alpha", 6, 8.0f);
    more(writer);
    writer.tensor("blk.0.attn_q.weight.lora_a", {3, 2}, 0, floats(6));
    writer.tensor("blk.0.attn_q.weight.lora_b", {2, 4}, 0, floats(8));
    EXPECT_TRUE(write_file(folder.path() / "a.gguf", writer.finish()).ok());
    return open_adapter(folder.path() / "a.gguf");
  };
  const auto files = write([](GgufWriter&) {});
  ASSERT_TRUE(files.ok()) << message_of(files);
  EXPECT_TRUE(files->gguf);
  EXPECT_EQ(files->architecture, "llama");
  const AdapterModule& module = files->modules.at(0);
  EXPECT_EQ(module.name, "blk.0.attn_q");
  EXPECT_EQ(module.scale, 4);
  EXPECT_EQ(module.rank, 2);
  EXPECT_EQ(module.in, 3);
  EXPECT_EQ(module.out, 4);
  EXPECT_EQ(module.a_values().value(), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  const auto embedding = write([](GgufWriter& w) {
    w.tensor("token_embd.weight.lora_a", {2, 5}, 0, floats(10));
    w.tensor("token_embd.weight.lora_b", {2, 3}, 0, floats(6));
  });
  ASSERT_TRUE(embedding.ok()) << message_of(embedding);
  EXPECT_TRUE(embedding->modules.at(1).embedding);
  EXPECT_EQ(embedding->modules.at(1).in, 5);
  EXPECT_EQ(embedding->modules.at(1).out, 3);
  expect_refused(write([](GgufWriter& w) { w.tensor("blk.0.attn_norm.weight", {3}, 0, floats(3)); }),
                 "'blk.0.attn_norm.weight'");
  expect_refused(write([](GgufWriter& w) {
                   w.pair("adapter.alora.invocation_tokens", 9, GgufWriter::array(4, 1, std::string(4, '\1')));
                 }),
                 "activated");
  GgufWriter model;
  model.string("general.architecture", "llama");
  ASSERT_TRUE(write_file(folder.path() / "m.gguf", model.finish()).ok());
  expect_refused(open_adapter(folder.path() / "m.gguf"), "not an adapter");
}

}  // namespace
}  // namespace quire::weights
