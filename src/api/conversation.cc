// SPDX-License-Identifier: Apache-2.0
// Reading the messages of a conversation, and starting its answer.
#include "api/conversation.h"

#include <algorithm>
#include <utility>

namespace quire::api {

ApiResult<std::string> string_at(const json::Value& object, const char* name, const std::string& where) {
  const json::Value* value = object.find(name);
  const std::string place = where + "." + name;
  if (value == nullptr || value->is_null()) return bad_field(place, "is missing; it is required.");
  if (!value->is_string()) {
    return bad_field(place, std::string("must be a string, not ") + json::describe(value->kind()) + ".");
  }
  return value->as_string();
}

ApiResult<json::Value> text_content(const json::Value& message, std::initializer_list<std::string_view> types,
                                    const std::string& where) {
  const json::Value* content = message.find("content");
  const std::string place = where + ".content";
  if (content == nullptr || content->is_null()) return bad_field(place, "is missing; it is required.");
  if (content->is_string()) return *content;
  if (!content->is_array()) return bad_field(place, "must be a string or a list of parts with text.");
  json::Array parts;
  for (const json::Value& part : content->as_array()) {
    const std::string at = place + "[" + std::to_string(parts.size()) + "]";
    if (!part.is_object()) return bad_field(at, "must be an object with type and text.");
    QUIRE_ASSIGN(const std::string type, string_at(part, "type", at));
    if (std::find(types.begin(), types.end(), type) == types.end()) {
      return bad_field(at + ".type", "is \"" + type.substr(0, 40) + "\"; this server takes only \"" +
                                         std::string(*types.begin()) + "\" for now.");
    }
    QUIRE_ASSIGN(std::string text, string_at(part, "text", at));
    parts.emplace_back(json::Object{{"type", "text"}, {"text", std::move(text)}});
  }
  if (parts.empty()) return json::Value("");
  if (parts.size() == 1) return *parts[0].find("text");
  return json::Value(std::move(parts));
}

void set_effort(json::Value& kwargs, const std::string& effort) {
  if (!kwargs.is_object()) kwargs = json::Object{};
  if (kwargs.find("reasoning_effort") == nullptr) kwargs.set("reasoning_effort", effort);
  if (kwargs.find("enable_thinking") == nullptr) kwargs.set("enable_thinking", effort != "none");
}

ApiStatus start_one(Service& service, const HttpRequest& request, const Body& body, std::vector<int32_t> ids,
                    sampling::SamplingParams params, llm::ConstraintSpec constraint,
                    const std::shared_ptr<Generation>& generation) {
  llm::GenerateRequest generate;
  generate.prompt = std::move(ids);
  generate.params = std::move(params);
  generate.constraint = std::move(constraint);
  QUIRE_TRY(read_scheduling(request, body, generate));
  QUIRE_ASSIGN(engine::Request ready, service.model().prepare(std::move(generate)));
  std::vector<engine::Request> requests;
  requests.push_back(std::move(ready));
  return generation->start(std::move(requests));
}

}  // namespace quire::api
