// SPDX-License-Identifier: Apache-2.0
// Every tool parser with answers as models write them: whole, in pieces, truncated.
#include <gtest/gtest.h>

#include <set>

#include "markup/formats.h"
#include "markup/testing.h"

namespace quire::markup {
namespace {

using testing::Answer;
using testing::Call;
using testing::dialect_of;
using testing::options_of;
using testing::parse_in_pieces;
using testing::parse_whole;

struct Golden {
  std::string_view parser;
  std::string_view text;
  std::string_view content;
  std::vector<Call> calls;
};

// What the calls of these answers have as arguments: JSON encodings keep the model's own text.
const Call kParis = {"get_weather", R"({"city": "Paris"})"};
const Call kPing = {"ping", "{}"};

std::vector<Golden> json_goldens() {
  return {
      {"hermes",
       "Let me look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>",
       "Let me look.",
       {kParis}},
      {"hermes",
       "<tool_call>{\"name\":\"write_file\",\"arguments\":{\"path\":\"a\\\"b\\\\\",\"text\":\"h\\u00e9 é 日本 "
       "</tool_call> "
       "{[\",\"options\":{\"mode\":[1,{\"x\":null}]}}}</tool_call>\n<tool_call>\n{\"name\": \"ping\"}\n</tool_call>",
       "",
       {{"write_file",
         "{\"path\":\"a\\\"b\\\\\",\"text\":\"h\\u00e9 é 日本 </tool_call> "
         "{[\",\"options\":{\"mode\":[1,{\"x\":null}]}}"},
        kPing}},
      {"hermes",
       "<tool_call>\n{\"arguments\": {\"city\": \"Paris\"}, \"name\": \"get_weather\"}\n</tool_call>",
       "",
       {kParis}},
      {"hermes",
       R"(<tool_call>{"name": "get_weather", "arguments": "{\"city\": \"Paris\"}"}</tool_call>)",
       "",
       {kParis}},
      {"hermes", R"(<tool_call>{"name": "ping", "arguments": null}</tool_call> That was it.)", "", {kPing}},
      {"hermes",
       R"(<tool_call>{"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Paris"}}})",
       "",
       {kParis}},
      {"hermes", "2 < 3 <tool_call>not json</tool_call> and <b>", "2 < 3 <tool_call>not json</tool_call> and <b>", {}},
      {"hermes",
       "Sure:\n```json\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n```\nDone.",
       "Sure:",
       {kParis}},
      {"hermes", R"({"name": "get_weather", "arguments": {"city": "Paris"}})", "", {kParis}},
      {"hermes", R"({{"name": "get_weather", "arguments": {"city": "Paris"}}})", "", {kParis}},
      {"hermes", R"(<tool_call>{{"name": "ping", "arguments": {}}}</tool_call>)", "", {kPing}},
      {"hermes", "<tools></tools>\n{\"name\": \"ping\", \"arguments\": {}}", "<tools></tools>", {kPing}},
      {"hermes", "Like\n{\"a\": 1}\nor {\"name\": 2}", "Like\n{\"a\": 1}\nor {\"name\": 2}", {}},
      {"hermes", "{{x}} is a variable", "{{x}} is a variable", {}},
      {"hermes", R"(<tools>{"name": "ping", "arguments": {}}</tools>)", "", {kPing}},
      {"hermes",
       "```json\n{\"name\": \"Bob\", \"arguments\": {}}\n```",
       "```json\n{\"name\": \"Bob\", \"arguments\": {}}\n```",
       {}},
      {"hermes", "{\"name\": \"ping\", \"age\": 3} is", "{\"name\": \"ping\", \"age\": 3} is", {}},
      {"granite4", "One <tool_call>{\"name\": \"ping\", \"arguments\": {}}</tool_call> two.", "One two.", {kPing}},
      {"longcat", "<longcat_tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</longcat_tool_call>", "", {kPing}},
      {"granite-20b-fc",
       R"(<function_call> {"name": "get_weather", "arguments": {"city": "Paris"}}<function_call> {"name": "ping", "arguments": {}})",
       "",
       {kParis, kPing}},
      {"internlm",
       "Yes.<|action_start|><|plugin|>\n{\"name\": \"get_weather\", \"parameters\": {\"city\": "
       "\"Paris\"}}<|action_end|>\n",
       "Yes.",
       {kParis}},
      {"inkling",
       R"(<|content_invoke_tool_json|>{"name": "get_weather", "args": {"city": "Paris"}}<|end_message|>)",
       "",
       {kParis}},
      {"gigachat3",
       R"(Now:<|function_call|>{"name": "get_weather", "arguments": {"city": "Paris"}})",
       "Now:",
       {kParis}},
      {"gigachat3", "function call<|role_sep|>\n{\"name\": \"ping\", \"arguments\": {}}<|message_sep|>", "", {kPing}},
      {"minimax",
       "<tool_calls>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n{\"name\": \"ping\", "
       "\"arguments\": {}}\n</tool_calls>",
       "",
       {kParis, kPing}},
      {"llama3_json",
       R"({"name": "get_weather", "parameters": {"city": "Paris"}}; {"name": "ping", "parameters": {}})",
       "",
       {kParis, kPing}},
      {"llama3_json", R"(<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}})", "", {kParis}},
      {"llama3_json", R"({"name": "Bob", "age": 3})", R"({"name": "Bob", "age": 3})", {}},
      {"llama3_json", R"(A set is {1, 2}.)", R"(A set is {1, 2}.)", {}},
      {"granite",
       R"(<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "ping", "arguments": {}}] ok)",
       "ok",
       {kParis, kPing}},
      {"granite", "<tool_call>[{\"name\": \"ping\", \"arguments\": {}}]", "", {kPing}},
      {"phi4_mini_json", R"(functools[{"name": "get_weather", "arguments": {"city": "Paris"}}])", "", {kParis}},
      {"hunyuan_a13b",
       R"(Hm.<tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "ping", "arguments": {}}]</tool_calls>)",
       "Hm.",
       {kParis, kPing}},
      {"jamba", "<tool_calls>[\n    {\"name\": \"ping\", \"arguments\": {}}\n]</tool_calls>", "", {kPing}},
      {"nemotron_json",
       R"(<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris"}}]</TOOLCALL>)",
       "",
       {kParis}},
      {"apertus",
       R"(<|tools_prefix|>[{"get_weather": {"city": "Paris"}}, {"ping": {}}]<|tools_suffix|>)",
       "",
       {kParis, kPing}},
      {"cohere_command3",
       "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"get_weather\", \"parameters\": {\"city\": "
       "\"Paris\"}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"ping\", \"parameters\": {}}\n]<|END_ACTION|>",
       "",
       {kParis, kPing}},
      {"xlam", "```json\n[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}]\n```", "", {kParis}},
      {"xlam",
       R"([{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "ping", "arguments": {}}])",
       "",
       {kParis, kPing}},
      {"xlam", R"([TOOL_CALLS][{"name": "ping", "arguments": {}}])", "", {kPing}},
      {"xlam", "[link](https://example.org)", "[link](https://example.org)", {}},
  };
}

