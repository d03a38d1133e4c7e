// SPDX-License-Identifier: Apache-2.0
// Chooses the parsers of tool calls and reasoning for a model.
#include "api/markup_choice.h"

#include <algorithm>

namespace quire::api {
namespace {

constexpr std::string_view kDescribed = "hermes";  // the markup that tool_description.h teaches

std::string template_sources(const llm::Llm& llm) {
  std::string sources;
  const text::ChatTemplate* chat = llm.chat_template();
  if (chat == nullptr) return sources;
  for (const std::string& name : chat->names()) sources += chat->source(name) + "\n";
  return sources;
}

// The special tokens that are in one of the dialect's markers.
std::vector<int32_t> markers_of(const text::Tokenizer& tokenizer, const markup::Dialect& dialect) {
  const std::vector<std::string> markers = markup::marker_texts(dialect);
  std::vector<int32_t> kept;
  for (const int32_t id : tokenizer.added_ids()) {
    if (!tokenizer.is_special(id)) continue;
    const std::string text = tokenizer.token_bytes(id);
    const bool named = !text.empty() && std::any_of(markers.begin(), markers.end(), [&](const std::string& marker) {
      return marker.find(text) != std::string::npos;
    });
    if (named) kept.push_back(id);
  }
  return kept;
}

}  // namespace

bool template_shows_tools(const llm::Llm& llm, const text::ChatTemplate* other) {
  constexpr const char* kName = "quire_probe_of_tools";
  text::ChatRequest probe;
  probe.messages = json::Array{json::Object{{"role", "user"}, {"content", "Hello"}}};
  const json::Value parameters(json::Object{{"type", "object"}, {"properties", json::Object{}}});
  json::Value function(json::Object{{"name", kName}, {"description", "A probe."}, {"parameters", parameters}});
  probe.tools = json::Array{json::Object{{"type", "function"}, {"function", std::move(function)}}};
  auto prompt = llm.render_chat(std::move(probe), other);
  return prompt.ok() && prompt->text.find(kName) != std::string::npos;
}

Result<MarkupChoice> choose_markup(const llm::Llm& llm, std::string_view tool_parser,
                                   std::string_view reasoning_parser) {
  const std::string sources = template_sources(llm);
  MarkupChoice choice;
  QUIRE_ASSIGN(choice.dialect, markup::choose_dialect(tool_parser, reasoning_parser, sources));
  if (llm.chat_template() != nullptr && llm.tokenizer() != nullptr && tool_parser != "none") {
    choice.describes_tools = !template_shows_tools(llm);
    if (tool_parser == "auto" && (choice.describes_tools || choice.dialect.tools == nullptr)) {
      QUIRE_ASSIGN(const markup::Dialect described, markup::choose_dialect(kDescribed, "none", sources));
      choice.dialect.tools = described.tools;
    }
  }
  if (llm.tokenizer() != nullptr) {
    choice.kept_special = markers_of(*llm.tokenizer(), choice.dialect);
    choice.kept_reasoning = markers_of(*llm.tokenizer(), {nullptr, choice.dialect.reasoning});
  }
  return choice;
}

std::string describe(const MarkupChoice& choice) {
  const markup::Dialect& dialect = choice.dialect;
  std::string out = "tool calls: ";
  out += dialect.tools == nullptr ? "not parsed" : markup::name(*dialect.tools);
  if (choice.describes_tools && dialect.tools != nullptr) out += " (tools are described in a system message)";
  out += ", reasoning: ";
  out += dialect.reasoning == nullptr ? "not parsed" : markup::name(*dialect.reasoning);
  return out;
}

}  // namespace quire::api
