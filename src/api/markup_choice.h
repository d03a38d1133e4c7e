// SPDX-License-Identifier: Apache-2.0
// MarkupChoice: how the served model writes tool calls and reasoning, decided once at the start.
#pragma once

#include <string>
#include <string_view>

#include "base/shared_list.h"
#include "llm/llm.h"
#include "markup/markup.h"

namespace quire::api {

struct MarkupChoice {
  markup::Dialect dialect;       // null members: tool calls, or reasoning, stay text
  bool describes_tools = false;  // the chat template has no place for tools (see tool_description.h)
  // Special tokens that are markers of the dialect, ascending: of all of it, and of its reasoning alone.
  SharedList<int32_t> kept_special;
  SharedList<int32_t> kept_reasoning;
};

// From the values of --tool-call-parser and --reasoning-parser: a parser's name, "auto" (from the chat template) or
// "none". A template without tools gets the markup "hermes" with auto, because their description teaches it.
Result<MarkupChoice> choose_markup(const llm::Llm& llm, std::string_view tool_parser,
                                   std::string_view reasoning_parser);
// For the log: "tool calls: hermes (auto), reasoning: none".
std::string describe(const MarkupChoice& choice);

// Whether the name of a tool appears in a prompt rendered with `other`, or else with the model's template.
bool template_shows_tools(const llm::Llm& llm, const text::ChatTemplate* other = nullptr);

}  // namespace quire::api
