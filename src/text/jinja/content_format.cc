// SPDX-License-Identifier: Apache-2.0
// Finds the shape of message contents that a template needs, and converts messages to it.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/utf8.h"
#include "text/jinja/ast.h"
#include "text/jinja/chat_template.h"

namespace quire::text {
namespace {

using jinja::Block;
using jinja::Expr;
using jinja::ExprKind;
using jinja::Program;
using jinja::Stmt;
using jinja::StmtKind;

void collect(const Block& block, std::vector<const Stmt*>* out) {
  for (const auto& stmt : block) {
    out->push_back(stmt.get());
    for (const auto& branch : stmt->branches) collect(branch.body, out);
    collect(stmt->body, out);
    collect(stmt->body2, out);
    if (stmt->macro != nullptr) collect(stmt->macro->body, out);
  }
}

// Filters, tests and slices of a variable still have the elements of that variable.
const Expr& without_wrapping(const Expr& expr) {
  const Expr* at = &expr;
  while ((at->kind == ExprKind::kFilter || at->kind == ExprKind::kTest || at->kind == ExprKind::kSlice) &&
         at->kids[0] != nullptr) {
    at = at->kids[0].get();
  }
  return *at;
}

class FormatFinder {
 public:
  explicit FormatFinder(const Program& program) : program_(program) { collect(program.body, &statements_); }

  bool loops_over_content() const {
    const std::set<std::string> messages = message_lists();
    std::set<std::string> items;
    for (const Stmt* stmt : statements_) {
      if (stmt->kind != StmtKind::kFor || stmt->target->kind != ExprKind::kName) continue;
      const Expr& iterated = without_wrapping(*stmt->value);
      if (iterated.kind == ExprKind::kName && messages.count(name(iterated)) > 0) items.insert(name(*stmt->target));
    }
    return std::any_of(statements_.begin(), statements_.end(), [&](const Stmt* stmt) {
      if (stmt->kind != StmtKind::kFor) return false;
      return is_content_of(without_wrapping(*stmt->value), items);
    });
  }

 private:
  const std::string& name(const Expr& expr) const { return program_.names[static_cast<size_t>(expr.name)].text(); }

  // "messages", and the variables that are set to it or to a part of it.
  std::set<std::string> message_lists() const {
    std::set<std::string> known = {"messages"};
    for (size_t before = 0; before != known.size();) {
      before = known.size();
      for (const Stmt* stmt : statements_) {
        if (stmt->kind != StmtKind::kSet || stmt->target->kind != ExprKind::kName) continue;
        const Expr& value = without_wrapping(*stmt->value);
        if (value.kind == ExprKind::kName && known.count(name(value)) > 0) known.insert(name(*stmt->target));
      }
    }
    return known;
  }

  bool is_content_of(const Expr& expr, const std::set<std::string>& items) const {
    if (expr.kids.empty() || expr.kids[0] == nullptr || expr.kids[0]->kind != ExprKind::kName) return false;
    if (items.count(name(*expr.kids[0])) == 0) return false;
    if (expr.kind == ExprKind::kAttr) return expr.constant.text() == "content";
    if (expr.kind != ExprKind::kItem) return false;
    const Expr& key = *expr.kids[1];
    return key.kind == ExprKind::kConst && key.constant.is_string() && key.constant.text() == "content";
  }

  const Program& program_;
  std::vector<const Stmt*> statements_;
};

// --- Normalising ---

// The text of a part of messages[message].content. No part without text is taken: a template that knows images would
// write an image's marker, and the model would answer as if it had seen one.
Result<std::string> text_of(const json::Value& part, size_t message, size_t index) {
  if (part.is_string()) return part.as_string();
  const auto where = [&] { return "messages[" + std::to_string(message) + "].content"; };
  if (!part.is_object()) {
    return invalid_argument({where(), "[", index, "] must be a string or an object with type and text, not ",
                             json::describe(part.kind()), "."});
  }
  const json::Value* named = part.find("type");
  const std::string type = named != nullptr && named->is_string() ? named->as_string() : "";
  const char* member = type == "refusal" ? "refusal" : type == "thinking" ? "thinking" : "text";
  const json::Value* text = part.find(member);
  if (text != nullptr && text->is_string()) return text->as_string();
  if (type == member || type.ends_with("text")) {
    return invalid_argument({where(), "[", index, "].", member, " must be a string."});
  }
  return invalid_argument({where(), " has a part of type \"", type.empty() ? "unknown" : utf8::beginning(type, 40),
                           "\"; only parts with text are taken."});
}

Result<json::Value> flatten_parts(const json::Array& parts, size_t message) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    QUIRE_ASSIGN(const std::string piece, text_of(parts[i], message, i));
    if (i > 0) text += "\n";
    text += piece;
  }
  return json::Value(std::move(text));
}

json::Value text_part(std::string text) {
  json::Value part{json::Object{}};
  part.set("type", "text");
  part.set("text", std::move(text));
  return part;
}

Result<json::Value> list_parts(const json::Value& content, size_t message, bool keep_thinking) {
  json::Array parts;
  if (content.is_string()) {
    parts.push_back(text_part(content.as_string()));
  } else if (content.is_array()) {
    for (size_t i = 0; i < content.as_array().size(); ++i) {
      const json::Value& part = content.as_array()[i];
      if (keep_thinking && is_thinking_part(part)) {
        parts.push_back(part);
        continue;
      }
      QUIRE_ASSIGN(std::string text, text_of(part, message, i));
      parts.push_back(text_part(std::move(text)));
    }
  }
  return json::Value(std::move(parts));
}

