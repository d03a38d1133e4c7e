// SPDX-License-Identifier: Apache-2.0
// The table of tool call markups.
#include <algorithm>

#include "markup/formats.h"

namespace quire::markup {
namespace {

// <tool_call>{"name": ..., "arguments": ...}</tool_call> with other words for the markers.
ToolFormat json_block(std::string_view name, Texts aliases, std::string_view begin, std::string_view end,
                      std::string_view write_begin, std::string_view write_end) {
  ToolFormat format;
  format.name = name;
  format.aliases = std::move(aliases);
  format.begins = {begin};
  format.ends = {end};
  format.write_begin = write_begin;
  format.write_end = write_end;
  return format;
}

// A marker, an array of JSON objects and, if `end` is not empty, an end marker.
ToolFormat json_array(std::string_view name, Texts aliases, Texts begins, std::string_view end) {
  ToolFormat format;
  format.name = name;
  format.aliases = std::move(aliases);
  format.begins = std::move(begins);
  if (!end.empty()) format.ends = {end};
  format.json.written = "[]";
  format.write_section_begin = format.begins.empty() ? std::string_view{} : format.begins.front();
  format.write_section_end = end;
  format.write_begin = R"({"name": "NAME", "arguments": )";
  format.write_end = "}";
  format.write_separator = ", ";
  return format;
}

void add_json_rows(std::vector<ToolFormat>& rows) {
  rows.push_back(json_block("hermes", {"qwen3_json", "ernie45", "ernie_45"}, "<tool_call>", "</tool_call>",
                            "<tool_call>\n{\"name\": \"NAME\", \"arguments\": ", "}\n</tool_call>"));
  rows.back().write_separator = "\n";
  rows.back().guesses = {"```json", "<tools>"};
  rows.back().guess_ends = {"```", "</tools>"};
  rows.push_back(json_block("granite4", {}, "<tool_call>", "</tool_call>",
                            "<tool_call>\n{\"name\": \"NAME\", \"arguments\": ", "}\n</tool_call>"));
  rows.back().write_separator = "\n";
  rows.back().keep_tail = true;
  rows.push_back(json_block("longcat", {}, "<longcat_tool_call>", "</longcat_tool_call>",
                            "<longcat_tool_call>\n{\"name\": \"NAME\", \"arguments\": ", "}\n</longcat_tool_call>"));
  rows.back().write_separator = "\n";
  rows.push_back(json_block("granite-20b-fc", {"granite_20b_fc"}, "<function_call>", "</function_call>",
                            "<function_call> {\"name\": \"NAME\", \"arguments\": ", "}"));
  rows.push_back(json_block("internlm", {"internlm2"}, "<|action_start|><|plugin|>", "<|action_end|>",
                            "<|action_start|><|plugin|>\n{\"name\": \"NAME\", \"parameters\": ", "}<|action_end|>"));
  rows.back().begins = {"<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"};
  rows.back().keep_tail = true;
  rows.push_back(json_block("inkling", {}, "<|content_invoke_tool_json|>", "<|end_message|>",
                            "<|content_invoke_tool_json|>{\"name\": \"NAME\", \"args\": ", "}<|end_message|>"));
  rows.back().json.arguments = {"args", "arguments", "parameters"};
  rows.push_back(json_block("gigachat3", {}, "<|function_call|>", "<|message_sep|>",
                            "<|function_call|>{\"name\": \"NAME\", \"arguments\": ", "}"));
  rows.back().begins = {"<|function_call|>", "function call<|role_sep|>",
                        "<|message_sep|>\n\nfunction call<|role_sep|>"};
  rows.push_back(json_block("minimax", {"minimax_m1"}, "<tool_calls>", "</tool_calls>",
                            "{\"name\": \"NAME\", \"arguments\": ", "}\n"));
  rows.back().write_section_begin = "<tool_calls>\n";
  rows.back().write_section_end = "</tool_calls>";
  ToolFormat llama = json_block("llama3_json", {"llama4_json", "llama"}, "<|python_tag|>", "<|eom_id|>",
                                "{\"name\": \"NAME\", \"parameters\": ", "}");
  llama.bare = "{";
  llama.write_separator = "; ";
  rows.push_back(llama);
}

void add_array_rows(std::vector<ToolFormat>& rows) {
  rows.push_back(json_array("granite", {}, {"<|tool_call|>", "<tool_call>"}, ""));
  rows.back().ends = {"</tool_call>"};
  rows.back().keep_tail = true;
  rows.push_back(json_array("phi4_mini_json", {"phi4", "firefunction"}, {"functools"}, ""));
  rows.back().ends_reasoning = false;
  rows.push_back(json_array("hunyuan_a13b", {"jamba"}, {"<tool_calls>"}, "</tool_calls>"));
  rows.push_back(json_array("nemotron_json", {"nemotron_nano_v2"}, {"<TOOLCALL>"}, "</TOOLCALL>"));
  rows.push_back(json_array("apertus", {}, {"<|tools_prefix|>"}, "<|tools_suffix|>"));
  rows.back().json.name_is_key = true;
  rows.back().write_begin = R"({"NAME": )";
  rows.push_back(
      json_array("cohere_command3", {"cohere_command4", "cohere2_moe"}, {"<|START_ACTION|>"}, "<|END_ACTION|>"));
  rows.back().json.names = {"tool_name", "name"};
  rows.back().write_begin = R"({"tool_call_id": "INDEX", "tool_name": "NAME", "parameters": )";
  ToolFormat xlam = json_array("xlam", {}, {"[TOOL_CALLS]", "<tool_call>", "```json"}, "");
  xlam.ends = {"```", "</tool_call>", "[/TOOL_CALLS]"};
  xlam.bare = "[{";
  xlam.ends_reasoning = false;
  xlam.write_section_begin = {};
  rows.push_back(xlam);
}

void add_keyed_rows(std::vector<ToolFormat>& rows) {
  ToolFormat mistral;
  mistral.name = "mistral";
  mistral.encoding = Encoding::kKeyed;
  mistral.open = "[TOOL_CALLS]";
  mistral.keyed = {KeyedCalls::Header::kMistral, "[CALL_ID]", {"[ARGS]"}, true};
  mistral.write_begin = "[TOOL_CALLS]NAME[ARGS]";
  rows.push_back(mistral);
  // The form before [ARGS] existed; the same reader takes both, and only what is written differs.
  mistral.name = "mistral_v3";
  mistral.write_section_begin = "[TOOL_CALLS] [";
  mistral.write_section_end = "]";
  mistral.write_begin = R"({"name": "NAME", "arguments": )";
  mistral.write_end = "}";
  mistral.write_separator = ", ";
  rows.push_back(mistral);

  ToolFormat deepseek;
  deepseek.name = "deepseek_v3";
  deepseek.aliases = {"deepseek_r1"};
  deepseek.encoding = Encoding::kKeyed;
  deepseek.begins = {"<｜tool▁calls▁begin｜>", "<｜tool_calls_begin｜>"};
  deepseek.ends = {"<｜tool▁calls▁end｜>", "<｜tool_calls_end｜>"};
  deepseek.open = "<｜tool▁call▁begin｜>";
  deepseek.close = "<｜tool▁call▁end｜>";
  deepseek.keyed = {KeyedCalls::Header::kTyped, "<｜tool▁sep｜>", {"\n```json\n", "\n```\n"}, true};
  deepseek.write_section_begin = "<｜tool▁calls▁begin｜>";
  deepseek.write_section_end = "<｜tool▁calls▁end｜>";
  deepseek.write_begin = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n";
  deepseek.write_end = "\n```<｜tool▁call▁end｜>";
  deepseek.write_separator = "\n";
  rows.push_back(deepseek);
  deepseek.name = "deepseek_v31";
  deepseek.aliases = {"deepseek_v3_1"};
  deepseek.keyed = {KeyedCalls::Header::kName, {}, {"<｜tool▁sep｜>"}, true};
  deepseek.write_begin = "<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>";
  deepseek.write_end = "<｜tool▁call▁end｜>";
  deepseek.write_separator = {};
  rows.push_back(deepseek);

  ToolFormat kimi;
  kimi.name = "kimi_k2";
  kimi.encoding = Encoding::kKeyed;
  kimi.begins = {"<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"};
  kimi.ends = {"<|tool_calls_section_end|>", "<|tool_call_section_end|>"};
  kimi.open = "<|tool_call_begin|>";
  kimi.close = "<|tool_call_end|>";
  kimi.keyed = {KeyedCalls::Header::kKimi, {}, {"<|tool_call_argument_begin|>"}, false};
  kimi.write_section_begin = "<|tool_calls_section_begin|>";
  kimi.write_section_end = "<|tool_calls_section_end|>";
  kimi.write_begin = "<|tool_call_begin|>functions.NAME:INDEX<|tool_call_argument_begin|>";
  kimi.write_end = "<|tool_call_end|>";
  rows.push_back(kimi);

  ToolFormat solar;
  solar.name = "solar_open";
  solar.encoding = Encoding::kKeyed;
  solar.begins = {"<|tool_calls|>"};
  solar.ends = {"<|calls|>"};
  solar.open = "<|tool_call:begin|>";
  solar.close = "<|tool_call:end|>";
  solar.keyed = {KeyedCalls::Header::kWithId, "<|tool_call:name|>", {"<|tool_call:args|>"}, false};
  solar.write_section_begin = "<|tool_calls|>";
  solar.write_begin = "<|tool_call:begin|>INDEX<|tool_call:name|>NAME<|tool_call:args|>";
  solar.write_end = "<|tool_call:end|>";
  rows.push_back(solar);

  ToolFormat functionary;
  functionary.name = "functionary_v3_1";
  functionary.encoding = Encoding::kKeyed;
  functionary.open = "<function=";
  functionary.close = "</function>";
  functionary.keyed = {KeyedCalls::Header::kName, {}, {">"}, false};
  functionary.write_begin = "<function=NAME>";
  functionary.write_end = "</function>";
  rows.push_back(functionary);

  ToolFormat harmony;
  harmony.name = "openai";
  harmony.aliases = {"gpt_oss", "harmony"};
  harmony.encoding = Encoding::kHarmony;
  harmony.write_begin = "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>";
  harmony.write_end = "<|call|>";
  rows.push_back(harmony);
}

void add_tagged_rows(std::vector<ToolFormat>& rows) {
  ToolFormat qwen;
  qwen.name = "qwen3_coder";
  qwen.aliases = {"qwen3_xml", "step3p5", "qwen_3_coder"};
  qwen.encoding = Encoding::kTagged;
  qwen.begins = {"<tool_call>"};
  qwen.ends = {"</tool_call>"};
  qwen.open = "<function=";
  qwen.close = "</function>";
  qwen.tagged.header_end = ">";
  qwen.tagged.param_open = "<parameter=";
  qwen.tagged.param_header_end = ">";
  qwen.tagged.value_close = "</parameter>";
  qwen.tagged.trim_newlines = true;
  qwen.tagged.lenient = true;
  qwen.tagged.style = "qwen_xml";
  qwen.write_begin = "<tool_call>\n<function=NAME>\n";
  qwen.write_end = "\n</function>\n</tool_call>";
  qwen.write_separator = "\n";
  rows.push_back(qwen);
  ToolFormat seed = qwen;
  qwen.name = "mimo";
  qwen.aliases = {};
  qwen.tagged.trim_newlines = false;
  qwen.tagged.style = {};
  qwen.tagged.write_param_begin = "<parameter=KEY>";
  qwen.tagged.write_param_end = "</parameter>\n";
  rows.push_back(qwen);
  seed.name = "seed_oss";
  seed.aliases = {};
  seed.begins = {"<seed:tool_call>"};
  seed.ends = {"</seed:tool_call>"};
  seed.write_begin = "<seed:tool_call>\n<function=NAME>\n";
  seed.write_end = "\n</function>\n</seed:tool_call>";
  rows.push_back(seed);

  ToolFormat glm;
  glm.name = "glm45";
  glm.aliases = {"glm47", "ling3", "glm4_moe", "glm_4_7", "poolside_v1"};
  glm.encoding = Encoding::kTagged;
  glm.open = "<tool_call>";
  glm.close = "</tool_call>";
  glm.check_names = true;
  glm.tagged.param_open = "<arg_key>";
  glm.tagged.param_header_end = "</arg_key>";
  glm.tagged.value_open = "<arg_value>";
  glm.tagged.value_close = "</arg_value>";
  glm.tagged.style = "glm_xml";
  glm.write_begin = "<tool_call>NAME\n";
  glm.write_end = "\n</tool_call>";
  glm.write_separator = "\n";
  rows.push_back(glm);
  ToolFormat hunyuan = glm;
  hunyuan.name = "hy_v3";
  hunyuan.aliases = {};
  hunyuan.begins = {"<tool_calls>"};
  hunyuan.ends = {"</tool_calls>"};
  hunyuan.skips = {};
  hunyuan.check_names = false;
  hunyuan.tagged.header_end = {};
  hunyuan.write_section_begin = "<tool_calls>";
  hunyuan.write_section_end = "</tool_calls>";
  hunyuan.write_begin = "<tool_call>NAME<tool_sep>";
  hunyuan.write_end = "</tool_call>";
  hunyuan.write_separator = {};
  rows.push_back(hunyuan);
  hunyuan.name = "hy_v4";
  hunyuan.write_begin = "<tool_call>NAME";
  rows.push_back(hunyuan);
}

// Rows whose calls are <invoke name="f"> with <parameter name="k"> in it.
void add_invoke_rows(std::vector<ToolFormat>& rows) {
  ToolFormat minimax;
  minimax.name = "minimax_m2";
  minimax.encoding = Encoding::kTagged;
  minimax.begins = {"<minimax:tool_call>"};
  minimax.ends = {"</minimax:tool_call>"};
  minimax.open = "<invoke";
  minimax.close = "</invoke>";
  minimax.check_names = true;
  minimax.tagged.attribute = "name";
  minimax.tagged.header_end = ">";
  minimax.tagged.param_open = "<parameter";
  minimax.tagged.param_attribute = "name";
  minimax.tagged.param_header_end = ">";
  minimax.tagged.value_close = "</parameter>";
  minimax.tagged.style = "minimax_xml";
  minimax.write_section_begin = "<minimax:tool_call>\n";
  minimax.write_section_end = "</minimax:tool_call>";
  minimax.write_begin = "<invoke name=\"NAME\">\n";
  minimax.write_end = "\n</invoke>\n";
  rows.push_back(minimax);

  ToolFormat dots = minimax;
  dots.name = "dots";
  dots.check_names = false;
  dots.begins = {"<dots_function_call>"};
  dots.ends = {"</dots_function_call>"};
  dots.tagged.json_body = true;
  dots.write_section_begin = "<dots_function_call>\n";
  dots.write_section_end = "</dots_function_call>";
  rows.push_back(dots);

  ToolFormat dsml = dots;
  dsml.name = "deepseek_v32";
  dsml.aliases = {"deepseek_v3_2"};
  dsml.begins = {"<｜DSML｜function_calls>"};
  dsml.ends = {"</｜DSML｜function_calls>"};
  dsml.open = "<｜DSML｜invoke";
  dsml.close = "</｜DSML｜invoke>";
  dsml.tagged.json_body = false;
  dsml.tagged.unwrap = true;
  dsml.tagged.type_attribute = "string";
  dsml.tagged.param_open = "<｜DSML｜parameter";
  dsml.tagged.value_close = "</｜DSML｜parameter>";
  dsml.tagged.style = "deepseek_xml";
  dsml.write_section_begin = "<｜DSML｜function_calls>\n";
  dsml.write_section_end = "</｜DSML｜function_calls>";
  dsml.write_begin = "<｜DSML｜invoke name=\"NAME\">\n";
  dsml.write_end = "\n</｜DSML｜invoke>\n";
  rows.push_back(dsml);
  dsml.name = "deepseek_v4";
  dsml.aliases = {};
  dsml.begins = {"<｜DSML｜tool_calls>"};
  dsml.ends = {"</｜DSML｜tool_calls>"};
  dsml.write_section_begin = "<｜DSML｜tool_calls>\n";
  dsml.write_section_end = "</｜DSML｜tool_calls>";
  rows.push_back(dsml);
  dsml.name = "deepseek_v41";
  dsml.aliases = {"deepseek_v4_1"};
  dsml.begins = {"<｜DSML｜ calls>"};
  dsml.ends = {"</｜DSML｜ calls>"};
  dsml.open = "<｜DSML｜ invoke";
  dsml.close = "</｜DSML｜ invoke>";
  dsml.tagged.param_open = "<｜DSML｜ parameter";
  dsml.tagged.value_close = "</｜DSML｜ parameter>";
  dsml.tagged.style = {};
  dsml.tagged.write_param_begin = "<｜DSML｜ parameter name=\"KEY\" string=\"RAW\">";
  dsml.tagged.write_param_end = "</｜DSML｜ parameter>\n";
  dsml.write_section_begin = "<｜DSML｜ calls>\n";
  dsml.write_section_end = "</｜DSML｜ calls>";
  dsml.write_begin = "<｜DSML｜ invoke name=\"NAME\">\n";
  dsml.write_end = "</｜DSML｜ invoke>\n";
  rows.push_back(dsml);
}

void add_other_tagged_rows(std::vector<ToolFormat>& rows) {
  ToolFormat step;
  step.name = "step3";
  step.encoding = Encoding::kTagged;
  step.begins = {"<｜tool_calls_begin｜>", "<｜tool▁calls▁begin｜>"};
  step.ends = {"<｜tool_calls_end｜>", "<｜tool▁calls▁end｜>"};
  step.skips = {
      "<｜tool_call_begin｜>", "<｜tool_sep｜>", "<｜tool_call_end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>",
      "<｜tool▁call▁end｜>",   "function"};
  step.open = "<steptml:invoke";
  step.close = "</steptml:invoke>";
  step.tagged.attribute = "name";
  step.tagged.header_end = ">";
  step.tagged.param_open = "<steptml:parameter";
  step.tagged.param_attribute = "name";
  step.tagged.param_header_end = ">";
  step.tagged.value_close = "</steptml:parameter>";
  step.tagged.write_param_begin = "<steptml:parameter name=\"KEY\">";
  step.tagged.write_param_end = "</steptml:parameter>";
  step.write_section_begin = "<｜tool_calls_begin｜>";
  step.write_section_end = "<｜tool_calls_end｜>";
  step.write_begin = "<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"NAME\">";
  step.write_end = "</steptml:invoke><｜tool_call_end｜>";
  rows.push_back(step);

  ToolFormat atem = step;
  atem.name = "muse_glimmer";
  atem.begins = {"<atem:function_calls>"};
  atem.ends = {"</atem:function_calls>"};
  atem.skips = {};
  atem.open = "<atem:invoke";
  atem.close = "</atem:invoke>";
  atem.tagged.param_open = "<atem:parameter";
  atem.tagged.value_close = "</atem:parameter>";
  atem.tagged.write_param_begin = "<atem:parameter name=\"KEY\">";
  atem.tagged.write_param_end = "</atem:parameter>\n";
  atem.write_section_begin = "<atem:function_calls>\n";
  atem.write_section_end = "</atem:function_calls>";
  atem.write_begin = "<atem:invoke name=\"NAME\">\n";
  atem.write_end = "</atem:invoke>\n";
  rows.push_back(atem);

  ToolFormat minicpm = step;
  minicpm.name = "minicpm5";
  minicpm.begins = {};
  minicpm.ends = {};
  minicpm.skips = {};
  minicpm.open = "<function name=";
  minicpm.close = "</function>";
  minicpm.tagged.attribute = {};
  minicpm.tagged.param_open = "<param name=";
  minicpm.tagged.param_attribute = {};
  minicpm.tagged.value_close = "</param>";
  minicpm.tagged.cdata = true;
  minicpm.tagged.write_param_begin = "<param name=\"KEY\">";
  minicpm.tagged.write_param_end = "</param>";
  minicpm.write_section_begin = {};
  minicpm.write_section_end = {};
  minicpm.write_begin = "<function name=\"NAME\">";
  minicpm.write_end = "</function>";
  rows.push_back(minicpm);

  ToolFormat kimi;
  kimi.name = "kimi_k3";
  kimi.encoding = Encoding::kTagged;
  kimi.begins = {"<|open|>tools<|sep|>"};
  kimi.ends = {"<|close|>tools<|sep|>"};
  kimi.open = "<|open|>call";
  kimi.close = "<|close|>call<|sep|>";
  kimi.tagged.attribute = "tool";
  kimi.tagged.header_end = "<|sep|>";
  kimi.tagged.param_open = "<|open|>argument";
  kimi.tagged.param_attribute = "key";
  kimi.tagged.param_header_end = "<|sep|>";
  kimi.tagged.value_close = "<|close|>argument<|sep|>";
  kimi.tagged.type_attribute = "type";
  kimi.tagged.write_param_begin = "<|open|>argument key=\"KEY\" type=\"TYPE\"<|sep|>";
  kimi.tagged.write_param_end = "<|close|>argument<|sep|>";
  kimi.write_section_begin = "<|open|>tools<|sep|>";
  kimi.write_section_end = "<|close|>tools<|sep|>";
  kimi.write_begin = "<|open|>call tool=\"NAME\" index=\"INDEX\"<|sep|>";
  kimi.write_end = "<|close|>call<|sep|>";
  rows.push_back(kimi);

  ToolFormat nested;
  nested.name = "minimax_m3";
  nested.encoding = Encoding::kNested;
  nested.begins = {"]<]minimax[>[<tool_call>"};
  nested.ends = {"]<]minimax[>[</tool_call>"};
  nested.open = "]<]minimax[>[<invoke";
  nested.close = "]<]minimax[>[</invoke>";
  nested.tagged.attribute = "name";
  nested.tagged.header_end = ">";
  nested.tagged.param_open = "]<]minimax[>[";
  nested.tagged.write_param_begin = "]<]minimax[>[<KEY>";
  nested.tagged.write_param_end = "]<]minimax[>[</KEY>";
  nested.write_section_begin = "]<]minimax[>[<tool_call>\n";
  nested.write_section_end = "]<]minimax[>[</tool_call>";
  nested.write_begin = "]<]minimax[>[<invoke name=\"NAME\">";
  nested.write_end = "]<]minimax[>[</invoke>\n";
  rows.push_back(nested);
}

void add_code_rows(std::vector<ToolFormat>& rows) {
  ToolFormat python;
  python.name = "pythonic";
  python.aliases = {"llama4_pythonic"};
  python.encoding = Encoding::kPython;
  python.begins = {"<|python_start|>"};
  python.ends = {"<|python_end|>"};
  python.bare = "[";
  // The grammar cannot write Python literals by a schema; the reader takes calls as JSON in the same place.
  python.json.written = "[]";
  python.write_section_begin = {};
  python.write_begin = R"({"name": "NAME", "arguments": )";
  python.write_end = "}";
  python.write_separator = ", ";
  rows.push_back(python);
  python.name = "olmo3";
  python.aliases = {};
  python.begins = {"<function_calls>"};
  python.ends = {"</function_calls>"};
  python.bare = {};
  python.write_section_begin = "<function_calls>";
  python.write_section_end = "</function_calls>";
  rows.push_back(python);
  python.name = "lfm2";
  python.aliases = {"lfm2_5"};
  python.begins = {"<|tool_call_start|>"};
  python.ends = {"<|tool_call_end|>"};
  python.write_section_begin = "<|tool_call_start|>";
  python.write_section_end = "<|tool_call_end|>";
  python.one_region = true;
  python.repair_strings = true;
  python.keep_tail = true;
  rows.push_back(python);

  ToolFormat gemma;
  gemma.name = "gemma4";
  gemma.encoding = Encoding::kGemma;
  gemma.begins = {"<|tool_call>"};
  gemma.ends = {"<tool_call|>"};
  gemma.string_delimiter = "<|\"|>";
  gemma.write_begin = "<|tool_call>call:NAME";
  gemma.write_end = "<tool_call|>";
  rows.push_back(gemma);
  gemma.name = "functiongemma";
  gemma.begins = {"<start_function_call>"};
  gemma.ends = {"<end_function_call>"};
  gemma.string_delimiter = "<escape>";
  gemma.write_begin = "<start_function_call>call:NAME";
  gemma.write_end = "<end_function_call>";
  rows.push_back(gemma);
}

std::vector<ToolFormat> make_tool_rows() {
  std::vector<ToolFormat> rows;
  add_json_rows(rows);
  add_array_rows(rows);
  add_keyed_rows(rows);
  add_tagged_rows(rows);
  add_invoke_rows(rows);
  add_other_tagged_rows(rows);
  add_code_rows(rows);
  return rows;
}

}  // namespace

std::span<const ToolFormat> tool_formats() {
  static const std::vector<ToolFormat> rows = make_tool_rows();
  return rows;
}

const ToolFormat* find_tool_format(std::string_view name) {
  for (const ToolFormat& row : tool_formats()) {
    if (row.name == name || std::find(row.aliases.begin(), row.aliases.end(), name) != row.aliases.end()) return &row;
  }
  return nullptr;
}

}  // namespace quire::markup
