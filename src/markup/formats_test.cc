// SPDX-License-Identifier: Apache-2.0
// Choosing the markup: by name, and from the chat templates of models.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "markup/formats.h"
#include "markup/testing.h"

namespace quire::markup {
namespace {

TEST(Formats, NamesAreUniqueAndAscending) {
  for (const auto& names : {tool_parser_names(), reasoning_parser_names()}) {
    EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
    EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
  }
  // The names of vLLM.
  for (const std::string_view name :
       {"hermes",         "qwen3_json",      "longcat",         "granite4",    "ernie45",      "granite",
        "granite-20b-fc", "phi4_mini_json",  "hunyuan_a13b",    "jamba",       "internlm",     "xlam",
        "llama3_json",    "llama4_json",     "llama4_pythonic", "pythonic",    "olmo3",        "lfm2",
        "mistral",        "qwen3_coder",     "qwen3_xml",       "mimo",        "step3p5",      "seed_oss",
        "glm45",          "glm47",           "ling3",           "poolside_v1", "hy_v3",        "hy_v4",
        "minimax",        "minimax_m2",      "minimax_m3",      "deepseek_v3", "deepseek_v31", "deepseek_v32",
        "deepseek_v4",    "deepseek_v41",    "kimi_k2",         "kimi_k3",     "gemma4",       "functiongemma",
        "openai",         "cohere_command3", "cohere_command4", "apertus",     "gigachat3",    "step3",
        "dots",           "minicpm5",        "inkling",         "muse_glimmer"}) {
    EXPECT_NE(find_tool_format(name), nullptr) << name;
  }
  for (const std::string_view name : {"deepseek_r1",
                                      "deepseek_v3",
                                      "holo2",
                                      "qwen3",
                                      "mimo",
                                      "nemotron_v3",
                                      "granite_thinking_parser",
                                      "step3p5",
                                      "minicpmv",
                                      "glm45",
                                      "glm47",
                                      "kimi_k2",
                                      "ling3",
                                      "minimax_m2",
                                      "minimax_m2_append_think",
                                      "minimax_m3",
                                      "seed_oss",
                                      "gemma4",
                                      "mistral",
                                      "cohere_command3",
                                      "cohere_command4",
                                      "granite",
                                      "hunyuan_a13b",
                                      "ernie45",
                                      "olmo3",
                                      "step3",
                                      "poolside_v1",
                                      "hy_v3",
                                      "hy_v4",
                                      "k2_horizon",
                                      "kimi_k3",
                                      "muse_glimmer",
                                      "openai_gptoss"}) {
    EXPECT_NE(find_reasoning_format(name), nullptr) << name;
  }
}

TEST(Formats, UnknownNamesAreErrorsThatSuggestTheNearest) {
  const auto wrong = choose_dialect("hermse", "none", "");
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.error().message.find("did you mean 'hermes'"), std::string::npos) << wrong.error().message;
  EXPECT_FALSE(choose_dialect("none", "quen3", "").ok());
  const Dialect none = choose_dialect("none", "none", "<tool_call> tools <think>").value();
  EXPECT_EQ(none.tools, nullptr);
  EXPECT_EQ(none.reasoning, nullptr);
}

TEST(Formats, NoMarkerOfARowBeginsAnother) {
  // The scanner takes the marker that is complete first.
  for (const ToolFormat& row : tool_formats()) {
    std::vector<std::string_view> markers(row.begins.begin(), row.begins.end());
    if (!row.open.empty()) markers.push_back(row.open);
    for (const std::string_view a : markers) {
      for (const std::string_view b : markers) EXPECT_FALSE(a != b && b.starts_with(a)) << row.name << ": " << a;
    }
    EXPECT_FALSE(row.write_begin.empty()) << row.name;
  }
}

// The tool parser and the reasoning parser of each template; "" for none. Templates that are not listed have neither.
const std::map<std::string, std::pair<std::string, std::string>>& expected_of_templates() {
  static const std::map<std::string, std::pair<std::string, std::string>> expected = {
      {"Apertus-8B-Instruct", {"apertus", "apertus"}},
      {"Apriel-1.6-15b-Thinker-fixed", {"hunyuan_a13b", "apriel"}},
      {"Bielik-11B-v3.0-Instruct", {"hermes", "think"}},
      {"Cohere2MoE", {"cohere_command3", "cohere_command3"}},
      {"CohereForAI-c4ai-command-r7b-12-2024-tool_use", {"cohere_command3", "cohere_command3"}},
      {"GLM-4.7-Flash", {"glm45", "glm45"}},
      {"GigaChat3-10B-A1.8B", {"gigachat3", ""}},
      {"GigaChat3.1-10B-A1.8B", {"gigachat3", ""}},
      {"HuggingFaceTB-SmolLM3-3B", {"", "think"}},
      {"Kimi-K2-Instruct", {"kimi_k2", ""}},
      {"Kimi-K3", {"kimi_k3", "kimi_k3"}},
      {"LFM2-8B-A1B", {"lfm2", ""}},
      {"LFM2.5-8B-A1B", {"lfm2", "think"}},
      {"MiMo-VL", {"hermes", ""}},
      {"MiniMax-M1", {"minimax", ""}},
      {"MiniMax-M2", {"minimax_m2", "minimax_m2"}},
      {"MiniMax-M3", {"minimax_m3", "minimax_m3"}},
      {"NVIDIA-Nemotron-Nano-v2", {"nemotron_json", "think"}},
      {"NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", {"hermes", ""}},
      {"Qwen-Qwen3-0.6B", {"hermes", "qwen3"}},
      {"Qwen3-Coder", {"qwen3_coder", ""}},
      {"Qwen3.5-4B", {"qwen3_coder", "qwen3"}},
      {"Reka-Edge", {"hermes", "think"}},
      {"StepFun3.5-Flash", {"qwen3_coder", "think"}},
      {"deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", {"deepseek_v3", "deepseek_v3"}},
      {"deepseek-ai-DeepSeek-V3.1", {"deepseek_v31", "deepseek_v3"}},
      {"deepseek-ai-DeepSeek-V3.2", {"deepseek_v32", "deepseek_v3"}},
      {"deepseek-ai-DeepSeek-V4", {"deepseek_v4", "deepseek_v3"}},
      {"fireworks-ai-llama-3-firefunction-v2", {"phi4_mini_json", ""}},
      {"google-gemma-4-31B-it-interleaved", {"gemma4", "gemma4"}},
      {"google-gemma-4-31B-it", {"gemma4", "gemma4"}},
      {"ibm-granite-granite-3.3-2B-Instruct", {"granite", "think"}},
      {"ibm-granite-granite-4.1", {"granite4", ""}},
      {"inclusionai-ling-3.0-flash", {"glm45", "think"}},
      {"llama-cpp-deepseek-r1", {"deepseek_v3", "think"}},
      {"llama-cpp-rwkv-world", {"", "qwen3"}},
      {"meetkai-functionary-medium-v3.1", {"functionary_v3_1", ""}},
      {"meta-llama-Llama-3.1-8B-Instruct", {"llama3_json", ""}},
      {"meta-llama-Llama-3.2-3B-Instruct", {"llama3_json", ""}},
      {"meta-llama-Llama-3.3-70B-Instruct", {"llama3_json", ""}},
      {"mistralai-Ministral-3-14B-Reasoning-2512", {"mistral", "mistral"}},
      {"mistralai-Mistral-Nemo-Instruct-2407", {"mistral_v3", ""}},
      {"moonshotai-Kimi-K2", {"kimi_k2", ""}},
      {"openai-gpt-oss-120b", {"openai", "openai_gptoss"}},
      {"openbmb-MiniCPM5-1B", {"minicpm5", "think"}},
      {"poolside-Laguna-S-2.1", {"glm45", "think"}},
      {"poolside-Laguna-XS-2.1", {"glm45", "think"}},
      {"poolside-Laguna-XS.2", {"glm45", "think"}},
      {"unsloth-Apriel-1.5", {"hunyuan_a13b", "apriel"}},
      {"upstage-Solar-Open-100B", {"solar_open", "solar_open"}},
      {"qwen3_reranker", {"", "think"}},
      {"template_minicpmv45", {"hermes", "qwen3"}},
      {"tool_chat_template_apertus", {"apertus", "apertus"}},
      {"tool_chat_template_deepseekr1", {"deepseek_v3", "deepseek_r1"}},
      {"tool_chat_template_deepseekv3", {"deepseek_v3", ""}},
      {"tool_chat_template_deepseekv31", {"deepseek_v31", "deepseek_v3"}},
      {"tool_chat_template_functiongemma", {"functiongemma", ""}},
      {"tool_chat_template_gemma4", {"gemma4", "gemma4"}},
      {"tool_chat_template_granite", {"granite", ""}},
      {"tool_chat_template_hunyuan_a13b", {"hunyuan_a13b", "hunyuan_a13b"}},
      {"tool_chat_template_internlm2_tool", {"internlm", ""}},
      {"tool_chat_template_llama3.2_json", {"llama3_json", ""}},
      {"tool_chat_template_llama3.2_pythonic", {"pythonic", ""}},
      {"tool_chat_template_llama4_json", {"llama3_json", ""}},
      {"tool_chat_template_llama4_pythonic", {"pythonic", ""}},
      {"tool_chat_template_mistral", {"mistral_v3", ""}},
      {"tool_chat_template_mistral3", {"mistral_v3", ""}},
      {"tool_chat_template_mistral_parallel", {"mistral_v3", ""}},
      {"tool_chat_template_muse_glimmer", {"muse_glimmer", "muse_glimmer"}},
      {"tool_chat_template_phi4_mini", {"phi4_mini_json", ""}},
      {"tool_chat_template_qwen3coder", {"qwen3_coder", ""}},
      {"tool_chat_template_toolace", {"pythonic", ""}},
      {"tool_chat_template_xlam_llama", {"xlam", ""}},
      {"tool_chat_template_xlam_qwen", {"xlam", ""}},
  };
  return expected;
}

TEST(Formats, TemplatesChooseTheirParsers) {
  namespace fs = std::filesystem;
  const char* shared = std::getenv("QUIRE_SHARED");
  const fs::path data = shared != nullptr ? fs::path(shared) : fs::path(QUIRE_SOURCE_DIR).parent_path() / "shared";
  const fs::path root = data / "data" / "chat-templates";
  if (!fs::exists(root)) GTEST_SKIP() << "The shared chat templates are not here.";
  std::set<std::string> seen;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (entry.path().extension() != ".jinja") continue;
    std::stringstream source;
    source << std::ifstream(entry.path()).rdbuf();
    const Dialect dialect = choose_dialect("auto", "auto", source.str()).value();
    const std::string stem = entry.path().stem().string();
    seen.insert(stem);
    const auto& all = expected_of_templates();
    const auto expected = all.contains(stem) ? all.at(stem) : std::pair<std::string, std::string>();
    EXPECT_EQ(dialect.tools == nullptr ? "" : name(*dialect.tools), expected.first) << stem;
    EXPECT_EQ(dialect.reasoning == nullptr ? "" : name(*dialect.reasoning), expected.second) << stem;
  }
  for (const auto& [stem, row] : expected_of_templates()) EXPECT_TRUE(seen.contains(stem)) << stem;
}