// Tool calls have their arguments as JSON text in the API, and as an object in templates.
Status parse_arguments(json::Value& message, size_t index) {
  if (message.find("tool_calls") == nullptr) return {};
  for (auto& [name, calls] : message.as_object()) {
    if (name != "tool_calls" || !calls.is_array()) continue;
    for (json::Value& call : calls.as_array()) {
      if (call.find("function") == nullptr) continue;
      for (auto& [member, function] : call.as_object()) {
        if (member != "function" || !function.is_object()) continue;
        const json::Value* arguments = function.find("arguments");
        if (arguments == nullptr || !arguments->is_string()) continue;
        const std::string text = arguments->as_string().empty() ? "{}" : arguments->as_string();
        auto parsed = json::parse(text);
        if (!parsed.ok()) {
          return invalid_argument({"messages[", index, "].tool_calls has arguments that are ", parsed.error().message});
        }
        function.set("arguments", std::move(parsed).value());
      }
    }
  }
  return {};
}

constexpr std::string_view kFirstPart = "QUIRE_PART_ONE", kSecondPart = "QUIRE_PART_TWO";

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

bool is_one_of(const json::Value* role, const std::vector<std::string>& roles) {
  return role != nullptr && role->is_string() &&
         std::find(roles.begin(), roles.end(), role->as_string()) != roles.end();
}

}  // namespace

Result<std::string> probe(const jinja::Template& parsed, json::Array messages, json::Value tools) {
  json::Value context{json::Object{}};
  context.set("messages", std::move(messages));
  context.set("tools", std::move(tools));
  context.set("documents", nullptr);
  context.set("add_generation_prompt", true);
  context.set("bos_token", "");
  context.set("eos_token", "");
  jinja::RenderOptions options;
  options.limits.max_steps = 50'000;  // a real template needs a few thousand, and there are some twenty probes
  options.limits.max_output_bytes = size_t{1} << 20;
  options.limits.max_memory_bytes = size_t{16} << 20;
  return parsed.render(context, options);
}

namespace {

// Renders one message of a user.
Result<std::string> probe_content(const jinja::Template& parsed, json::Value content) {
  return probe(parsed, {json::Object{{"role", "user"}, {"content", std::move(content)}}}, nullptr);
}

}  // namespace

// Rendering shows what a search in the source cannot, such as a macro that reads lists. A list that was printed as
// Python or JSON has a quote after its text. If a template fails on both probes, its source is searched instead.
TemplateTraits find_traits(const jinja::Template& parsed) {
  TemplateTraits traits;
  json::Array parts;
  parts.push_back(text_part(std::string(kFirstPart)));
  parts.push_back(text_part(std::string(kSecondPart)));
  const auto from_list = probe_content(parsed, std::move(parts));
  const auto from_string = probe_content(parsed, std::string(kFirstPart));
  const std::string first(kFirstPart);
  const bool takes_lists = from_list.ok() && contains(*from_list, kFirstPart) && contains(*from_list, kSecondPart) &&
                           !contains(*from_list, first + "'") && !contains(*from_list, first + "\"");
  const bool takes_strings = from_string.ok() && contains(*from_string, kFirstPart);
  traits.shows_strings = takes_strings || !takes_lists;
  if (takes_lists || (!takes_strings && FormatFinder(parsed.program()).loops_over_content())) {
    traits.format = ContentFormat::kOpenAi;
  }
  if (takes_lists) find_string_roles(parsed, traits);
  find_reasoning(parsed, takes_lists, traits);
  find_calls(parsed, traits);
  find_instructions(parsed, traits);
  return traits;
}

ContentRules content_rules(ContentFormat wanted, const TemplateTraits& traits) {
  switch (wanted) {
    case ContentFormat::kAuto:
      return {.join_lists = traits.format == ContentFormat::kString,
              .joined_roles = traits.string_roles,
              .keep_thinking = traits.reasoning == ReasoningPlace::kPart};
    case ContentFormat::kString:
      return {.join_lists = true, .fill_null = true};
    case ContentFormat::kOpenAi:
      return {.list_strings = true, .fill_null = true, .keep_thinking = traits.reasoning == ReasoningPlace::kPart};
    case ContentFormat::kAsIs:
      break;
  }
  return {};
}

Result<json::Value> normalize_messages(const json::Value& messages, const ContentRules& rules) {
  json::Value out = messages;
  if (!out.is_array()) return out;
  for (size_t i = 0; i < out.as_array().size(); ++i) {
    json::Value& message = out.as_array()[i];
    if (!message.is_object()) {
      return invalid_argument({"messages[", i, "] must be an object, not ", json::describe(message.kind()), "."});
    }
    QUIRE_TRY(parse_arguments(message, i));
    if (!rules.keep_thinking) name_thinking_parts(message);
    const json::Value* content = message.find("content");
    if (content != nullptr && (content->is_number() || content->is_bool() || content->is_object())) {
      return invalid_argument({"messages[", i, "].content must be a string or a list of parts, not ",
                               json::describe(content->kind()), "."});
    }
    if (content == nullptr || content->is_null()) {
      // As in vLLM, missing content (of an assistant that only calls tools) is empty content.
      if (rules.fill_null) message.set("content", rules.list_strings ? json::Value(json::Array{}) : json::Value(""));
    } else if (content->is_array() && (rules.join_lists || is_one_of(message.find("role"), rules.joined_roles))) {
      QUIRE_ASSIGN(json::Value text, flatten_parts(content->as_array(), i));
      message.set("content", std::move(text));
    } else if (content->is_array() || rules.list_strings) {
      QUIRE_ASSIGN(json::Value parts, list_parts(*content, i, rules.keep_thinking));
      message.set("content", std::move(parts));
    }
  }
  return out;
}

}  // namespace quire::text
