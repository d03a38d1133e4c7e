// SPDX-License-Identifier: Apache-2.0
// Tools, choices and histories as the three APIs write them.
#include "api/tools.h"

#include <gtest/gtest.h>

#include "api/call_ids.h"
#include "api/messages_input.h"
#include "api/responses_input.h"
#include "api/tool_description.h"

namespace quire::api {
namespace {

using markup::ToolChoice;

constexpr const char* kTool = R"({"type":"function","function":{"name":"add","description":"Adds.",)"
                              R"("parameters":{"type":"object"},"strict":true,"defer_loading":true}})";

std::string with_tool(const std::string& rest) {
  return R"({"messages":[{"role":"user"}],"tools":[)" + std::string(kTool) + "]" + rest + "}";
}

ApiResult<ToolSet> chat_tools(const std::string& body) {
  auto parsed = Body::parse(body, chat_schema());
  if (!parsed.ok()) return parsed.error();
  return read_chat_tools(*parsed);
}

TEST(Tools, AreShownToTheTemplateWithoutOtherMembers) {
  auto set = chat_tools(with_tool(""));
  ASSERT_TRUE(set.ok());
  EXPECT_EQ(set->choice, ToolChoice::kAuto);
  EXPECT_TRUE(set->callable() && set->parallel && set->tools[0].strict);
  EXPECT_EQ(json::dump(set->shown),
            R"([{"type":"function","function":{"name":"add","description":"Adds.","parameters":{"type":"object"},)"
            R"("strict":true}}])");
  auto bare = chat_tools(R"({"messages":[{}],"tools":[{"function":{"name":"f"}}]})");
  ASSERT_TRUE(bare.ok());
  EXPECT_EQ(json::dump(bare->shown),
            R"([{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{}}}}])");
}

TEST(Tools, ChoicesOfChats) {
  EXPECT_EQ(chat_tools(with_tool(R"(,"tool_choice":"none")"))->choice, ToolChoice::kNone);
  EXPECT_EQ(chat_tools(with_tool(R"(,"tool_choice":"required","parallel_tool_calls":false)"))->choice,
            ToolChoice::kRequired);
  auto named = chat_tools(with_tool(R"(,"tool_choice":{"type":"function","function":{"name":"add"}})"));
  ASSERT_TRUE(named.ok());
  EXPECT_EQ(named->choice, ToolChoice::kNamed);
  EXPECT_EQ(named->named, "add");
  EXPECT_TRUE(chat_tools(R"({"messages":[{}],"tool_choice":"none"})").ok());
  EXPECT_FALSE(chat_tools(R"({"messages":[{}],"tool_choice":"auto"})").ok());
  auto allowed = chat_tools(
      R"({"messages":[{}],"tools":[{"function":{"name":"a"}},{"function":{"name":"b"}}],"tool_choice":{"type":)"
      R"("allowed_tools","allowed_tools":{"mode":"required","tools":[{"type":"function","function":{"name":"b"}}]}}})");
  ASSERT_TRUE(allowed.ok()) << allowed.error().message;
  EXPECT_EQ(allowed->choice, ToolChoice::kRequired);
  ASSERT_EQ(allowed->tools.size(), 1u);
  EXPECT_EQ(allowed->tools[0].name, "b");
  EXPECT_EQ(allowed->shown.as_array().size(), 1u);
}

TEST(Tools, OfResponsesAreFlatCustomOrInNamespaces) {
  auto body = Body::parse(
      R"({"input":"a","tools":[{"type":"function","name":"f"},{"type":"custom","name":"sh"},)"
      R"({"type":"namespace","name":"ns","tools":[{"type":"function","name":"g"}]}],"tool_choice":{"type":"custom","name":"sh"}})",
      responses_schema());
  ASSERT_TRUE(body.ok()) << body.error().message;
  auto set = read_responses_tools(*body);
  ASSERT_TRUE(set.ok()) << set.error().message;
  ASSERT_EQ(set->tools.size(), 3u);
  EXPECT_EQ(set->tools[2].name, "ns__g");
  EXPECT_TRUE(set->custom.contains("sh"));
  EXPECT_EQ(set->named, "sh");
}

TEST(Tools, OfMessages) {
  auto body = Body::parse(R"({"messages":[{}],"max_tokens":1,"tools":[{"name":"f","input_schema":{"type":"object"}}],)"
                          R"("tool_choice":{"type":"any","disable_parallel_tool_use":true}})",
                          messages_schema());
  ASSERT_TRUE(body.ok()) << body.error().message;
  auto set = read_messages_tools(*body);
  ASSERT_TRUE(set.ok());
  EXPECT_EQ(set->choice, ToolChoice::kRequired);
  EXPECT_FALSE(set->parallel);
}

TEST(History, OfChatsBecomesTheTemplatesForm) {
  json::Value messages =
      json::parse(R"([{"role":"assistant","reasoning_content":"r","tool_calls":[)"
                  R"({"id":"1","function":{"name":"f","arguments":"{\"a\": 1}"}},)"
                  R"({"id":"2","type":"function","function":{"name":"g","arguments":"{"}}]},)"
                  R"({"role":"tool","tool_call_id":"1"},{"role":"assistant","content":"x","tool_calls":[]}])")
          .value();
  auto calls = normalize_history(messages);
  ASSERT_TRUE(calls.ok());
  EXPECT_EQ(*calls, 2);
  EXPECT_EQ(json::dump(messages),
            R"([{"role":"assistant","reasoning_content":"r","tool_calls":[)"
            R"({"id":"1","function":{"name":"f","arguments":{"a":1}},"type":"function"},)"
            R"({"id":"2","type":"function","function":{"name":"g","arguments":{}}}],"reasoning":"r"},)"
            R"({"role":"tool","tool_call_id":"1","content":""},{"role":"assistant","content":"x"}])");
}

TEST(History, OfResponsesJoinsTheItemsOfATurn) {
  auto body = Body::parse(
      R"({"input":[{"role":"user","content":"q"},{"type":"reasoning","content":[{"type":"reasoning_text","text":"r"}]},)"
      R"({"type":"message","role":"assistant","content":[{"type":"output_text","text":"t"}]},)"
      R"({"type":"function_call","call_id":"1","name":"f","arguments":"{}"},)"
      R"({"type":"custom_tool_call","call_id":"2","name":"g","input":"ls"},)"
      R"({"type":"function_call_output","call_id":"1","output":"o"}]})",
      responses_schema());
  ASSERT_TRUE(body.ok());
  auto chat = read_responses_input(*body);
  ASSERT_TRUE(chat.ok()) << chat.error().message;
  EXPECT_EQ(chat->earlier_calls, 2);
  EXPECT_TRUE(chat->add_generation_prompt);
  EXPECT_EQ(
      json::dump(chat->messages),
      R"([{"role":"user","content":"q"},{"role":"assistant","content":"t","reasoning":"r","reasoning_content":"r",)"
      R"("tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":{}}},)"
      R"({"id":"2","type":"function","function":{"name":"g","arguments":{"input":"ls"}}}]},)"
      R"({"role":"tool","tool_call_id":"1","content":"o"}])");
}

TEST(History, OfResponsesMayHaveRefusals) {
  auto body = Body::parse(R"({"input":[{"role":"user","content":"q"},{"type":"message","role":"assistant","content":[)"
                          R"({"type":"refusal","refusal":"No."}]},{"role":"user","content":"why?"}]})",
                          responses_schema());
  ASSERT_TRUE(body.ok());
  auto chat = read_responses_input(*body);
  ASSERT_TRUE(chat.ok()) << chat.error().message;
  EXPECT_EQ(json::dump(chat->messages.as_array()[1]), R"({"role":"assistant","content":"No."})");
}

TEST(History, OfMessagesPartsBlocks) {
  auto body = Body::parse(
      R"({"max_tokens":1,"messages":[{"role":"user","content":"q"},{"role":"assistant","content":[)"
      R"({"type":"thinking","thinking":"r","signature":"s"},{"type":"redacted_thinking","data":"x"},)"
      R"({"type":"text","text":"t"},{"type":"tool_use","id":"1","name":"f","input":{"a":1}}]},)"
      R"({"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"o"},{"type":"text","text":"next"}]}]})",
      messages_schema());
  ASSERT_TRUE(body.ok());
  auto input = read_messages_input(*body);
  ASSERT_TRUE(input.ok()) << input.error().message;
  EXPECT_EQ(input->chat.earlier_calls, 1);
  EXPECT_EQ(
      json::dump(input->chat.messages),
      R"([{"role":"user","content":"q"},{"role":"assistant","content":"t","reasoning":"r","reasoning_content":"r",)"
      R"("tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":{"a":1}}}]},)"
      R"({"role":"tool","tool_call_id":"1","content":"o"},{"role":"user","content":"next"}])");
}

