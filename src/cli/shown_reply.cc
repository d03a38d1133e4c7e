// SPDX-License-Identifier: Apache-2.0
// The text of the tokens is parsed as the server may have parsed it. A receipt does not say which parsers it had and
// which tools the request named, so all parsers whose markers occur are tried, with the tools that the reply calls.
#include "cli/shown_reply.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/json.h"
#include "base/utf8.h"
#include "llm/llm.h"
#include "markup/markup.h"
#include "text/detokenizer.h"

namespace quire::cli {
namespace {

using llm::Llm;
using llm::Receipt;
using llm::TextFindings;
using markup::Dialect;
using markup::Event;
using markup::ToolChoice;

constexpr const char* kTrimmed = " \t\r\n";
constexpr const char* kOtherText = "the text of the reply is not that of its tokens";
constexpr const char* kOtherCalls = "the tool calls of the reply are not those of its tokens";

std::string valid_text(std::string_view text) {
  std::string out;
  utf8::append_valid(out, text);
  return out;
}

std::string_view stripped(std::string_view text) {
  const size_t first = text.find_first_not_of(kTrimmed);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kTrimmed) + 1 - first);
}

std::string without_blanks(std::string text) {
  std::erase_if(text, [](char c) { return std::string_view(kTrimmed).find(c) != std::string_view::npos; });
  return text;
}

// --- Arguments of calls ---

// The value of arguments that may be cut off: what is open is closed.
std::optional<json::Value> value_of(const std::string& arguments) {
  std::string closers;  // of what is open, the innermost first
  bool in_string = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const char c = arguments[i];
    if (in_string && c == '\\') {
      ++i;
    } else if (c == '"') {
      in_string = !in_string;
    } else if (!in_string && (c == '{' || c == '[')) {
      closers.insert(closers.begin(), c == '{' ? '}' : ']');
    } else if (!in_string && (c == '}' || c == ']') && !closers.empty()) {
      closers.erase(closers.begin());
    }
  }
  std::string without_comma(stripped(arguments));
  if (without_comma.ends_with(',')) without_comma.pop_back();
  for (const std::string& text :
       {arguments, arguments + "\"", without_comma, arguments + "null", arguments + "\":null"}) {
    if (auto parsed = json::parse(text + closers); parsed.ok()) return *parsed;
  }
  return std::nullopt;
}

// A schema that this value follows: values that are not written as JSON are typed by it, as by that of the tool.
json::Value schema_of(const json::Value& value) {
  json::Value schema{json::Object{}};
  switch (value.kind()) {
    case json::Kind::kObject: {
      json::Value properties{json::Object{}};
      for (const auto& [name, member] : value.as_object()) properties.set(name, schema_of(member));
      schema.set("type", "object");
      schema.set("properties", std::move(properties));
      break;
    }
    case json::Kind::kArray:
      schema.set("type", "array");
      if (!value.as_array().empty()) schema.set("items", schema_of(value.as_array()[0]));
      break;
    case json::Kind::kNull:
      schema.set("type", "null");
      break;
    case json::Kind::kBool:
      schema.set("type", "boolean");
      break;
    case json::Kind::kInt:
      schema.set("type", "integer");
      break;
    case json::Kind::kDouble:
      schema.set("type", value.long_digits() != nullptr ? "integer" : "number");
      break;
    case json::Kind::kString:
      schema.set("type", "string");
      break;
  }
  return schema;
}

// Whether all names and values are somewhere in the text.
bool occurs(const json::Value& value, const std::string& text) {
  const auto has = [&](const std::string& one) { return text.find(one) != std::string::npos; };
  const auto has_text = [&](const std::string& one) {
    const std::string quoted = json::dump(json::Value(one));
    return has(one) || has(quoted.substr(1, quoted.size() - 2));
  };
  if (value.is_object()) {
    return std::ranges::all_of(value.as_object(),
                               [&](const json::Member& m) { return has_text(m.first) && occurs(m.second, text); });
  }
  if (value.is_array()) {
    return std::ranges::all_of(value.as_array(), [&](const json::Value& item) { return occurs(item, text); });
  }
  if (value.is_string()) return has_text(value.as_string());
  if (value.is_null()) return true;  // a cut may have made it
  if (value.is_bool()) return value.as_bool() ? has("true") || has("True") : has("false") || has("False");
  return has(json::dump(value));
}

