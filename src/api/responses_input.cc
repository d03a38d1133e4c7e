// SPDX-License-Identifier: Apache-2.0
// Turns the items of the Responses API into messages of a chat.
#include "api/responses_input.h"

#include <utility>

#include "base/utf8.h"

namespace quire::api {
namespace {

bool is_assistant(const json::Value& message) {
  return message.find("role")->as_string() == "assistant";
}

// The items of one turn of the model (reasoning, text, calls) become one message.
class History {
 public:
  void add(std::string role, json::Value content) {
    if (role == "assistant" && open_) {  // the text that follows reasoning
      messages_.back().set("content", std::move(content));
    } else {
      messages_.emplace_back(json::Object{{"role", std::move(role)}, {"content", std::move(content)}});
    }
    open_ = false;
  }

  void add_reasoning(const std::string& text) {
    messages_.emplace_back(
        json::Object{{"role", "assistant"}, {"content", ""}, {"reasoning", text}, {"reasoning_content", text}});
    open_ = true;
  }

  void add_call(json::Value call) {
    if (messages_.empty() || !is_assistant(messages_.back())) {
      messages_.emplace_back(json::Object{{"role", "assistant"}, {"content", ""}});
    }
    json::Object& message = messages_.back().as_object();
    if (message.back().first != "tool_calls") message.emplace_back("tool_calls", json::Array{});
    message.back().second.as_array().push_back(std::move(call));
    ++calls_;
    open_ = false;
  }

  void add_result(const std::string& id, json::Value content) {
    messages_.emplace_back(json::Object{{"role", "tool"}, {"tool_call_id", id}, {"content", std::move(content)}});
    open_ = false;
  }

  int64_t num_calls() const { return calls_; }
  bool ends_with_assistant() const { return !messages_.empty() && is_assistant(messages_.back()); }
  json::Array take() { return std::move(messages_); }

 private:
  json::Array messages_;
  bool open_ = false;  // the last message is reasoning whose text may follow
  int64_t calls_ = 0;
};

ApiStatus add_message(const json::Value& item, const std::string& where, History& history) {
  QUIRE_ASSIGN(std::string role, string_at(item, "role", where));
  if (role != "user" && role != "assistant" && role != "system" && role != "developer") {
    return bad_field(where + ".role",
                     {"must be user, assistant, system or developer, got \"", utf8::beginning(role, 40), "\"."});
  }
  QUIRE_ASSIGN(json::Value content,
               text_content(item, "content", {"input_text", "output_text", "text", "refusal"}, where));
  history.add(std::move(role), std::move(content));
  return Ok{};
}

// A call of a function or, with `custom`, of a tool that takes a text.
ApiStatus add_call(const json::Value& item, const std::string& where, bool custom, History& history) {
  QUIRE_ASSIGN(std::string id, string_at(item, "call_id", where));
  QUIRE_ASSIGN(std::string name, string_at(item, "name", where));
  QUIRE_ASSIGN(const std::string text, string_at(item, custom ? "input" : "arguments", where));
  json::Value arguments = custom ? json::Value(json::Object{{kCustomInput, text}}) : arguments_object(text);
  history.add_call(history_call(std::move(id), std::move(name), std::move(arguments)));
  return Ok{};
}

ApiStatus add_result(const json::Value& item, const std::string& where, History& history) {
  QUIRE_ASSIGN(const std::string id, string_at(item, "call_id", where));
  QUIRE_ASSIGN(json::Value content, text_content(item, "output", {"input_text", "output_text", "text"}, where));
  history.add_result(id, std::move(content));
  return Ok{};
}

// The texts in a list of parts; parts without text are left out.
std::string texts_in(const json::Value& item, const char* name) {
  std::string out;
  const json::Value* parts = item.find(name);
  if (parts == nullptr || !parts->is_array()) return out;
  for (const json::Value& part : parts->as_array()) {
    const json::Value* text = part.find("text");
    if (text == nullptr || !text->is_string()) continue;
    if (!out.empty()) out += "\n";
    out += text->as_string();
  }
  return out;
}

ApiStatus add_item(const json::Value& item, const std::string& where, History& history) {
  const json::Value* type = item.find("type");
  const bool has_type = type != nullptr && !type->is_null();
  const std::string name = !has_type ? "message" : type->is_string() ? type->as_string() : "";
  if (name == "message") return add_message(item, where, history);
  if (name == "function_call") return add_call(item, where, false, history);
  if (name == "custom_tool_call") return add_call(item, where, true, history);
  if (name == "function_call_output" || name == "custom_tool_call_output") return add_result(item, where, history);
  if (name == "reasoning") {
    std::string text = texts_in(item, "content");
    if (text.empty()) text = texts_in(item, "summary");
    if (!text.empty()) history.add_reasoning(text);
    return Ok{};
  }
  return bad_field(where + ".type",
                   "must be message, function_call, function_call_output, custom_tool_call, custom_tool_call_output or "
                   "reasoning; this server takes no other items.");
}

}  // namespace

ApiResult<ChatInput> read_responses_input(const Body& body) {
  History history;
  if (const std::string text = body.string("instructions"); !text.empty()) history.add("system", text);
  ChatInput chat;
  const json::Value& input = *body.get("input");
  if (input.is_string()) {
    history.add("user", input);
    chat.messages = history.take();
    return chat;
  }
  const json::Array& items = input.as_array();
  for (size_t i = 0; i < items.size(); ++i) {
    QUIRE_TRY(add_item(items[i], "input[" + std::to_string(i) + "]", history));
  }
  // An answer that was cut short is continued, as in vLLM.
  const json::Value* status = items.back().find("status");
  const bool open = status != nullptr && status->is_string() &&
                    (status->as_string() == "in_progress" || status->as_string() == "incomplete");
  const bool is_message = items.back().find("role") != nullptr;
  chat.continue_final_message = open && is_message && history.ends_with_assistant();
  chat.add_generation_prompt = !chat.continue_final_message;
  chat.earlier_calls = history.num_calls();
  chat.messages = history.take();
  return chat;
}

}  // namespace quire::api
