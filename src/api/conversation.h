// SPDX-License-Identifier: Apache-2.0
// What the endpoints that answer a conversation share: reading text out of lists of parts, and starting the answer.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "api/request_fields.h"

namespace quire::api {

// The string member `name` of an object; `where` is the object's place in the request, for errors.
ApiResult<std::string> string_at(const json::Value& object, const char* name, const std::string& where);

// The content of a message as chat templates take it: a string, or a list of text parts if there are several. `types`
// are the names that this endpoint has for text parts; a part of another type is refused.
ApiResult<json::Value> text_content(const json::Value& message, std::initializer_list<std::string_view> types,
                                    const std::string& where);

// Adds the reasoning effort to the template's variables, except where the request has set them itself.
void set_effort(json::Value& kwargs, const std::string& effort);

// Submits one prompt to the engine, which then answers through `generation`. After an error nothing has been started
// or sent.
ApiStatus start_one(Service& service, const HttpRequest& request, const Body& body, std::vector<int32_t> ids,
                    sampling::SamplingParams params, llm::ConstraintSpec constraint,
                    const std::shared_ptr<Generation>& generation);

}  // namespace quire::api