// --- Parsing ---

struct Parsed {
  std::string content, reasoning;
  std::vector<ShownCall> calls;
};

Parsed parse(const Dialect& dialect, const markup::ParseOptions& options, const std::string& text, bool truncated) {
  markup::Parser parser(dialect, options);
  std::vector<Event> events;
  parser.feed(text, events);
  parser.finish(truncated, events);
  Parsed out;
  for (Event& event : events) {
    if (event.kind == Event::Kind::kContent) out.content += event.text;
    if (event.kind == Event::Kind::kReasoning) out.reasoning += event.text;
    if (event.kind == Event::Kind::kCallBegin) out.calls.push_back({event.name, ""});
    if (event.kind == Event::Kind::kArguments) out.calls.back().arguments += event.text;
  }
  return out;
}

// One chat reply and what its receipt says.
class ChatCheck {
 public:
  ChatCheck(const ShownReply& reply, const Receipt& receipt, const std::string& text, const Llm& llm)
      : reply_(reply), receipt_(receipt), text_(text), llm_(llm), tokenizer_(llm.tokenizer()) {
    if (tokenizer_ == nullptr) return;
    whole_ = valid_text(tokenizer_->decode(receipt.tokens, false));
    prompt_ = valid_text(tokenizer_->decode(receipt.prompt, false));
    for (const int32_t id : tokenizer_->added_ids()) {
      if (tokenizer_->is_special(id)) special_.emplace_back(id, tokenizer_->token_bytes(id));
    }
  }

  TextFindings run() {
    if (tokenizer_ == nullptr) return {};
    for (const ShownCall& call : reply_.calls) {
      const auto value = value_of(call.arguments);
      markup::Tool tool{call.name, "", value ? schema_of(*value) : json::Value(), false};
      tools_.push_back(std::move(tool));
    }
    if (tools_.empty()) tools_.push_back({"quire_no_tool", "", {}, false});
    std::optional<Found> best;
    for (const Dialect& dialect : dialects()) {
      for (const bool inside : {false, true}) {
        if (inside && dialect.reasoning == nullptr) continue;
        const auto found = try_dialect(dialect, inside);
        if (found && (!best || found->rank() < best->rank())) best = found;
        if (best && best->rank() == 0) return {};
      }
    }
    return best ? TextFindings(*best) : TextFindings{kOtherText, ""};
  }

 private:
  struct Found : TextFindings {
    bool weak = false;  // arguments were only looked for
    int rank() const { return !difference.empty() ? 3 : weak ? 2 : note.empty() ? 0 : 1; }
  };

  // The possible dialects, the model's own first. A dialect without a marker in the text reads it like its neighbours.
  std::vector<Dialect> dialects() const {
    std::string sources;
    if (const text::ChatTemplate* chat = llm_.chat_template()) {
      for (const std::string& name : chat->names()) sources += chat->source(name) + "\n";
    }
    std::vector<Dialect> tools, reasoning, out;
    const auto add = [&](std::vector<Dialect>& to, std::string_view tool, std::string_view reason, bool always) {
      const auto dialect = markup::choose_dialect(tool, reason, sources);
      if (!dialect.ok() || std::ranges::any_of(to, [&](const Dialect& one) {
            return one.tools == dialect->tools && one.reasoning == dialect->reasoning;
          })) {
        return;
      }
      if (always || std::ranges::any_of(markup::marker_texts(*dialect), [&](const std::string& marker) {
            return whole_.find(marker) != std::string::npos;
          })) {
        to.push_back(*dialect);
      }
    };
    add(tools, "none", "none", true);
    add(tools, "auto", "none", true);
    for (const auto name : markup::tool_parser_names()) {
      add(tools, name, "none", name == "hermes" || !reply_.calls.empty());
    }
    add(reasoning, "none", "none", true);
    add(reasoning, "none", "auto", true);
    for (const auto name : markup::reasoning_parser_names()) {
      add(reasoning, "none", name, name == "qwen3" || name == "deepseek_r1");
    }
    for (const Dialect& reason : reasoning) {
      if (reason.reasoning == nullptr && !reply_.reasoning.empty()) continue;
      for (const Dialect& tool : tools) {
        if (tool.tools != nullptr || reply_.calls.empty()) out.push_back({tool.tools, reason.reasoning});
      }
    }
    return out;
  }