TEST(Formats, MistralIsWrittenAsItsTemplateShows) {
  EXPECT_EQ(name(*choose_dialect("mistral", "none", "[TOOL_CALLS] [").value().tools), "mistral_v3");
  EXPECT_EQ(name(*choose_dialect("mistral", "none", "[TOOL_CALLS]f[ARGS]").value().tools), "mistral");
  EXPECT_EQ(name(*choose_dialect("mistral", "none", "").value().tools), "mistral");
}

TEST(Reasoning, StartsWhereThePromptSays) {
  const auto starts = [](std::string_view parser, std::string_view prompt, std::string_view kwargs = "{}") {
    return starts_in_reasoning(testing::dialect_of("none", parser), prompt, json::parse(kwargs).value());
  };
  EXPECT_TRUE(starts("qwen3", "<|im_start|>assistant\n<think>\n"));
  EXPECT_FALSE(starts("qwen3", "<|im_start|>assistant\n<think>\n\n</think>\n\n"));
  // The markers of an earlier turn say nothing; then the parser's default counts.
  EXPECT_TRUE(starts("qwen3", "<think>a</think>b<|im_end|>\n<|im_start|>assistant\n"));
  EXPECT_FALSE(starts("qwen3", "<|im_start|>assistant\n", R"({"enable_thinking": false})"));
  EXPECT_FALSE(starts("think", "<|im_start|>assistant\n"));
  EXPECT_TRUE(starts("deepseek_r1", "<｜Assistant｜>"));
  EXPECT_FALSE(starts("deepseek_v3", "<｜Assistant｜>"));
  EXPECT_TRUE(starts("deepseek_v3", "<｜Assistant｜>", R"({"thinking": true})"));
  EXPECT_FALSE(starts("deepseek_v3", "<｜Assistant｜></think>"));
  EXPECT_TRUE(starts("glm45", "<|assistant|><think>"));
  EXPECT_FALSE(starts("gemma4", "<|turn>model\n<|channel>thought\n<channel|>"));
  EXPECT_TRUE(starts("gemma4", "<|turn>model\n<|channel>thought\n"));
  EXPECT_TRUE(starts("cohere_command3", "<|CHATBOT_TOKEN|><|START_THINKING|>"));
  EXPECT_FALSE(starts("cohere_command3", "<|CHATBOT_TOKEN|><|START_THINKING|><|END_THINKING|>"));
  EXPECT_FALSE(starts("openai_gptoss", "<|start|>assistant"));
  EXPECT_FALSE(starts_in_reasoning(Dialect{}, "<think>", json::Value()));
}

TEST(Reasoning, MarkersOfADialect) {
  const Dialect dialect = testing::dialect_of("hermes", "qwen3");
  EXPECT_EQ(reasoning_ends(dialect), std::vector<std::string>{"</think>"});
  EXPECT_EQ(reasoning_starts(dialect), std::vector<std::string>{"<think>"});
  EXPECT_EQ(implicit_reasoning_ends(dialect), std::vector<std::string>{"<tool_call>"});
  EXPECT_TRUE(reasoning_ends(Dialect{}).empty());
}

}  // namespace
}  // namespace quire::markup
