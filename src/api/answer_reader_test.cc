// SPDX-License-Identifier: Apache-2.0
// Answers that are read delta by delta.
#include "api/answer_reader.h"

#include <gtest/gtest.h>

namespace quire::api {
namespace {

using Kind = markup::Event::Kind;

std::shared_ptr<AnswerFormat> hermes(bool thinks = false) {
  auto format = std::make_shared<AnswerFormat>();
  format->dialect = markup::choose_dialect("hermes", thinks ? "qwen3" : "none", "").value();
  format->options.tools.push_back({"f", "", {}, false});
  format->options.choice = markup::ToolChoice::kAuto;
  format->options.starts_in_reasoning = thinks;
  format->call_prefix = "call-";
  return format;
}

// Feeds the texts as one token each; the last one ends the answer.
std::vector<AnswerEvent> read_all(AnswerReader& reader, const std::vector<std::string>& texts,
                                  engine::FinishReason finish = engine::FinishReason::kStop) {
  std::vector<AnswerEvent> events;
  for (size_t i = 0; i < texts.size(); ++i) {
    llm::Delta delta;
    delta.text = texts[i];
    delta.tokens = {static_cast<int32_t>(i)};
    if (i + 1 == texts.size()) delta.finish = finish;
    reader.read(delta, events);
  }
  return events;
}

TEST(AnswerReader, WithoutAParserAllTextIsContent) {
  AnswerReader reader(std::make_shared<AnswerFormat>());
  const auto events = read_all(reader, {"<tool_call>", "x", ""});
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].text, "<tool_call>x");
  EXPECT_EQ(reader.joined(Kind::kContent), "<tool_call>x");
}

TEST(AnswerReader, PartsTextAndCalls) {
  AnswerReader reader(hermes());
  const auto events = read_all(reader, {"Let me", " see.\n\n", "<tool_", "call>\n{\"name\": \"f\", \"argu",
                                        "ments\": {\"a\"", ": 1}}\n</tool_call>", "\n"});
  ASSERT_EQ(reader.parts().size(), 2u);
  EXPECT_EQ(reader.parts()[0].text, "Let me see.") << "white space before a call is dropped";
  EXPECT_EQ(reader.parts()[1].kind, Kind::kCallBegin);
  EXPECT_EQ(reader.parts()[1].name, "f");
  EXPECT_EQ(reader.parts()[1].id.find("call-"), 0u);
  EXPECT_EQ(json::dump(json::parse(reader.parts()[1].text).value()), R"({"a":1})");
  EXPECT_EQ(reader.num_calls(), 1);
  std::string content, arguments;
  for (const AnswerEvent& event : events) {
    if (event.kind == Kind::kContent) content += event.text;
    if (event.kind == Kind::kArguments) arguments += event.text;
  }
  EXPECT_EQ(content, "Let me see.") << "events are the parts";
  EXPECT_EQ(arguments, reader.parts()[1].text);
}

TEST(AnswerReader, KeepsBlanksWithoutCalls) {
  AnswerReader reader(hermes());
  read_all(reader, {" a", "\n", "\n"});
  EXPECT_EQ(reader.joined(Kind::kContent), " a\n\n");
}

TEST(AnswerReader, CountsAndHidesReasoning) {
  const std::vector<std::string> texts = {"<think>", "a", "b", "</think>", "c"};
  AnswerReader reader(hermes(true));
  read_all(reader, texts);
  EXPECT_EQ(reader.joined(Kind::kReasoning), "ab");
  EXPECT_EQ(reader.joined(Kind::kContent), "c");
  EXPECT_EQ(reader.reasoning_tokens(), 2);
  auto format = hermes(true);
  format->include_reasoning = false;
  AnswerReader hiding(format);
  read_all(hiding, texts);
  EXPECT_EQ(hiding.joined(Kind::kReasoning), "");
  EXPECT_EQ(hiding.joined(Kind::kContent), "c");
  EXPECT_EQ(hiding.reasoning_tokens(), reader.reasoning_tokens());
}

TEST(AnswerReader, GivesContentItsLogprobs) {
  auto format = hermes(true);
  format->keep_rows = true;
  AnswerReader reader(format);
  std::vector<AnswerEvent> events;
  int32_t token = 0;
  for (const char* text : {"a", "</think>", "b", "c"}) {
    llm::Delta delta;
    delta.text = text;
    delta.tokens = {token};
    delta.logprobs = {{{token++, -1.0f, 1}}};
    if (token == 4) delta.finish = engine::FinishReason::kStop;
    reader.read(delta, events);
  }
  const AnswerPart& last = reader.parts().back();
  ASSERT_EQ(last.kind, Kind::kContent);
  ASSERT_FALSE(last.logprobs.empty());
  ASSERT_EQ(last.logprobs.size(), 2u) << "neither the reasoning nor the marker is content";
  EXPECT_EQ(last.logprobs[0][0].token, 2);
  EXPECT_EQ(last.logprobs[1][0].token, 3);
}

// With accepted drafts a delta has several tokens; how many depends on other requests. The counts and the logprobs of
// the content depended on it.
TEST(AnswerReader, ReadsDeltasOfSeveralTokensAsThoseOfOne) {
  const std::vector<std::string> texts = {"<think>",
                                          "a",
                                          "b",
                                          "</",
                                          "think>",
                                          "\n\n",
                                          "c",
                                          " d",
                                          "\n<tool_call>",
                                          "{\"name\"",
                                          ": \"f\", \"arguments\": {}}",
                                          "</tool_",
                                          "call>",
                                          ""};
  const auto read = [&](size_t most) {
    auto format = hermes(true);
    format->keep_rows = true;
    AnswerReader reader(format);
    std::vector<AnswerEvent> events;
    for (size_t i = 0; i < texts.size();) {
      llm::Delta delta;
      for (const size_t begin = i; i < texts.size() && i < begin + most; ++i) {
        delta.text += texts[i];
        delta.tokens.push_back(static_cast<int32_t>(i));
        delta.logprobs.push_back({{static_cast<int32_t>(i), -1.0f, 1}});
        if (most > 1) delta.text_ends.push_back(delta.text.size());
      }
      if (i == texts.size()) delta.finish = engine::FinishReason::kStop;
      reader.read(delta, events);
    }
    std::string out = std::to_string(reader.reasoning_tokens());
    for (const AnswerPart& part : reader.parts()) {
      out += "|" + part.text + part.name;
      for (const auto& row : part.logprobs) out += " " + std::to_string(row[0].token);
    }
    return out;
  };
  const std::string one = read(1);
  EXPECT_EQ(one, "3|ab|c d 5 6 7|{}f");
  for (size_t most = 2; most <= texts.size(); ++most) EXPECT_EQ(read(most), one) << most;
}

}  // namespace
}  // namespace quire::api
