// SPDX-License-Identifier: Apache-2.0
// Turns Anthropic's blocks into messages of a chat.
#include "api/messages_input.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"

namespace quire::api {
namespace {

constexpr int64_t kMinBudget = 1024;  // Anthropic's, for thinking

// Agents put a line with a new number into the system prompt of each request, for Anthropic's billing. With it the
// prefix cache would never find the prompt again.
bool is_billing_line(std::string_view text) {
  return text.rfind("x-anthropic-billing-header", 0) == 0;
}

ApiResult<std::string> read_system(const Body& body) {
  const json::Value* system = body.get("system");
  if (system == nullptr) return std::string();
  if (system->is_string()) return system->as_string();
  std::string joined;
  size_t at = 0;
  for (const json::Value& block : system->as_array()) {
    const std::string where = "system[" + std::to_string(at++) + "]";
    QUIRE_ASSIGN(const std::string type, string_at(block, "type", where));
    if (type != "text") return bad_field(where + ".type", "must be text.");
    QUIRE_ASSIGN(const std::string text, string_at(block, "text", where));
    if (!is_billing_line(text)) joined += text;
  }
  return joined;
}

// The member `name` of an object field, "" if it is absent. A value that is not one of `known` is refused: the error is
// the member's name and `refusal`.
ApiResult<std::string> known_member(const Body& body, const char* field, const char* name,
                                    std::initializer_list<std::string_view> known, const char* refusal) {
  const json::Value* object = body.get(field);
  const json::Value* value = object == nullptr ? nullptr : object->find(name);
  if (value == nullptr || value->is_null()) return std::string();
  if (value->is_string() && std::find(known.begin(), known.end(), value->as_string()) != known.end()) {
    return value->as_string();
  }
  return bad_field(std::string(field) + "." + name, refusal);
}

// Reads the turns of a conversation.
class Turns {
 public:
  ApiStatus add(const json::Value& turn, const std::string& where) {
    QUIRE_ASSIGN(std::string role, string_at(turn, "role", where));
    if (role != "user" && role != "assistant" && role != "system") {
      return bad_field(where + ".role", {"must be user or assistant, got \"", utf8::beginning(role, 40), "\"."});
    }
    const json::Value* content = turn.find("content");
    last_ = role;
    if (content == nullptr || !content->is_array()) {
      QUIRE_ASSIGN(json::Value text, text_content(turn, "content", {"text"}, where));
      messages_.emplace_back(json::Object{{"role", std::move(role)}, {"content", std::move(text)}});
      return Ok{};
    }
    return role == "assistant" ? add_answer(content->as_array(), where + ".content")
                               : add_blocks(content->as_array(), role, where + ".content");
  }

  void add_system(std::string text) {
    if (!text.empty()) messages_.emplace_back(json::Object{{"role", "system"}, {"content", std::move(text)}});
  }

  const std::string& last_role() const { return last_; }
  int64_t num_calls() const { return calls_; }
  json::Array take() { return std::move(messages_); }

 private:
  static ApiResult<std::string> type_of(const json::Value& block, const std::string& at) {
    if (!block.is_object()) return bad_field(at, "must be an object with a type.");
    return string_at(block, "type", at);
  }

  static json::Value one_or_list(json::Array parts) {
    if (parts.empty()) return json::Value("");
    if (parts.size() == 1) return *parts[0].find("text");
    return json::Value(std::move(parts));
  }

  static ApiResult<json::Value> text_part(const json::Value& block, const std::string& at) {
    QUIRE_ASSIGN(std::string text, string_at(block, "text", at));
    return json::Value(json::Object{{"type", "text"}, {"text", std::move(text)}});
  }

  static ApiFailure unknown_block(const std::string& type, const std::string& at, const char* known) {
    return bad_field(at + ".type",
                     {"is \"", utf8::beginning(type, 40), "\"; this server takes only ", known, " here."});
  }

  // A turn of the user: texts, and results of tools, each of which is a message of its own.
  ApiStatus add_blocks(const json::Array& blocks, const std::string& role, const std::string& where) {
    json::Array texts;
    bool results = false;
    const auto end_text = [&] {
      messages_.emplace_back(json::Object{{"role", role}, {"content", one_or_list(std::exchange(texts, {}))}});
    };
    for (size_t i = 0; i < blocks.size(); ++i) {
      const std::string at = where + "[" + std::to_string(i) + "]";
      QUIRE_ASSIGN(const std::string type, type_of(blocks[i], at));
      if (type == "text") {
        QUIRE_ASSIGN(json::Value part, text_part(blocks[i], at));
        texts.push_back(std::move(part));
      } else if (type == "tool_result" && role == "user") {
        if (!texts.empty()) end_text();
        QUIRE_TRY(add_result(blocks[i], at));
        results = true;
      } else {
        return unknown_block(type, at, "text and tool_result");
      }
    }
    if (!texts.empty() || !results) end_text();
    return Ok{};
  }