std::vector<Golden> keyed_goldens() {
  return {
      {"mistral",
       R"(Sure.[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]ping[ARGS]{})",
       "Sure.",
       {kParis, kPing}},
      {"mistral", R"([TOOL_CALLS]get_weather{"city": "Paris"})", "", {kParis}},
      {"mistral",
       R"([TOOL_CALLS]get_weather[CALL_ID]abc123def[ARGS]{"city": "Paris"})",
       "",
       {{"get_weather", R"({"city": "Paris"})", "abc123def"}}},
      {"mistral_v3",
       R"([TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "abcdefghi"}, {"name": "ping", "arguments": {}}])",
       "",
       {kParis, kPing}},
      {"deepseek_v3",
       "Ok.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": "
       "\"Paris\"}\n```<｜tool▁call▁end｜>\n"
       "<｜tool▁call▁begin｜>function<｜tool▁sep｜>ping\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       "Ok.",
       {kParis, kPing}},
      {"deepseek_v31",
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Paris\"}<｜tool▁call▁end｜>"
       "<｜tool▁call▁begin｜>ping<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       "",
       {kParis, kPing}},
      {"kimi_k2",
       "I "
       "call.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"
       "\"city\": "
       "\"Paris\"}<|tool_call_end|><|tool_call_begin|>functions.ping:1<|tool_call_argument_begin|>{}<|tool_call_end|><|"
       "tool_calls_section_end|>",
       "I call.",
       {{"get_weather", R"({"city": "Paris"})", "functions.get_weather:0"}, {"ping", "{}", "functions.ping:1"}}},
      {"solar_open",
       "<|tool_calls|><|tool_call:begin|>ab12<|tool_call:name|>get_weather<|tool_call:args|>{\"city\": "
       "\"Paris\"}<|tool_call:end|><|calls|>",
       "",
       {{"get_weather", R"({"city": "Paris"})", "ab12"}}},
      {"functionary_v3_1",
       R"(<function=get_weather>{"city": "Paris"}</function><function=ping>{}</function>)",
       "",
       {kParis, kPing}},
      {"openai",
       "<|channel|>commentary<|message|>Looking.<|end|><|start|>assistant<|channel|>commentary "
       "to=functions.get_weather "
       "<|constrain|>json<|message|>{\"city\": \"Paris\"}<|call|>",
       "Looking.",
       {kParis}},
      {"openai", " to=functions.ping<|channel|>commentary json<|message|>{}<|call|>", "", {kPing}},
      {"openai", "<|channel|>final<|message|>It rains.<|return|>", "It rains.", {}},
      {"openai", "It rains without channels.", "It rains without channels.", {}},
  };
}