TEST(ToolDescription, JoinsTheSystemMessage) {
  json::Value messages = json::parse(R"([{"role":"system","content":"s"},{"role":"user","content":"u"}])").value();
  describe_tools(json::parse(R"([{"type":"function","function":{"name":"f"}}])").value(), true, messages);
  ASSERT_EQ(messages.as_array().size(), 2u);
  const std::string& text = messages.as_array()[0].find("content")->as_string();
  EXPECT_EQ(text.find("s\n\n"), 0u);
  EXPECT_NE(text.find(R"({"type":"function","function":{"name":"f"}})"), std::string::npos);
}

TEST(CallIds, FollowTheModel) {
  EXPECT_EQ(make_call_id(call_id_style("kimi_k2"), "x-", "f", 3), "functions.f:3");
  EXPECT_EQ(make_call_id(call_id_style("mistral"), "x-", "f", 3).size(), 9u);
  const std::string id = make_call_id(call_id_style("hermes"), "x-", "f", 3);
  EXPECT_EQ(id.size(), 34u);
  EXPECT_NE(id, make_call_id(call_id_style("hermes"), "x-", "f", 3));
}

// Gemma 2's template refuses system messages, so that every request with tools was refused.
TEST(Tools, AreDescribedToTheUserWithoutASystemRole) {
  auto messages = json::parse(R"([{"role":"user","content":"q"},{"role":"assistant","content":null,"tool_calls":[)"
                              R"({"id":"1","function":{"name":"f","arguments":{}}}]},)"
                              R"({"role":"tool","content":"r"},{"role":"user","content":"more"}])");
  describe_tools(json::parse(R"([{"type":"function","function":{"name":"f"}}])").value(), false, *messages);
  write_out_calls(*messages);
  ASSERT_EQ(messages->as_array().size(), 3u);
  const std::string first = messages->as_array()[0].find("content")->as_string();
  EXPECT_EQ(messages->as_array()[0].find("role")->as_string(), "user");
  EXPECT_NE(first.find("<tools>"), std::string::npos);
  EXPECT_EQ(first.substr(first.size() - 3), "\n\nq");
  EXPECT_EQ(json::dump(messages->as_array()[2]),
            R"({"role":"user","content":"<tool_response>\nr\n</tool_response>\n\nmore"})");
}