  ApiStatus add_result(const json::Value& block, const std::string& at) {
    QUIRE_ASSIGN(std::string id, string_at(block, "tool_use_id", at));
    json::Value content("");
    if (const json::Value* given = block.find("content"); given != nullptr && !given->is_null()) {
      QUIRE_ASSIGN(content, text_content(block, "content", {"text"}, at));
    }
    messages_.emplace_back(
        json::Object{{"role", "tool"}, {"tool_call_id", std::move(id)}, {"content", std::move(content)}});
    return Ok{};
  }

  // A turn of the model: thoughts, texts and calls make one message.
  ApiStatus add_answer(const json::Array& blocks, const std::string& where) {
    json::Array texts;
    json::Array calls;
    std::string thoughts;
    for (size_t i = 0; i < blocks.size(); ++i) {
      const std::string at = where + "[" + std::to_string(i) + "]";
      QUIRE_ASSIGN(const std::string type, type_of(blocks[i], at));
      if (type == "text") {
        QUIRE_ASSIGN(json::Value part, text_part(blocks[i], at));
        texts.push_back(std::move(part));
      } else if (type == "thinking") {
        QUIRE_ASSIGN(const std::string thought, string_at(blocks[i], "thinking", at));
        thoughts += thought;
      } else if (type == "tool_use") {
        QUIRE_ASSIGN(json::Value call, read_call(blocks[i], at));
        calls.push_back(std::move(call));
      } else if (type != "redacted_thinking") {
        return unknown_block(type, at, "text, tool_use and thinking");
      }
    }
    json::Value message(json::Object{{"role", "assistant"}, {"content", one_or_list(std::move(texts))}});
    if (!thoughts.empty()) {
      message.set("reasoning", thoughts);
      message.set("reasoning_content", thoughts);
    }
    calls_ += static_cast<int64_t>(calls.size());
    if (!calls.empty()) {
      message.set("tool_calls", std::move(calls));
      last_ = "calls";  // a turn that calls tools is complete
    }
    messages_.push_back(std::move(message));
    return Ok{};
  }

  static ApiResult<json::Value> read_call(const json::Value& block, const std::string& at) {
    QUIRE_ASSIGN(std::string id, string_at(block, "id", at));
    QUIRE_ASSIGN(std::string name, string_at(block, "name", at));
    const json::Value* input = block.find("input");
    if (input != nullptr && !input->is_null() && !input->is_object()) {
      return bad_field(at + ".input", "must be an object.");
    }
    return history_call(std::move(id), std::move(name),
                        input != nullptr && input->is_object() ? *input : json::Value(json::Object{}));
  }

  json::Array messages_;
  std::string last_;
  int64_t calls_ = 0;
};

ApiStatus read_thinking(const Body& body, MessagesInput& input) {
  QUIRE_ASSIGN(const std::string type, known_member(body, "thinking", "type", {"enabled", "disabled", "adaptive"},
                                                    "must be enabled, disabled or adaptive."));
  if (type == "disabled") {
    input.shows_thinking = false;
    set_effort(input.chat.kwargs, "none");
  }
  if (type != "enabled") return Ok{};
  const json::Value* budget = body.get("thinking")->find("budget_tokens");
  const int64_t most = body.integer("max_tokens").value_or(std::numeric_limits<int64_t>::max());
  if (budget == nullptr || !budget->is_int() || budget->as_int() < kMinBudget || budget->as_int() >= most) {
    return bad_field("thinking.budget_tokens", "must be an integer of at least 1024 and less than max_tokens.");
  }
  input.thinking_budget = budget->as_int();
  json::Value& kwargs = input.chat.kwargs;
  if (!kwargs.is_object()) kwargs = json::Object{};
  if (kwargs.find("enable_thinking") == nullptr) kwargs.set("enable_thinking", true);
  return Ok{};
}

}  // namespace

ApiResult<MessagesInput> read_messages_input(const Body& body) {
  MessagesInput input;
  input.chat.kwargs = body.take("chat_template_kwargs");
  QUIRE_TRY(read_thinking(body, input));
  QUIRE_ASSIGN(const std::string effort,
               known_member(body, "output_config", "effort", {"low", "medium", "high", "xhigh", "max"},
                            "must be low, medium, high, xhigh or max."));
  if (!effort.empty()) set_effort(input.chat.kwargs, effort);
  Turns turns;
  QUIRE_ASSIGN(std::string system, read_system(body));
  turns.add_system(std::move(system));
  const json::Array& given = body.get("messages")->as_array();
  for (size_t i = 0; i < given.size(); ++i) {
    QUIRE_TRY(turns.add(given[i], "messages[" + std::to_string(i) + "]"));
  }
  // A last turn of the assistant is the beginning of the answer: the model continues it.
  input.chat.continue_final_message = turns.last_role() == "assistant";
  input.chat.add_generation_prompt = !input.chat.continue_final_message;
  input.chat.earlier_calls = turns.num_calls();
  input.chat.messages = turns.take();
  return input;
}

}  // namespace quire::api
