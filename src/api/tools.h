// SPDX-License-Identifier: Apache-2.0
// The tools of a request, and the calls and results in its history, as the three APIs write them.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "api/call_ids.h"
#include "api/schema.h"
#include "markup/markup.h"

namespace quire::api {

// The tools that the model may call in one answer. Empty, with the choice none, if the request has no tools.
struct ToolSet {
  std::vector<markup::Tool> tools;
  json::Value shown;  // the same for the chat template: a list of {"type": "function", "function": {...}}; or null
  markup::ToolChoice choice = markup::ToolChoice::kNone;
  std::string named;                       // with kNamed
  bool parallel = true;                    // false: at most one call
  std::unordered_set<std::string> custom;  // names of tools that take one text instead of JSON (Responses)

  bool callable() const { return !tools.empty() && choice != markup::ToolChoice::kNone; }
};

// The longest name of a tool, in bytes.
inline constexpr size_t kMaxToolName = 256;
// The argument of a custom tool that holds its text.
inline constexpr const char* kCustomInput = "input";

// The fields tools, tool_choice and parallel_tool_calls (disable_parallel_tool_use) in the form of each API. The error
// names the member that is wrong.
ApiResult<ToolSet> read_chat_tools(const Body& body);
ApiResult<ToolSet> read_responses_tools(const Body& body);
ApiResult<ToolSet> read_messages_tools(const Body& body);

// Changes the messages of a chat from the API's form to that of templates: the arguments of calls become objects
// (arguments that are no JSON object become {}, with a warning in the log, so that a conversation with a broken call
// stays usable), an empty list of calls disappears, and reasoning has both of its names. Returns the number of calls.
ApiResult<int64_t> normalize_history(json::Value& messages);

// Gives calls and results ids that the template takes and, for `named`, results without a name the name of their tool:
// clients of OpenAI and Anthropic do not send it, and some templates show it.
void complete_results(json::Value& messages, CallIdStyle style, bool named);

// The arguments of a call as the object that they should be: {} if the text is anything else.
json::Value arguments_object(const std::string& text);
// A call in a message of the assistant, in the template's form.
json::Value history_call(std::string id, std::string name, json::Value arguments);

}  // namespace quire::api