// A conversation with ids of another server ended with an error from Mistral's templates, and FunctionGemma's template
// called each tool "function".
TEST(Tools, CompletesResultsForTheTemplate) {
  const auto completed = [](CallIdStyle style, const std::string& id) {
    auto messages = json::parse(R"([{"role": "assistant", "tool_calls": [{"id": ")" + id +
                                R"(", "function": {"name": "f"}}]}, {"role": "tool", "tool_call_id": ")" + id +
                                R"("}, {"role": "tool", "tool_call_id": ")" + id +
                                R"(", "name": "own"}, {"role": "tool", "tool_call_id": "other"}])");
    complete_results(*messages, style, style == CallIdStyle::kRandom);
    return std::move(*messages);
  };
  const json::Value plain = completed(CallIdStyle::kRandom, "call_1");
  EXPECT_EQ(
      json::dump(plain),
      R"([{"role":"assistant","tool_calls":[{"id":"call_1","function":{"name":"f"}}]},)"
      R"({"role":"tool","tool_call_id":"call_1","name":"f"},{"role":"tool","tool_call_id":"call_1","name":"own"},)"
      R"({"role":"tool","tool_call_id":"other"}])");
  const json::Value fitted = completed(CallIdStyle::kShort, "call_1");
  EXPECT_EQ(fitted.as_array()[1].find("name"), nullptr) << "not for every template";
  const std::string id = fitted.as_array()[1].find("tool_call_id")->as_string();
  EXPECT_EQ(id.size(), 9u);
  EXPECT_EQ(id, fitted.as_array()[0].find("tool_calls")->as_array()[0].find("id")->as_string());
  EXPECT_NE(id, completed(CallIdStyle::kShort, "call_2").as_array()[1].find("tool_call_id")->as_string());
  EXPECT_EQ(completed(CallIdStyle::kShort, "abcDEF123").as_array()[1].find("tool_call_id")->as_string(), "abcDEF123");
}

}  // namespace
}  // namespace quire::api
