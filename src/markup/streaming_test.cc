// SPDX-License-Identifier: Apache-2.0
// Reasoning, and answers that nobody expects: hostile, huge, cut anywhere.
#include <gtest/gtest.h>

#include <random>

#include "base/test_sanitized.h"
#include "markup/formats.h"
#include "markup/testing.h"

namespace quire::markup {
namespace {

using testing::Answer;
using testing::dialect_of;
using testing::options_of;
using testing::parse_in_pieces;
using testing::parse_whole;

struct ReasoningCase {
  std::string_view tool_parser, reasoning_parser;
  bool starts_inside;
  std::string_view text, reasoning, content;
  size_t calls = 0;
};

std::vector<ReasoningCase> reasoning_cases() {
  return {
      {"hermes", "qwen3", true, "Okay.\n</think>\n\nHi é!", "Okay.\n", "Hi é!"},
      {"hermes", "qwen3", true, "<think>\nOkay.</think>Hi", "Okay.", "Hi"},
      {"hermes", "qwen3", true, "Never ends", "Never ends", ""},
      {"hermes", "qwen3", false, "\n<think>\nOkay.</think>\n\nHi", "Okay.", "Hi"},
      {"hermes", "qwen3", false, "No thoughts, <think> is a word.", "", "No thoughts, <think> is a word."},
      {"hermes", "qwen3", true, "a < b </thin</think>c", "a < b </thin", "c"},
      {"hermes", "qwen3", true, "x</think>\n</think>\ny</think>z", "x", "y</think>z"},
      {"hermes", "qwen3", true, "I call<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>", "I call",
       "", 1},
      {"hermes", "qwen3", true, "T</think>\n\nText\n<tool_call>{\"name\": \"ping\"}</tool_call>", "T", "Text", 1},
      {"none", "deepseek_r1", true, "Thoughts\n</think>\n\nAnswer", "Thoughts", "Answer"},
      {"glm45", "glm45", true, "T</think><tool_call>ping</tool_call>", "T", "", 1},
      {"llama3_json", "deepseek_r1", true, "T</think>\n{\"name\": \"ping\", \"parameters\": {}}", "T", "", 1},
      {"kimi_k2", "kimi_k2", true,
       "T<|tool_calls_section_begin|><|tool_call_begin|>functions.ping:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
       "<|tool_calls_section_end|>",
       "T", "", 1},
      {"none", "minimax_m3", true, "T</mm:think>A", "T", "A"},
      {"none", "seed_oss", true, "<seed:think>T</seed:think>A", "T", "A"},
      {"gemma4", "gemma4", false, "<|channel>thought\nT\n<channel|>A<|tool_call>call:ping{}<tool_call|>", "T", "A", 1},
      {"none", "mistral", false, "[THINK]T[/THINK]A", "T", "A"},
      {"cohere_command3", "cohere_command3", true,
       "T<|END_THINKING|><|START_ACTION|>[{\"tool_name\": \"ping\", \"parameters\": {}}]<|END_ACTION|>", "T", "", 1},
      {"none", "cohere_command3", true, "T<|END_THINKING|><|START_RESPONSE|>A<|END_RESPONSE|>", "T", "A"},
      {"none", "granite", false, "Here is my thought process: T. Here is my response: A.", "T.", "A."},
      {"none", "granite", false, "Here's my thought process:\nT.\nHere's my response:\nA.", "T.", "A."},
      {"hunyuan_a13b", "hunyuan_a13b", false, "<think>\nT\n</think>\n<answer>\nA\n</answer>", "T", "A"},
      {"ernie45", "ernie45", true, "T\n</think>\n\n<response>\nA\n</response>\n", "T", "A"},
      {"kimi_k3", "kimi_k3", true,
       "T<|close|>think<|sep|><|open|>response<|sep|>A<|close|>response<|sep|><|open|>tools<|sep|><|open|>call "
       "tool=\"ping\" index=\"1\"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
       "T", "A", 1},
      {"none", "apertus", false, "<|inner_prefix|>T<|inner_suffix|>A", "T", "A"},
      {"none", "solar_open", false, "<|think|>T<|end|><|begin|>assistant<|content|>A", "T", "A"},
      {"none", "apriel", true, "Steps.\n[BEGIN FINAL RESPONSE]\nA\n[END FINAL RESPONSE]\n", "Steps.", "A"},
      {"muse_glimmer", "muse_glimmer", false, " to=self<|message|>T<|eom|><|start|>assistant to=user<|message|>A", "T",
       "A"},
      {"muse_glimmer", "muse_glimmer", false,
       " to=self<|message|>T<|eom|><|start|>assistant to=ping<|message|><atem:function_calls>\n<atem:invoke "
       "name=\"ping\">\n</atem:invoke>\n</atem:function_calls><|eom|><|start|>assistant to=ping<|message|>"
       "<atem:function_calls>\n<atem:invoke name=\"ping\">\n</atem:invoke>\n</atem:function_calls><|eot|>",
       "T", "", 2},
      {"muse_glimmer", "muse_glimmer", false,
       " to=user<|message|>I ping.<|eom|><|start|>assistant to=ping<|message|><atem:function_calls><atem:invoke "
       "name=\"ping\"></atem:invoke></atem:function_calls>",
       "", "I ping.", 1},
      {"muse_glimmer", "muse_glimmer", false, " to=whom it may concern", "", " to=whom it may concern"},
      {"gigachat3", "none", false, "I ping.<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"ping\"}", "",
       "I ping.", 1},
      {"none", "minimax_m2_append_think", true, "T</think>A", "", "<think>T</think>A"},
      {"openai", "openai_gptoss", false,
       "<|channel|>analysis<|message|>T1<|end|><|start|>assistant<|channel|>analysis<|message|>T2<|end|><|start|>"
       "assistant"
       "<|channel|>commentary to=functions.ping <|constrain|>json<|message|>{}<|call|>",
       "T1\nT2", "", 1},
      {"openai", "openai_gptoss", false,
       "<|channel|>analysis<|message|>T<|end|><|start|>assistant<|channel|>final<|message|>A<|return|>", "T", "A"},
      {"openai", "openai_gptoss", false, "<|channel|>analysis<|message|>cut in the mid", "cut in the mid", ""},
  };
}

TEST(Reasoning, IsSeparatedFromContentAndCalls) {
  for (const ReasoningCase& one : reasoning_cases()) {
    const Dialect dialect = dialect_of(one.tool_parser, one.reasoning_parser);
    ParseOptions options = options_of();
    options.starts_in_reasoning = one.starts_inside;
    const Answer answer = parse_whole(dialect, options, one.text);
    EXPECT_EQ(answer.reasoning, one.reasoning) << one.reasoning_parser << ": " << one.text;
    EXPECT_EQ(answer.content, one.content) << one.reasoning_parser << ": " << one.text;
    EXPECT_EQ(answer.calls.size(), one.calls) << one.reasoning_parser << ": " << one.text;
    std::vector<size_t> every;
    for (size_t cut = 0; cut <= one.text.size(); ++cut) {
      every.push_back(cut);
      ASSERT_EQ(answer, parse_in_pieces(dialect, options, one.text, {cut})) << one.text << " at " << cut;
      (void)parse_whole(dialect, options, one.text.substr(0, cut), true);
    }
    EXPECT_EQ(answer, parse_in_pieces(dialect, options, one.text, every)) << one.text;
  }
}

TEST(Reasoning, SaysWhetherTheTextIsInside) {
  ParseOptions options = options_of();
  options.starts_in_reasoning = true;
  Parser parser(dialect_of("hermes", "qwen3"), options);
  std::vector<Event> events;
  EXPECT_TRUE(parser.in_reasoning());
  parser.feed("thoughts</think", events);
  EXPECT_TRUE(parser.in_reasoning());
  parser.feed(">", events);
  EXPECT_FALSE(parser.in_reasoning());
}

TEST(Reasoning, MarkersOfToolsDoNotEndItWithoutTools) {
  ParseOptions options;
  options.starts_in_reasoning = true;
  const Answer answer = parse_whole(dialect_of("hermes", "qwen3"), options, "What is <tool_call>?</think>A tag.");
  EXPECT_EQ(answer.reasoning, "What is <tool_call>?");
  EXPECT_EQ(answer.content, "A tag.");
}

// All texts that have a meaning somewhere, to be put together at random.
std::vector<std::string> fragments() {
  std::vector<std::string> out = {"{",
                                  "}",
                                  "[",
                                  "]",
                                  "(",
                                  ")",
                                  "\"",
                                  "\\",
                                  "\\u00",
                                  "'",
                                  "\n",
                                  " ",
                                  ",",
                                  ":",
                                  "=",
                                  "null",
                                  "a",
                                  "é",
                                  "\xF0\x9F",
                                  "\x98\x80",
                                  "1",
                                  "\"name\"",
                                  "\"arguments\"",
                                  "ping",
                                  "<",
                                  ">",
                                  "</",
                                  "{\"name\": \"ping\", \"arguments\": {}}",
                                  "call:ping{",
                                  "ping(a=1)",
                                  "```",
                                  "function"};
  for (const ToolFormat& row : tool_formats()) {
    for (const Texts& texts : {row.begins, row.ends, row.skips, row.keyed.header_ends}) {
      out.insert(out.end(), texts.begin(), texts.end());
    }
    for (const std::string_view text :
         {row.open, row.close, row.string_delimiter, row.tagged.param_open, row.tagged.value_open,
          row.tagged.value_close, row.tagged.param_header_end, row.write_begin, row.write_end}) {
      if (!text.empty()) out.emplace_back(text);
    }
  }
  for (const ReasoningFormat& row : reasoning_formats()) {
    for (const Texts& texts : {row.starts, row.ends, row.wrappers}) out.insert(out.end(), texts.begin(), texts.end());
  }
  return out;
}

TEST(Hostile, RandomMarkupIsReadTheSameInAnyPieces) {
  std::mt19937 random(20);
  const std::vector<std::string> pieces = fragments();
  const auto tools = tool_formats();
  const auto reasonings = reasoning_formats();
  for (int round = 0; round < 1500; ++round) {
    const ToolFormat& row = tools[static_cast<size_t>(round) % tools.size()];
    const Dialect dialect = {&row, round % 3 == 0 ? &reasonings[random() % reasonings.size()] : nullptr};
    ParseOptions options = options_of();
    options.starts_in_reasoning = random() % 2 == 0;
    options.parallel = random() % 4 != 0;
    // Half of the fragments are the row's own, or the chance to meet its inner states would be small.
    std::string text = random() % 2 == 0 ? std::string(row.write_section_begin) + std::string(row.write_begin) : "";
    for (size_t i = random() % 24; i > 0; --i) {
      switch (random() % 4) {
        case 0:
          text += row.begins.empty() ? row.open : row.begins[random() % row.begins.size()];
          break;
        case 1:
          text += random() % 2 == 0 ? row.tagged.param_open : row.close;
          break;
        default:
          text += pieces[random() % pieces.size()];
      }
    }
    const bool truncated = random() % 2 == 0;
    const Answer whole = parse_whole(dialect, options, text, truncated);
    std::vector<size_t> cuts, every;
    for (size_t cut = 1; cut < text.size(); ++cut) {
      every.push_back(cut);
      if (random() % 4 == 0) cuts.push_back(cut);
    }
    ASSERT_EQ(whole, parse_in_pieces(dialect, options, text, cuts, truncated)) << row.name << ": " << text;
    ASSERT_EQ(whole, parse_in_pieces(dialect, options, text, every, truncated)) << row.name << ": " << text;
    ASSERT_TRUE(options.parallel || whole.calls.size() <= 1);
    for (const testing::Call& call : whole.calls) ASSERT_TRUE(call.ended);
  }
}

TEST(Hostile, LongTextsAreRead) {
  const size_t size = size_t{kSanitized ? 32 : 128} << 10;
  const auto repeated = [&](std::string_view text) {
    std::string out;
    while (out.size() < size) out += text;
    return out;
  };
  for (const ToolFormat& row : tool_formats()) {
    const std::string begin = row.begins.empty() ? std::string(row.open) : std::string(row.begins.front());
    const std::string start = std::string(row.write_section_begin) + std::string(row.write_begin);
    std::vector<std::string> texts = {repeated("<"), start + repeated("{\"a\":"), start + repeated("[")};
    if (!begin.empty()) {
      texts.push_back(repeated(begin));
      texts.push_back(repeated(begin.substr(0, begin.size() - 1)));
    }
    if (!row.tagged.param_open.empty()) texts.push_back(start + repeated(row.tagged.param_open));
    for (const std::string& text : texts) {
      std::vector<size_t> cuts;
      for (size_t cut = 0; cut < text.size(); cut += 4096) cuts.push_back(cut);
      (void)parse_in_pieces({&row, nullptr}, options_of(), text, cuts);
    }
  }
}

TEST(Hostile, TextThatIsNoCallDoesNotWaitForTheEnd) {
  // A region that never becomes a call is given back as content after a bounded number of bytes.
  Parser parser(dialect_of("hermes"), options_of());
  std::vector<Event> events;
  parser.feed("<tool_call>{\"x\": \"" + std::string(size_t{1} << 20, 'a'), events);
  EXPECT_GT(testing::collect(events).content.size(), size_t{700} << 10);
}

TEST(Streaming, AnAnswerInJsonIsNotHeldBackAsACall) {
  for (const std::string_view parser : {"hermes", "llama3_json", "xlam"}) {
    Parser parser_of(dialect_of(parser), options_of());
    std::vector<Event> events;
    parser_of.feed("{\"answer\": \"a long text", events);
    EXPECT_EQ(testing::collect(events).content, "{\"answer\": \"a long text") << parser;
  }
}

TEST(Hostile, BlanksAreHeldBackOnlyUpToALimit) {
  Parser parser(dialect_of("hermes"), options_of());
  std::vector<Event> events;
  parser.feed("a" + std::string(100'000, '\n'), events);
  EXPECT_GT(testing::collect(events).content.size(), 90'000u);
}

}  // namespace
}  // namespace quire::markup
