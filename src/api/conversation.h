// SPDX-License-Identifier: Apache-2.0
// What the other forms of a chat (/v1/responses, /v1/messages) share: reading text out of lists of parts, and starting.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/request_fields.h"

namespace quire::api {

// The string at `name` of an object; an error names `where`, the object's place.
inline ApiResult<std::string> string_at(const json::Value& object, const char* name, const std::string& where) {
  const json::Value* value = object.find(name);
  const std::string place = where + "." + name;
  if (value == nullptr || value->is_null()) return bad_request(place + " is missing; it is required.", place);
  if (!value->is_string()) {
    return bad_request(place + " must be a string, not " + json::describe(value->kind()) + ".", place);
  }
  return value->as_string();
}

// A message's content as chat templates know it: a string, or a list of text parts when there are several. `types` are
// the names under which this form knows text; a part of another type is refused.
inline ApiResult<json::Value> text_content(const json::Value& message, std::initializer_list<std::string_view> types,
                                           const std::string& where) {
  const json::Value* content = message.find("content");
  const std::string place = where + ".content";
  if (content == nullptr || content->is_null()) return bad_request(place + " is missing; it is required.", place);
  if (content->is_string()) return *content;
  if (!content->is_array()) return bad_request(place + " must be a string or a list of parts with text.", place);
  json::Array parts;
  for (const json::Value& part : content->as_array()) {
    const std::string at = place + "[" + std::to_string(parts.size()) + "]";
    if (!part.is_object()) return bad_request(at + " must be an object with type and text.", at);
    auto type = string_at(part, "type", at);
    if (!type.ok()) return type.error();
    if (std::find(types.begin(), types.end(), *type) == types.end()) {
      return bad_request(at + ".type is \"" + type->substr(0, 40) + "\"; this server takes only \"" +
                             std::string(*types.begin()) + "\" for now.",
                         at + ".type");
    }
    auto text = string_at(part, "text", at);
    if (!text.ok()) return text.error();
    parts.emplace_back(json::Object{{"type", "text"}, {"text", std::move(*text)}});
  }
  if (parts.empty()) return json::Value("");
  if (parts.size() == 1) return *parts[0].find("text");
  return json::Value(std::move(parts));
}

// Lays a form's reasoning effort among the template's variables; the request's own variables win.
inline void set_effort(json::Value& kwargs, const std::string& effort) {
  if (!kwargs.is_object()) kwargs = json::Object{};
  if (kwargs.find("reasoning_effort") == nullptr) kwargs.set("reasoning_effort", effort);
  if (kwargs.find("enable_thinking") == nullptr) kwargs.set("enable_thinking", effort != "none");
}

// Prepares one prompt and starts the answer. An error: nothing was started or sent.
inline ApiStatus start_one(Service& service, const HttpRequest& request, const Body& body, std::vector<int32_t> ids,
                           sampling::SamplingParams params, const std::shared_ptr<Generation>& answer) {
  llm::GenerateRequest generate;
  generate.prompt = std::move(ids);
  generate.params = std::move(params);
  if (auto scheduling = read_scheduling(request, body, generate); !scheduling.ok()) return scheduling.error();
  auto ready = service.model().prepare(std::move(generate));
  if (!ready.ok()) return to_api_error(ready.error());
  std::vector<engine::Request> requests;
  requests.push_back(std::move(*ready));
  return answer->start(std::move(requests));
}

}  // namespace quire::api