  // The text in which the dialect's markers are shown.
  const std::string& text_for(const Dialect& dialect) {
    // With stop strings the receipt says what was shown.
    if (!receipt_.params.stop.empty()) return text_;
    std::vector<int32_t> kept;
    const std::vector<std::string> markers = markup::marker_texts(dialect);
    for (const auto& [id, shown] : special_) {
      if (!shown.empty() && std::ranges::any_of(markers, [&, &name = shown](const std::string& marker) {
            return marker.find(name) != std::string::npos;
          })) {
        kept.push_back(id);
      }
    }
    std::sort(kept.begin(), kept.end());
    const auto [it, is_new] = texts_.try_emplace(kept);
    if (is_new) {
      const sampling::SamplingParams& params = receipt_.params;
      text::Detokenizer detokenizer(tokenizer_, params.skip_special_tokens, params.spaces_between_special_tokens, kept);
      const bool drop_last = receipt_.finish == "stop" && !params.include_stop_str_in_output;
      for (size_t i = 0; i + (drop_last ? 1 : 0) < receipt_.tokens.size(); ++i) {
        it->second += detokenizer.push(receipt_.tokens[i]);
      }
      it->second += detokenizer.flush();
    }
    return it->second;
  }

  std::optional<Found> try_dialect(const Dialect& dialect, bool inside) {
    const std::string& text = text_for(dialect);
    const bool truncated = receipt_.finish == "length";
    markup::ParseOptions options;
    options.tools = tools_;
    options.starts_in_reasoning = inside;
    std::optional<Found> found;
    const auto attempt = [&](ToolChoice choice, bool parallel) {
      options.choice = dialect.tools == nullptr ? ToolChoice::kNone : choice;
      options.parallel = parallel;
      const auto one = compare(parse(dialect, options, text, truncated));
      if (one && (!found || one->rank() < found->rank())) found = one;
    };
    attempt(ToolChoice::kAuto, true);
    if (dialect.tools == nullptr) return found;
    if (reply_.calls.empty()) {
      attempt(ToolChoice::kNone, true);
    } else {
      attempt(ToolChoice::kAuto, false);
    }
    if (!found || !found->difference.empty()) return found;
    // Calls may have been left out because the request said so, which the receipt does not show.
    options.tools.clear();
    options.choice = ToolChoice::kAuto;
    options.parallel = true;
    if (parse(dialect, options, text, truncated).calls.size() > reply_.calls.size()) {
      found->note = std::string("its tokens have tool calls that the reply does not show") +
                    (found->note.empty() ? "" : "; ") + found->note;
    }
    return found;
  }

