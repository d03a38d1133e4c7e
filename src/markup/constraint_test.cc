// SPDX-License-Identifier: Apache-2.0
// What the constraints of tool calls allow is what the parser reads back as those calls.
#include <gtest/gtest.h>

#include <algorithm>

#include "grammar/compile.h"
#include "grammar/test_grammars.h"
#include "markup/formats.h"
#include "markup/testing.h"

namespace quire::markup {
namespace {

using json::Value;
using testing::Answer;
using testing::parse_whole;

const std::string kArguments = R"({"city": "Paris", "days": 3, "unit": "celsius"})";

// The arguments in one of the styles of json_schema.
std::string styled(std::string_view style) {
  const auto one = [&](std::string_view key, std::string_view value, bool raw) {
    const std::string k(key), v(value);
    if (style == "qwen_xml") return "<parameter=" + k + ">\n" + v + "\n</parameter>";
    if (style == "glm_xml") return "<arg_key>" + k + "</arg_key>\n<arg_value>" + v + "</arg_value>";
    if (style == "minimax_xml") return "<parameter name=\"" + k + "\">" + v + "</parameter>";
    EXPECT_EQ(style, "deepseek_xml");
    return "<｜DSML｜parameter name=\"" + k + "\" string=\"" + (raw ? "true" : "false") + "\">" + v +
           "</｜DSML｜parameter>";
  };
  return one("city", "Paris", true) + "\n" + one("days", "3", false) + "\n" + one("unit", "celsius", true);
}

// Writes a text that a structural tag allows: the first alternative everywhere, `calls` tags where many may follow.
std::string write(const Value& format, size_t calls, std::string_view around = {}) {
  const std::string& type = format.find("type")->as_string();
  if (type == "const_string") return format.find("value")->as_string();
  if (type == "regex") return format.find("pattern")->as_string().starts_with("[0-9]") ? "7" : "\n";
  if (type == "any_text") {
    if (around.find("analysis") != std::string_view::npos) return "thoughts";
    return around.find("city") != std::string_view::npos ? "Paris" : "";
  }
  if (type == "json_schema") {
    if (const Value* style = format.find("style")) return styled(style->as_string());
    const Value* kind = format.find("json_schema")->find("type");
    return kind != nullptr && *kind == Value("integer") ? "3" : kArguments;
  }
  if (type == "or") return write(format.find("elements")->as_array().front(), calls, around);
  if (type == "optional" || type == "star") return write(*format.find("content"), calls, around);
  if (type == "sequence") {
    std::string out;
    for (const Value& element : format.find("elements")->as_array()) out += write(element, calls, around);
    return out;
  }
  if (type == "tag") {
    const std::string& begin = format.find("begin")->as_string();
    return begin + write(*format.find("content"), calls, begin) + format.find("end")->as_string();
  }
  if (type == "tags_with_separator" || type == "triggered_tags") {
    const json::Array& tags = format.find("tags")->as_array();
    if (type == "triggered_tags") {
      bool fits = false;
      for (const Value& trigger : format.find("triggers")->as_array()) {
        for (const Value& tag : tags) {
          fits = fits || tag.find("begin")->as_string().starts_with(trigger.as_string());
        }
      }
      EXPECT_TRUE(fits) << "a trigger begins a tag";
    }
    const Value* separator = format.find("separator");
    std::string out;
    const bool one = format.find("stop_after_first")->as_bool();
    for (size_t i = 0; i < (one ? 1 : calls); ++i) {
      if (i > 0 && separator != nullptr) out += separator->as_string();
      out += write(tags.front(), calls);
    }
    return out;
  }
  ADD_FAILURE() << "no such format: " << type;
  return {};
}

// The texts of a row that are special tokens in models of that family.
std::vector<std::string> special_texts(const ToolFormat& row) {
  std::vector<std::string> out;
  std::vector<std::string_view> texts = {row.open, row.close, row.string_delimiter, row.keyed.sep};
  for (const Texts& more : {row.begins, row.ends, row.skips, row.keyed.header_ends}) {
    texts.insert(texts.end(), more.begin(), more.end());
  }
  if (row.encoding == Encoding::kHarmony) {
    texts = {"<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|call|>", "<|constrain|>"};
  }
  for (const std::string_view text : texts) {
    const bool token = (text.starts_with("<|") && text.ends_with("|>")) ||
                       (text.starts_with("<｜") && text.ends_with("｜>")) || text == "[TOOL_CALLS]" || text == "[ARGS]";
    // Texts of several tokens are put together from tokens that are not in the table.
    if (token && text.find("><") == std::string_view::npos && text.find(">") == text.size() - 1) out.emplace_back(text);
    if (text == "[TOOL_CALLS]" || text == "[ARGS]") out.emplace_back(text);
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

// Whether the grammar of a constraint accepts the text, whose special tokens are read as such.
void expect_accepted(const Dialect& dialect, const Value& constraint, const std::string& text, bool with_specials) {
  const std::vector<std::string> specials = with_specials ? special_texts(*dialect.tools) : std::vector<std::string>();
  std::vector<std::pair<std::string, int32_t>> ids;
  for (size_t i = 0; i < specials.size(); ++i) ids.emplace_back(specials[i], static_cast<int32_t>(256 + i));
  const grammar::SpecialTokens tokens(ids);
  grammar::Spec spec;
  spec.kind = grammar::Spec::Kind::kStructuralTag;
  spec.json = constraint;
  auto translated = grammar::translate(spec, tokens);
  ASSERT_TRUE(translated.ok()) << name(*dialect.tools) << ": " << translated.error().message << json::dump(constraint);
  const auto compiled =
      grammar::CompiledGrammar::make(std::move(translated).value(), grammar::byte_vocabulary({}, specials));
  ASSERT_TRUE(compiled.ok()) << name(*dialect.tools) << ": " << compiled.error().message;
  grammar::Matcher matcher(*compiled);
  for (size_t at = 0; at < text.size();) {
    const auto token = tokens.find_longest_at(text, at);
    const bool ok = token ? matcher.accept(token->id, {}).ok() : matcher.accept_bytes(text.substr(at, 1));
    ASSERT_TRUE(ok) << name(*dialect.tools) << " refuses '" << text.substr(at) << "' after '" << text.substr(0, at)
                    << "'";
    at += token ? token->size : 1;
  }
  EXPECT_TRUE(matcher.may_end()) << name(*dialect.tools) << ": " << text;
}

ParseOptions one_tool(ToolChoice choice) {
  ParseOptions options;
  options.tools = {testing::tools().front()};
  options.choice = choice;
  options.named = "get_weather";
  return options;
}

void expect_calls(const Dialect& dialect, const ParseOptions& options, const Value& constraint, size_t calls) {
  const std::string text = write(constraint, calls);
  expect_accepted(dialect, constraint, text, false);
  expect_accepted(dialect, constraint, text, true);
  const Answer answer = parse_whole(dialect, options, text);
  ASSERT_EQ(answer.calls.size(), calls) << name(*dialect.tools) << ": " << text;
  EXPECT_EQ(answer.content.find_first_not_of(" \n"), std::string::npos) << name(*dialect.tools) << ": " << text;
  for (const testing::Call& call : answer.calls) {
    EXPECT_EQ(call.name, "get_weather") << text;
    const auto parsed = json::parse(call.arguments);
    ASSERT_TRUE(parsed.ok()) << name(*dialect.tools) << ": " << text << "\n" << call.arguments;
    EXPECT_EQ(*parsed, json::parse(kArguments).value()) << name(*dialect.tools) << ": " << text;
  }
}

TEST(ToolConstraint, WhatItAllowsIsReadBackForEveryMarkup) {
  for (const ToolFormat& row : tool_formats()) {
    const Dialect dialect = {&row, nullptr};
    const bool harmony = row.encoding == Encoding::kHarmony;  // a call ends the answer
    const ParseOptions required = one_tool(ToolChoice::kRequired);
    const auto constraint = tool_constraint(dialect, required, Value());
    ASSERT_TRUE(constraint.ok()) << row.name << ": " << constraint.error().message;
    expect_calls(dialect, required, *constraint, harmony ? 1 : 2);

    const ParseOptions named = one_tool(ToolChoice::kNamed);
    const auto one = tool_constraint(dialect, named, Value());
    ASSERT_TRUE(one.ok()) << row.name;
    expect_calls(dialect, named, *one, 1);

    ParseOptions strict = one_tool(ToolChoice::kAuto);
    strict.tools.front().strict = true;
    const auto automatic = tool_constraint(dialect, strict, Value());
    ASSERT_TRUE(automatic.ok()) << row.name;
    expect_calls(dialect, strict, *automatic, 1);
  }
}

TEST(ToolConstraint, CompilesForEveryMarkupAndChoice) {
  const Value format = json::parse(R"({"type": "json_schema", "json_schema": {"type": "object"}})").value();
  for (const ToolFormat& row : tool_formats()) {
    for (const bool parallel : {false, true}) {
      for (const Value& answer : {Value(), format}) {
        const std::string reasoning = row.encoding == Encoding::kHarmony ? "openai_gptoss" : "qwen3";
        const Dialect dialect = {&row, find_reasoning_format(reasoning)};
        ParseOptions options = testing::options_of();
        options.parallel = parallel;
        options.tools[1].strict = true;
        const auto constraint = tool_constraint(dialect, options, answer);
        ASSERT_TRUE(constraint.ok()) << row.name << ": " << constraint.error().message;
        grammar::Spec spec;
        spec.kind = grammar::Spec::Kind::kStructuralTag;
        spec.json = *constraint;
        const auto translated = grammar::translate(spec, grammar::SpecialTokens());
        EXPECT_TRUE(translated.ok()) << row.name << ": " << translated.error().message;
      }
    }
  }
}

TEST(ToolConstraint, IsOnlyMadeWhereSomethingIsToBeConstrained) {
  const Dialect dialect = testing::dialect_of("hermes");
  EXPECT_TRUE(tool_constraint(dialect, one_tool(ToolChoice::kNone), Value()).value().is_null());
  EXPECT_TRUE(tool_constraint(dialect, one_tool(ToolChoice::kAuto), Value()).value().is_null());
  ParseOptions single = one_tool(ToolChoice::kAuto);
  single.parallel = false;
  const Value constraint = tool_constraint(dialect, single, Value()).value();
  EXPECT_EQ(*constraint.find("type"), Value("triggered_tags"));
  EXPECT_EQ(*constraint.find("stop_after_first"), Value(true));
  // The tool is not strict: any object will do.
  const Value& content = *constraint.find("tags")->as_array().front().find("content");
  EXPECT_EQ(*content.find("json_schema"), json::parse(R"({"type": "object"})").value());
}

TEST(ToolConstraint, AFormatOfTheAnswerIsTheAlternativeToCalls) {
  const Value format = json::parse(R"({"type": "json_schema", "json_schema": {"type": "object"}})").value();
  const Dialect dialect = testing::dialect_of("hermes");
  const Value both = tool_constraint(dialect, one_tool(ToolChoice::kAuto), format).value();
  EXPECT_EQ(*both.find("type"), Value("or"));
  EXPECT_EQ(both.find("elements")->as_array().back(), format);
  // A call that must come wins over the format.
  const Value required = tool_constraint(dialect, one_tool(ToolChoice::kRequired), format).value();
  EXPECT_EQ(json::dump(required).find(json::dump(format)), std::string::npos);
}

TEST(ToolConstraint, HermesCallsAreWrittenAsTheTemplateShowsThem) {
  ParseOptions options = one_tool(ToolChoice::kNamed);
  options.tools.front().parameters = Value();
  const Value constraint = tool_constraint(testing::dialect_of("hermes"), options, Value()).value();
  EXPECT_EQ(json::dump(constraint),
            R"({"type":"tags_with_separator","tags":[{"type":"tag","begin":"<tool_call>\n{\"name\": \"get_weather\", )"
            R"(\"arguments\": ","content":{"type":"json_schema","json_schema":{"type":"object","properties":{},)"
            R"("additionalProperties":false}},"end":"}\n</tool_call>"}],"separator":"\n","at_least_one":true,)"
            R"("stop_after_first":true})");
}

TEST(ToolConstraint, RefusesWhatItCannotConstrain) {
  const auto without = tool_constraint(Dialect{}, one_tool(ToolChoice::kRequired), Value());
  ASSERT_FALSE(without.ok());
  EXPECT_NE(without.error().message.find("--tool-call-parser"), std::string::npos);
  ParseOptions options = one_tool(ToolChoice::kRequired);
  options.tools.front().parameters =
      json::parse(R"({"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}})").value();
  const auto refused = tool_constraint(testing::dialect_of("step3"), options, Value());
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("\"maxLength\" of the parameter /properties/a"), std::string::npos);
  options.tools.front().parameters = json::parse(R"({"type": "string"})").value();
  const auto not_object = tool_constraint(testing::dialect_of("hermes"), options, Value());
  ASSERT_FALSE(not_object.ok());
  EXPECT_NE(not_object.error().message.find("write \"object\""), std::string::npos) << not_object.error().message;
  options = one_tool(ToolChoice::kNamed);
  options.named = "nobody";
  EXPECT_FALSE(tool_constraint(testing::dialect_of("hermes"), options, Value()).ok());
}

TEST(ToolConstraint, HarmonyMayThinkFirst) {
  const Dialect dialect = testing::dialect_of("openai", "openai_gptoss");
  const Value constraint = tool_constraint(dialect, one_tool(ToolChoice::kRequired), Value()).value();
  const Answer answer = parse_whole(dialect, one_tool(ToolChoice::kRequired), write(constraint, 1));
  EXPECT_EQ(answer.reasoning, "thoughts");
  ASSERT_EQ(answer.calls.size(), 1u);
  const Value format = json::parse(R"({"type": "json_schema", "json_schema": {"type": "object"}})").value();
  const Answer plain = parse_whole(dialect, ParseOptions{}, write(answer_constraint(dialect, format), 1));
  EXPECT_EQ(plain.content, kArguments);
}

}  // namespace
}  // namespace quire::markup
