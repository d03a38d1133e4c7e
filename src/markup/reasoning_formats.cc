// SPDX-License-Identifier: Apache-2.0
// The table of reasoning markups.
#include <algorithm>

#include "markup/formats.h"

namespace quire::markup {
namespace {

ReasoningFormat think(std::string_view name, Texts aliases, ReasoningDefault fallback) {
  ReasoningFormat format;
  format.name = name;
  format.aliases = std::move(aliases);
  format.starts = {"<think>"};
  format.ends = {"</think>"};
  format.fallback = fallback;
  return format;
}

ReasoningFormat marked(std::string_view name, Texts aliases, std::string_view start, std::string_view end) {
  ReasoningFormat format;
  format.name = name;
  format.aliases = std::move(aliases);
  format.starts = {start};
  format.ends = {end};
  return format;
}

void add_think_rows(std::vector<ReasoningFormat>& rows) {
  rows.push_back(think("deepseek_r1", {"olmo3", "step3"}, ReasoningDefault::kOn));
  rows.push_back(think("deepseek_v3", {"deepseek_v31", "deepseek_v32", "deepseek_v4"}, ReasoningDefault::kAsked));
  rows.push_back(think("holo2", {}, ReasoningDefault::kUnless));
  rows.push_back(think("qwen3", {}, ReasoningDefault::kUnless));
  rows.back().keep_blanks = true;
  rows.push_back(
      think("mimo", {"nemotron_v3", "granite_thinking_parser", "step3p5", "minicpmv"}, ReasoningDefault::kUnless));
  rows.push_back(think("glm45", {"glm47", "kimi_k2", "ling3"}, ReasoningDefault::kUnless));
  // The start marker is always in the prompt or written by the model.
  rows.push_back(think("think", {"poolside_v1", "hy_v3", "hy_v4", "granite33", "lfm2"}, ReasoningDefault::kOff));
  rows.back().wrappers = {"<response>", "</response>"};
  rows.push_back(think("minimax_m2", {}, ReasoningDefault::kOn));
  rows.push_back(think("minimax_m2_append_think", {}, ReasoningDefault::kOn));
  rows.back().append_to_content = true;
  rows.push_back(think("hunyuan_a13b", {}, ReasoningDefault::kOff));
  rows.back().wrappers = {"<answer>", "</answer>"};
  rows.push_back(think("ernie45", {}, ReasoningDefault::kOn));
  rows.back().wrappers = {"<response>", "</response>"};
}

void add_marked_rows(std::vector<ReasoningFormat>& rows) {
  rows.push_back(marked("minimax_m3", {}, "<mm:think>", "</mm:think>"));
  rows.push_back(marked("seed_oss", {}, "<seed:think>", "</seed:think>"));
  rows.back().fallback = ReasoningDefault::kOn;
  rows.push_back(marked("gemma4", {}, "<|channel>thought\n", "<channel|>"));
  rows.back().anywhere = true;
  rows.push_back(marked("mistral", {}, "[THINK]", "[/THINK]"));
  rows.back().anywhere = true;
  rows.push_back(marked("cohere_command3", {"cohere_command4"}, "<|START_THINKING|>", "<|END_THINKING|>"));
  rows.back().wrappers = {"<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>",
                          "<|END_OF_TURN_TOKEN|>"};
  rows.push_back(marked("granite", {}, "Here is my thought process:", "Here is my response:"));
  rows.back().starts.push_back("Here's my thought process:");
  rows.back().ends.push_back("Here's my response:");
  rows.push_back(marked("kimi_k3", {}, "<|open|>think<|sep|>", "<|close|>think<|sep|>"));
  rows.back().anywhere = true;
  rows.back().wrappers = {"<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>",
                          "<|end_of_msg|>"};
  rows.push_back(marked("apertus", {}, "<|inner_prefix|>", "<|inner_suffix|>"));
  rows.back().anywhere = true;
  rows.push_back(marked("k2_horizon", {}, "<ifm|think>", "</ifm|think>"));
  rows.back().starts = {"<ifm|think>", "<ifm|think_fast>", "<ifm|think_faster>"};
  rows.back().ends = {"</ifm|think>", "</ifm|think_fast>", "</ifm|think_faster>"};
  rows.push_back(marked("solar_open", {}, "<|think|>", "<|end|>"));
  rows.back().wrappers = {"<|begin|>assistant", "<|content|>", "<|flush|>"};
  rows.push_back(marked("muse_glimmer", {}, " to=self<|message|>", "<|eom|>"));
  rows.back().anywhere = true;
  rows.back().wrappers = {"<|start|>assistant", " to=user<|message|>", "<|message|>", "<|eot|>"};
  rows.back().header = " to=";
  rows.back().header_end = "<|message|>";
  rows.push_back(marked("apriel", {}, "<thinking>", "[BEGIN FINAL RESPONSE]"));
  rows.back().ends.push_back("</thinking>");
  rows.back().fallback = ReasoningDefault::kOn;
  rows.back().wrappers = {"[BEGIN FINAL RESPONSE]", "[END FINAL RESPONSE]"};
  ReasoningFormat harmony;
  harmony.name = "openai_gptoss";
  harmony.aliases = {"gpt_oss", "harmony"};
  harmony.starts = {"<|channel|>analysis<|message|>"};
  harmony.ends = {"<|end|><|start|>assistant<|channel|>final<|message|>"};
  harmony.harmony = true;
  rows.push_back(harmony);
}

std::vector<ReasoningFormat> make_reasoning_rows() {
  std::vector<ReasoningFormat> rows;
  add_think_rows(rows);
  add_marked_rows(rows);
  return rows;
}

}  // namespace

std::span<const ReasoningFormat> reasoning_formats() {
  static const std::vector<ReasoningFormat> rows = make_reasoning_rows();
  return rows;
}

const ReasoningFormat* find_reasoning_format(std::string_view name) {
  for (const ReasoningFormat& row : reasoning_formats()) {
    if (row.name == name || std::find(row.aliases.begin(), row.aliases.end(), name) != row.aliases.end()) return &row;
  }
  return nullptr;
}

}  // namespace quire::markup