const Call kTyped = {
    "write_file",
    R"({"path": "a b", "text": "x = \"é\"\n<y> & z", "options": {"mode": 7, "force": true}, "tags": ["p"]})"};
const Call kDays = {"get_weather", R"({"city": "Paris", "days": 3})"};

std::vector<Golden> tagged_goldens() {
  return {
      {"qwen3_coder",
       "Writing.\n\n<tool_call>\n<function=write_file>\n<parameter=path>\na b\n</parameter>\n<parameter=text>\nx = "
       "\"é\"\n<y> & "
       "z\n</parameter>\n<parameter=options>\n{\"mode\": \"7\", \"force\": "
       "true}\n</parameter>\n<parameter=tags>\n[\"p\"]\n</parameter>\n</function>\n</tool_call>",
       "Writing.",
       {kTyped}},
      {"qwen3_coder",
       "<function=get_weather>\n<parameter=city>\nParis\n<parameter=days>\n3\n</parameter>\n</"
       "function>\n<tool_call>\n<function=ping>\n</function>\n</tool_call>",
       "",
       {kDays, kPing}},
      {"mimo",
       "<tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n<parameter=days>3</parameter>\n</"
       "function>\n</tool_call>",
       "",
       {kDays}},
      {"seed_oss",
       "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n<parameter=days>3</parameter>\n</"
       "function>\n</seed:tool_call>",
       "",
       {kDays}},
      {"glm45",
       "Hm.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</"
       "arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>ping</tool_call>",
       "Hm.",
       {kDays, kPing}},
      {"glm47",
       "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call><tool_call>unknown\n</"
       "tool_call>",
       "",
       {kParis}},
      {"poolside_v1",
       "<tool_call>get_weather<arg_key>days</arg_key><arg_value>3</arg_value></tool_call>",
       "",
       {{"get_weather", R"({"days": 3})"}}},
      {"hy_v3",
       "<tool_calls><tool_call>get_weather<tool_sep><arg_key>city</arg_key><arg_value>Paris</arg_value></"
       "tool_call><tool_call>ping<tool_sep></tool_call></tool_calls>",
       "",
       {kParis, kPing}},
      {"hy_v4",
       "<tool_calls><tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call></tool_calls>",
       "",
       {kParis}},
      {"minimax_m2",
       "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Paris</parameter>\n<parameter "
       "name='days'>3</parameter>\n</invoke>\n<invoke name=ping>\n</invoke>\n</minimax:tool_call>",
       "",
       {kDays, kPing}},
      {"dots",
       "<dots_function_call><invoke name=\"get_weather\"><parameter "
       "name=\"city\">Paris</parameter></invoke></dots_function_call>",
       "",
       {kParis}},
      {"dots",
       "<dots_function_call><invoke name=\"get_weather\">{\"city\": \"Paris\"}</invoke></dots_function_call>",
       "",
       {kParis}},
      {"deepseek_v32",
       "Ok.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" "
       "string=\"true\">Paris</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" "
       "string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke "
       "name=\"ping\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls> tail",
       "Ok.",
       {kDays, kPing}},
      {"deepseek_v4",
       "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter "
       "name=\"arguments\" string=\"false\">{\"city\":\"Paris\", \"days\": "
       "\"3\"}</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
       "",
       {kDays}},
      {"deepseek_v41",
       "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"get_weather\">\n<｜DSML｜ parameter name=\"city\" "
       "string=\"true\">Paris</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>",
       "",
       {kParis}},
      {"step3",
       "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke "
       "name=\"get_weather\"><steptml:parameter "
       "name=\"city\">Paris</steptml:parameter></steptml:invoke><｜tool_call_end｜>"
       "<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke "
       "name=\"ping\"></steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>",
       "",
       {kParis, kPing}},
      {"muse_glimmer",
       "<atem:function_calls>\n<atem:invoke name=\"get_weather\">\n<atem:parameter "
       "name=\"city\">Paris</atem:parameter>\n</atem:invoke>\n</atem:function_calls>",
       "",
       {kParis}},
      {"minicpm5",
       "<function name=\"get_weather\"><param name=\"city\"><![CDATA[Pa</param>ris]]></param><param "
       "name=\"days\">3</param></function><function name=\"ping\"></function>",
       "",
       {{"get_weather", R"({"city": "Pa</param>ris", "days": 3})"}, kPing}},
      {"kimi_k3",
       "<|open|>tools<|sep|><|open|>call tool=\"get_weather\" index=\"1\"<|sep|><|open|>argument key=\"city\" "
       "type=\"string\"<|sep|>Paris<|close|>argument<|sep|><|open|>argument key=\"days\" "
       "type=\"number\"<|sep|>3<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
       "",
       {kDays}},
      {"minimax_m3",
       "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke "
       "name=\"write_file\">]<]minimax[>[<path>a]<]minimax[>[</path>]<]minimax[>[<options>"
       "]<]minimax[>[<mode>7]<]minimax[>[</mode>]<]minimax[>[</"
       "options>]<]minimax[>[<tags>]<]minimax[>[<item>x]<]minimax[>[</item>"
       "]<]minimax[>[<item>y]<]minimax[>[</item>]<]minimax[>[</tags>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
       "",
       {{"write_file", R"({"path": "a", "options": {"mode": 7}, "tags": ["x", "y"]})"}}},
  };
}