  // Nothing if the texts differ.
  std::optional<Found> compare(const Parsed& parsed) const {
    if (valid_text(parsed.reasoning) != reply_.reasoning) return std::nullopt;
    Found found;
    const std::string content = valid_text(parsed.content);
    // Blanks between content and calls are dropped.
    const bool same =
        reply_.calls.empty() ? content == reply_.text : without_blanks(content) == without_blanks(reply_.text);
    if (!same) {
      const std::string_view tail = reply_.calls.empty() ? std::string_view(content) : stripped(content);
      if (!reply_.text.ends_with(tail)) return std::nullopt;
      const std::string head = reply_.text.substr(0, reply_.text.size() - tail.size());
      if (!is_echo(head)) return std::nullopt;
      found.note = "its first " + std::to_string(head.size()) + " bytes were taken for an echo of the last message";
    }
    bool equal = parsed.calls.size() == reply_.calls.size();
    for (size_t i = 0; equal && i < parsed.calls.size(); ++i) {
      const ShownCall& here = parsed.calls[i];
      const ShownCall& there = reply_.calls[i];
      equal = here.name == there.name;
      if (!equal || valid_text(here.arguments) == there.arguments) continue;
      const auto a = value_of(valid_text(here.arguments)), b = value_of(there.arguments);
      if (a && b && *a == *b) continue;
      equal = a && b && occurs(*b, whole_);
      found.weak = true;
    }
    if (!equal) found.difference = kOtherCalls;
    if (equal && found.weak) {
      found.note += (found.note.empty() ? "" : "; ");
      found.note += "tool calls were not checked, but their values are in the text";
    }
    return found;
  }

  // Whether this may be the text of the last message: a line ends, or a special token stands, after it in the prompt.
  bool is_echo(std::string_view head) const {
    const std::string_view text = stripped(head);
    if (text.empty()) return head.empty();
    for (size_t at = prompt_.find(text); at != std::string::npos; at = prompt_.find(text, at + 1)) {
      std::string_view rest = std::string_view(prompt_).substr(at + text.size());
      if (const size_t first = rest.find_first_not_of(" \t"); first != std::string_view::npos) {
        rest.remove_prefix(first);
      } else {
        return true;
      }
      if (rest.starts_with('\n') || rest.starts_with('\r')) return true;
      for (const auto& [id, shown] : special_) {
        if (!shown.empty() && rest.starts_with(shown)) return true;
      }
    }
    return false;
  }

  const ShownReply& reply_;
  const Receipt& receipt_;
  const std::string& text_;
  const Llm& llm_;
  text::TokenizerPtr tokenizer_;
  std::string whole_, prompt_;  // with all special tokens
  std::vector<std::pair<int32_t, std::string>> special_;
  std::vector<markup::Tool> tools_;
  std::map<std::vector<int32_t>, std::string> texts_;  // by the special tokens that are shown
};

// Whether the text is what echo shows of the prompt.
bool is_prompt(const std::string& text, const Receipt& receipt, const Llm& llm) {
  const text::TokenizerPtr& tokenizer = llm.tokenizer();
  if (tokenizer == nullptr) return text.empty();
  for (const bool flag : {false, true}) {
    if (valid_text(tokenizer->decode(receipt.prompt, flag)) == text) return true;
    if (tokenizer->encode(text, {.add_special_tokens = flag}) == receipt.prompt) return true;
  }
  return false;
}

}  // namespace

std::string finish_difference(const ShownReply& reply, const Receipt& receipt) {
  const bool calls = reply.finish == "tool_calls";
  if (reply.finish.empty() || (calls ? "stop" : reply.finish) == receipt.finish) {
    return calls && reply.calls.empty() && !reply.partial ? kOtherCalls : "";
  }
  return "the finish_reason of the reply is " + reply.finish + ", and its answer ended by " + receipt.finish;
}

TextFindings check_shown(const ShownReply& reply, const Receipt& receipt, const std::string& text, const Llm& llm) {
  if (reply.partial) return {"", "the text of the reply was not checked"};
  if (reply.chat) return ChatCheck(reply, receipt, text, llm).run();
  const std::string shown = valid_text(text);
  if (reply.text == shown) return {};
  const bool echoes =
      reply.text.ends_with(shown) && is_prompt(reply.text.substr(0, reply.text.size() - shown.size()), receipt, llm);
  return {echoes ? "" : kOtherText, ""};
}

}  // namespace quire::cli
