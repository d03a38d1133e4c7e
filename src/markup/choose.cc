// SPDX-License-Identifier: Apache-2.0
// Chooses the markup of a model: by name, or by the texts that only one family's chat template contains.
#include <algorithm>
#include <string>

#include "base/suggest.h"
#include "markup/formats.h"
#include "markup/markup.h"

namespace quire::markup {
namespace {

// A template with all of `all` and none of `without` belongs to the row.
struct Needle {
  std::string_view row;
  Texts all;
  Texts without = {};
};

// The first rule that fits decides, so that particular texts come before those that many families share.
const std::vector<Needle>& tool_needles() {
  static const std::vector<Needle> needles = {
      {"openai", {"<|channel|>", "<|message|>"}},
      {"muse_glimmer", {"<atem:function_calls>"}},
      {"kimi_k3", {"<|open|>", "<|close|>", "<|sep|>"}},
      {"gemma4", {"<|tool_call>"}},
      {"functiongemma", {"<start_function_call>"}},
      {"deepseek_v32", {"｜DSML｜", "function_calls>"}},
      {"deepseek_v4", {"｜DSML｜", "tool_calls>"}},
      {"deepseek_v41", {"｜DSML｜", " calls>"}},
      {"minimax_m3", {"]<]minimax[>["}},
      {"minimax_m2", {"<minimax:tool_call>"}},
      {"seed_oss", {"<seed:tool_call>"}},
      {"longcat", {"<longcat_tool_call>"}},
      {"dots", {"<dots_function_call>"}},
      {"inkling", {"<|content_invoke_tool_json|>"}},
      {"kimi_k2", {"<|tool_call_begin|>"}},
      {"step3", {"steptml:"}},
      {"deepseek_v3", {"<｜tool▁calls▁begin｜>", "```json"}},
      {"deepseek_v31", {"<｜tool▁calls▁begin｜>"}},
      {"xlam", {"tool_call_name", "additional parallel tool calls"}},
      {"mistral", {"[TOOL_CALLS]", "[ARGS]"}},
      {"mistral_v3", {"[TOOL_CALLS]"}},
      {"lfm2", {"<|tool_call_start|>"}},
      {"lfm2", {"<|tool_list_start|>"}},
      {"apertus", {"<|tools_prefix|>"}},
      {"cohere_command3", {"<|START_ACTION|>"}},
      {"internlm", {"<|action_start|>"}},
      {"nemotron_json", {"<TOOLCALL>"}},
      {"solar_open", {"<|tool_call:begin|>"}},
      {"gigachat3", {"<|function_call|>"}},
      {"gigachat3", {"function call", "<|role_sep|>"}},
      {"olmo3", {"<function_calls>"}},
      {"minicpm5", {"<function name=", "<param name="}},
      {"qwen3_coder", {"<function=", "<parameter="}},
      {"functionary_v3_1", {"<function="}},
      {"hy_v3", {"<arg_key>", "<tool_calls>", "<tool_sep>"}},
      {"hy_v4", {"<arg_key>", "<tool_calls>"}},
      {"glm45", {"<arg_key>"}},
      {"phi4_mini_json", {"functools"}},
      {"granite", {"<|tool_call|>"}},
      {"granite-20b-fc", {"<function_call>"}},
      {"minimax", {"<tool_calls>\\n{"}},
      {"hunyuan_a13b", {"<tool_calls>"}},
      {"granite4", {"<tool_call>", "<|start_of_role|>"}},
      {"hermes", {"<tool_call>"}},
      {"pythonic", {"python list of the calls"}},
      {"pythonic", {"[func_name1("}},
      {"llama3_json", {"<|python_tag|>"}},
      {"llama3_json", {"{\"name\": function name, \"parameters\": "}},
  };
  return needles;
}

const std::vector<Needle>& reasoning_needles() {
  static const std::vector<Needle> needles = {
      {"openai_gptoss", {"<|channel|>", "<|message|>"}},
      {"muse_glimmer", {"to=self<|message|>"}},
      {"kimi_k3", {"<|open|>", "<|close|>", "<|sep|>"}},
      {"gemma4", {"<|channel>"}},
      {"minimax_m3", {"<mm:think>"}},
      {"seed_oss", {"<seed:think>"}},
      {"mistral", {"[THINK]"}},
      {"cohere_command3", {"<|START_THINKING|>"}},
      {"apertus", {"<|inner_prefix|>"}},
      {"k2_horizon", {"<ifm|think>"}},
      {"solar_open", {"<|begin|>", "<|think|>"}},
      {"apriel", {"[BEGIN FINAL RESPONSE]"}},
      {"granite", {"Here is my thought process:"}},
      {"granite", {"Here's my thought process:"}},
      {"hunyuan_a13b", {"<think>", "<answer>"}},
      {"hunyuan_a13b", {"<think>", "<|startoftext|>"}},
      {"deepseek_v3", {"<think>", "｜DSML｜"}},
      {"deepseek_v3", {"<think>", "<｜tool▁calls▁begin｜>", "thinking"}},
      {"glm45", {"<think>", "<arg_key>", "<|assistant|>"}},
      {"minimax_m2", {"<think>", "<minimax:tool_call>"}},
      {"qwen3", {"<think>", "enable_thinking is defined and enable_thinking is false"}},
      {"think", {"<think>"}},
      {"deepseek_r1", {"</think>"}},
  };
  return needles;
}

bool has(std::string_view text, std::string_view needle) {
  return text.find(needle) != std::string_view::npos;
}

std::string_view first_match(const std::vector<Needle>& needles, std::string_view source) {
  for (const Needle& needle : needles) {
    const auto in_source = [&](std::string_view text) { return has(source, text); };
    if (std::all_of(needle.all.begin(), needle.all.end(), in_source) &&
        std::none_of(needle.without.begin(), needle.without.end(), in_source)) {
      return needle.row;
    }
  }
  return {};
}

template <typename Row>
std::vector<std::string_view> names_of(std::span<const Row> rows) {
  std::vector<std::string_view> names;
  for (const Row& row : rows) {
    names.push_back(row.name);
    names.insert(names.end(), row.aliases.begin(), row.aliases.end());
  }
  std::sort(names.begin(), names.end());
  return names;
}

Failure unknown_parser(std::string_view flag, std::string_view name, const std::vector<std::string_view>& names) {
  std::vector<std::string> known(names.begin(), names.end());
  std::string list;
  for (const std::string& one : known) list += (list.empty() ? "" : ", ") + one;
  std::string message = std::string(flag) + " '" + std::string(name) + "' is not known";
  message += did_you_mean(name, known) + ". Use auto, none, or one of: " + list + ".";
  return invalid_argument(std::move(message));
}

}  // namespace

std::vector<std::string_view> tool_parser_names() {
  return names_of(tool_formats());
}

std::vector<std::string_view> reasoning_parser_names() {
  return names_of(reasoning_formats());
}

const ToolFormat* tool_format_of_template(std::string_view source) {
  // A template that never mentions tools has none, whatever else it says.
  if (!has(source, "tool")) return nullptr;
  const std::string_view row = first_match(tool_needles(), source);
  return row.empty() ? nullptr : find_tool_format(row);
}

const ReasoningFormat* reasoning_format_of_template(std::string_view source) {
  // A template that renders a conversation mentions its messages; others (of rerankers) have no reasoning.
  const std::string_view row = first_match(reasoning_needles(), source);
  return row.empty() ? nullptr : find_reasoning_format(row);
}

Result<Dialect> choose_dialect(std::string_view tool_parser, std::string_view reasoning_parser,
                               std::string_view template_source) {
  Dialect dialect;
  if (tool_parser == "auto" || tool_parser.empty()) {
    dialect.tools = tool_format_of_template(template_source);
  } else if (tool_parser != "none") {
    dialect.tools = find_tool_format(tool_parser);
    if (dialect.tools == nullptr) return unknown_parser("--tool-call-parser", tool_parser, tool_parser_names());
    // Mistral's older models have no [ARGS]: calls must be written the way the template shows them.
    if (tool_parser == "mistral" && has(template_source, "[TOOL_CALLS]") && !has(template_source, "[ARGS]")) {
      dialect.tools = find_tool_format("mistral_v3");
    }
  }
  if (reasoning_parser == "auto" || reasoning_parser.empty()) {
    dialect.reasoning = reasoning_format_of_template(template_source);
    // Channels carry calls and reasoning alike.
    if (dialect.tools != nullptr && dialect.tools->encoding == Encoding::kHarmony) {
      dialect.reasoning = find_reasoning_format("openai_gptoss");
    }
  } else if (reasoning_parser != "none") {
    dialect.reasoning = find_reasoning_format(reasoning_parser);
    if (dialect.reasoning == nullptr) {
      return unknown_parser("--reasoning-parser", reasoning_parser, reasoning_parser_names());
    }
  }
  return dialect;
}

std::string_view name(const ToolFormat& format) {
  return format.name;
}

std::string_view name(const ReasoningFormat& format) {
  return format.name;
}

namespace {

// Where the last of `texts` in `prompt` begins; -1 if there is none.
int64_t last_of(std::string_view prompt, const Texts& texts) {
  int64_t last = -1;
  for (const std::string_view text : texts) {
    const size_t at = prompt.rfind(text);
    if (at != std::string_view::npos) last = std::max(last, static_cast<int64_t>(at));
  }
  return last;
}

// Whether the template's arguments say that the model shall think; nothing if they do not say.
std::optional<bool> asked_to_think(const json::Value& kwargs) {
  for (const std::string_view key : {"enable_thinking", "thinking"}) {
    const json::Value* value = kwargs.find(key);
    if (value != nullptr && value->is_bool()) return value->as_bool();
  }
  return std::nullopt;
}

// Texts that begin or end a turn: what stands before the last of them says nothing about this answer.
const Texts& turn_boundaries() {
  static const Texts texts = {
      "<|im_start|>",
      "<|im_end|>",
      "<|user|>",
      "<|observation|>",
      "<|system|>",
      "<|turn>",
      "<turn|>",
      "<|eot_id|>",
      "<|end|>",
      "<|end_of_text|>",
      "<｜User｜>",
      "<|start_header_id|>",
      "<|start_of_role|>",
      "<start_of_turn>",
      "[/INST]",
      "<|role_end|>",
      "<|user_end|>",
      "<|end_of_msg|>",
      "<｜end▁of▁sentence｜>",
      "<|END_OF_TURN_TOKEN|>",
      "<|assistant|>",
      "<|assistant_start|>",
      "<｜Assistant｜>",
      "]~b]",
  };
  return texts;
}

}  // namespace

bool starts_in_reasoning(const Dialect& dialect, std::string_view prompt, const json::Value& template_kwargs) {
  if (dialect.reasoning == nullptr || dialect.reasoning->harmony) return false;
  const ReasoningFormat& format = *dialect.reasoning;
  const int64_t start = last_of(prompt, format.starts);
  const int64_t end = last_of(prompt, format.ends);
  const int64_t boundary = last_of(prompt, turn_boundaries());
  if (std::max(start, end) > boundary) return start > end;
  const std::optional<bool> asked = asked_to_think(template_kwargs);
  switch (format.fallback) {
    case ReasoningDefault::kOff:
      return false;
    case ReasoningDefault::kOn:
      return true;
    case ReasoningDefault::kAsked:
      return asked.value_or(false);
    case ReasoningDefault::kUnless:
      return asked.value_or(true);
  }
  return false;
}

std::vector<std::string> reasoning_ends(const Dialect& dialect) {
  if (dialect.reasoning == nullptr) return {};
  return {dialect.reasoning->ends.begin(), dialect.reasoning->ends.end()};
}

std::vector<std::string> reasoning_starts(const Dialect& dialect) {
  if (dialect.reasoning == nullptr) return {};
  return {dialect.reasoning->starts.begin(), dialect.reasoning->starts.end()};
}

std::vector<std::string> implicit_reasoning_ends(const Dialect& dialect) {
  if (dialect.reasoning == nullptr || dialect.tools == nullptr || !dialect.tools->ends_reasoning ||
      dialect.reasoning->harmony) {
    return {};
  }
  std::vector<std::string> markers(dialect.tools->begins.begin(), dialect.tools->begins.end());
  if (!dialect.tools->open.empty()) markers.emplace_back(dialect.tools->open);
  return markers;
}

}  // namespace quire::markup