std::vector<Golden> code_goldens() {
  return {
      {"pythonic", "[get_weather(city='Paris', days=3), ping()]", "", {kDays, kPing}},
      {"pythonic",
       R"-([write_file(path="a,b)", text='''it's "x"''', tags=["p", 'q'], options={'mode': 1, "force": True})])-",
       "",
       {{"write_file",
         R"-({"path": "a,b)", "text": "it's \"x\"", "tags": ["p", "q"], "options": {"mode": 1, "force": true}})-"}}},
      {"pythonic", "[1, 2, 3] is a list", "[1, 2, 3] is a list", {}},
      {"pythonic", "[f(x)]", "[f(x)]", {}},
      {"llama4_pythonic", "<|python_start|>[get_weather(city=\"Paris\")]<|python_end|>", "", {kParis}},
      {"olmo3", "<function_calls>\nget_weather(city=\"Paris\")\nping()\n</function_calls>", "", {kParis, kPing}},
      {"lfm2",
       "Wait.<|tool_call_start|>[get_weather(city=\"Paris\")]<|tool_call_end|>Done. "
       "<|tool_call_start|>[ping()]<|tool_call_end|>",
       "Wait.Done.",
       {kParis}},
      {"lfm2",
       "<|tool_call_start|>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}]<|tool_call_end|>",
       "",
       {kParis}},
      {"gemma4",
       "Ok.<|tool_call>call:get_weather{city:<|\"|>Paris<|\"|>,days:3}<tool_call|><|tool_call>call:ping{}<tool_call|>",
       "Ok.",
       {kDays, kPing}},
      {"gemma4",
       "<|tool_call>call:write_file{path:<|\"|>a,}b<|\"|>,options:{<|\"|>mode<|\"|>:7,force:true},tags:[<|\"|>p<|\"|>,<"
       "|\"|>q<|\"|>]}<tool_call|>",
       "",
       {{"write_file", R"({"path": "a,}b", "options": {"mode": 7, "force": true}, "tags": ["p", "q"]})"}}},
      {"gemma4", R"(<|tool_call>call:get_weather{"city": "Paris"}<tool_call|>)", "", {kParis}},
      {"functiongemma",
       "<start_function_call>call:get_weather{city:<escape>Paris<escape>,days:<escape>3<escape>}<end_function_call>",
       "",
       {kDays}},
  };
}

