// SPDX-License-Identifier: Apache-2.0
// What the endpoints that answer a conversation share: reading text out of lists of parts, and starting the answer.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "api/request_fields.h"
#include "api/tools.h"

namespace quire::api {

// The string member `name` of an object; `where` is the object's place in the request, for errors.
ApiResult<std::string> string_at(const json::Value& object, const char* name, const std::string& where);

// The text in the member `name` of an object as chat templates take it: a string, or a list of text parts if there are
// several. `types` are the names that this endpoint has for text parts; a part of another type is refused.
ApiResult<json::Value> text_content(const json::Value& object, const char* name,
                                    std::initializer_list<std::string_view> types, const std::string& where);

// Shows the tools to the chat template. If it has no place for them, they are described in a system message, and past
// calls and results become text (see tool_description.h). Without tools, the conversation stays as it is.
void show_tools(const Service& service, const ToolSet& tools, ChatInput& input);

// How the answer to a conversation is read.
// REQUIRES: show_tools() has been called; `tail` is that of the prompt.
ApiResult<std::shared_ptr<AnswerFormat>> answer_format(const Service& service, const ToolSet& tools,
                                                       const ChatInput& input);
// What follows from the prompt: where the answer begins, and the special tokens that are markers.
void settle_format(const Service& service, const std::string& tail, AnswerFormat& format);

// Joins what constrains the answer: the calls of tools, the grammar that `constraint` has from the request, and the
// reasoning, which the grammar waits for and which may have `budget` tokens.
// REQUIRES: settle_format() has been called.
ApiStatus join_constraints(const AnswerFormat& format, std::optional<int64_t> budget, llm::ConstraintSpec& constraint);

// Submits one prompt to the engine, which then answers through `generation`. After an error nothing has been started
// or sent.
ApiStatus start_one(Service& service, const HttpRequest& request, const Body& body, std::vector<int32_t> ids,
                    sampling::SamplingParams params, llm::ConstraintSpec constraint,
                    const std::shared_ptr<Generation>& generation);

}  // namespace quire::api