std::vector<Golden> goldens() {
  std::vector<Golden> all;
  for (const auto& part : {json_goldens(), keyed_goldens(), tagged_goldens(), code_goldens()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

::testing::AssertionResult same(const Answer& expected, const Answer& actual) {
  if (expected == actual) return ::testing::AssertionSuccess();
  auto failure = ::testing::AssertionFailure();
  failure << "\nexpected " << ::testing::PrintToString(expected.content) << " and " << expected.calls.size()
          << " calls\n";
  for (const Call& call : expected.calls)
    failure << "  " << call.name << " " << call.arguments << " " << call.id << "\n";
  failure << "actual " << ::testing::PrintToString(actual.content) << " and " << actual.calls.size() << " calls\n";
  for (const Call& call : actual.calls) failure << "  " << call.name << " " << call.arguments << " " << call.id << "\n";
  failure << "reasoning " << expected.reasoning << " / " << actual.reasoning;
  return failure;
}

TEST(ToolParsers, ReadWhatModelsWrite) {
  for (const Golden& golden : goldens()) {
    const Answer expected = {"", std::string(golden.content), golden.calls};
    EXPECT_TRUE(same(expected, parse_whole(dialect_of(golden.parser), options_of(), golden.text)))
        << golden.parser << ": " << golden.text;
  }
}

TEST(ToolParsers, EveryRowHasAnExample) {
  std::set<std::string_view> tested;
  for (const Golden& golden : goldens()) tested.insert(name(*dialect_of(golden.parser).tools));
  for (const ToolFormat& row : tool_formats()) EXPECT_TRUE(tested.contains(row.name)) << row.name;
}

TEST(ToolParsers, StreamedEqualsWholeAtEveryCut) {
  for (const Golden& golden : goldens()) {
    const Dialect dialect = dialect_of(golden.parser);
    const Answer whole = parse_whole(dialect, options_of(), golden.text);
    std::vector<size_t> bytes;
    for (size_t cut = 0; cut <= golden.text.size(); ++cut) {
      bytes.push_back(cut);
      ASSERT_TRUE(same(whole, parse_in_pieces(dialect, options_of(), golden.text, {cut})))
          << golden.parser << " cut at " << cut << ": " << golden.text;
    }
    EXPECT_TRUE(same(whole, parse_in_pieces(dialect, options_of(), golden.text, bytes))) << golden.parser;
  }
}

TEST(ToolParsers, PiecesNeverHoldHalfCharactersOrEscapesOrMarkers) {
  for (const Golden& golden : goldens()) {
    Parser parser(dialect_of(golden.parser), options_of());
    std::vector<Event> events;
    for (const char c : golden.text) parser.feed({&c, 1}, events);
    parser.finish(false, events);
    for (const Event& event : events) {
      if (event.text.empty()) continue;
      EXPECT_TRUE(static_cast<unsigned char>(event.text.front()) < 0x80 ||
                  static_cast<unsigned char>(event.text.front()) >= 0xC0)
          << golden.parser << ": a piece begins inside a character";
      if (event.kind != Event::Kind::kArguments) continue;
      size_t slashes = 0;
      while (slashes < event.text.size() && event.text[event.text.size() - 1 - slashes] == '\\') ++slashes;
      EXPECT_EQ(slashes % 2, 0u) << golden.parser << ": a piece ends inside an escape: " << event.text;
    }
  }
}

TEST(ToolParsers, TruncatedAnswersKeepWhatIsComplete) {
  for (const Golden& golden : goldens()) {
    const Dialect dialect = dialect_of(golden.parser);
    const Answer whole = parse_whole(dialect, options_of(), golden.text);
    size_t calls_before = 0;
    for (size_t length = 0; length <= golden.text.size(); ++length) {
      const std::string_view text = golden.text.substr(0, length);
      Parser parser(dialect, options_of());
      std::vector<Event> events;
      parser.feed(text, events);
      size_t ended = 0;
      for (const Event& event : events) ended += event.kind == Event::Kind::kCallEnd ? 1 : 0;
      parser.finish(true, events);
      const Answer answer = testing::collect(events);
      ASSERT_GE(answer.calls.size(), ended) << golden.parser << " at " << length;
      ASSERT_LE(answer.calls.size(), whole.calls.size()) << golden.parser << " at " << length;
      for (size_t i = 0; i < answer.calls.size(); ++i) {
        EXPECT_EQ(answer.calls[i].name, whole.calls[i].name);
        EXPECT_TRUE(answer.calls[i].ended);
        if (i < ended) {
          EXPECT_EQ(answer.calls[i].arguments, whole.calls[i].arguments) << golden.parser << " at " << length;
        }
      }
      EXPECT_GE(ended, calls_before) << "a call that was complete stays complete";
      calls_before = ended;
      ASSERT_TRUE(same(answer, parse_in_pieces(dialect, options_of(), text, {length / 2}, true))) << golden.parser;
    }
  }
}

TEST(ToolParsers, TaggedArgumentsAreJsonAtEveryCut) {
  for (const Golden& golden : tagged_goldens()) {
    for (size_t length = 0; length <= golden.text.size(); ++length) {
      const Answer answer = parse_whole(dialect_of(golden.parser), options_of(), golden.text.substr(0, length), true);
      for (const Call& call : answer.calls) {
        if (golden.text.find("{\"city\": \"Paris\"}</invoke>") != std::string_view::npos) continue;  // a JSON body
        const auto parsed = json::parse(call.arguments);
        ASSERT_TRUE(parsed.ok() && parsed->is_object()) << golden.parser << " at " << length << ": " << call.arguments;
      }
    }
  }
}

TEST(ToolParsers, OnlyTheFirstCallIsKeptWithoutParallelCalls) {
  ParseOptions options = options_of();
  options.parallel = false;
  for (const Golden& golden : goldens()) {
    const Answer answer = parse_whole(dialect_of(golden.parser), options, golden.text);
    EXPECT_EQ(answer.calls.size(), std::min<size_t>(golden.calls.size(), 1)) << golden.parser;
    if (answer.calls.empty()) continue;
    EXPECT_EQ(answer.calls.front().arguments, golden.calls.front().arguments);
  }
}

TEST(ToolParsers, CallsAreDiscardedIfNoneIsAllowed) {
  for (const Golden& golden : goldens()) {
    const Dialect dialect = dialect_of(golden.parser);
    const Answer answer = parse_whole(dialect, options_of(ToolChoice::kNone), golden.text);
    EXPECT_TRUE(answer.calls.empty()) << golden.parser;
    // Without a marker, an answer that looks like a call is an answer.
    if (dialect.tools->bare.empty()) continue;
    EXPECT_EQ(answer.content, golden.text);
  }
}

TEST(ToolParsers, WithoutToolsTheTextIsContent) {
  const std::string text = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
  EXPECT_EQ(parse_whole(dialect_of("hermes"), ParseOptions{}, text).content, text);
  EXPECT_EQ(parse_whole(Dialect{}, options_of(), text).content, text);
}

TEST(ToolParsers, UnknownNamesPassOrAreDropped) {
  const std::string json = R"(<tool_call>{"name": "nobody", "arguments": {}}</tool_call>)";
  EXPECT_EQ(parse_whole(dialect_of("hermes"), options_of(), json).calls.size(), 1u);
  const std::string glm = "<tool_call>nobody</tool_call>";
  EXPECT_TRUE(parse_whole(dialect_of("glm45"), options_of(), glm).calls.empty());
}

}  // namespace
}  // namespace quire::markup
