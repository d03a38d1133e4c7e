// SPDX-License-Identifier: Apache-2.0
// Markup: how a model writes reasoning and tool calls into its text, and the parser that takes them out again.
//
// One table (formats.cc) has a row for each markup; one engine reads all of them. Whole answers and streams go through
// the same code: feed() and finish().
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace quire::markup {

struct ToolFormat;       // a row of the table of tool call markups; formats.h
struct ReasoningFormat;  // a row of the table of reasoning markups; formats.h

// One tool of a request.
struct Tool {
  std::string name;
  std::string description;
  json::Value parameters;  // a JSON Schema; null: none given
  bool strict = false;
};

// How a model writes. Immutable, made once per model; null members: the model has no such markup.
struct Dialect {
  const ToolFormat* tools = nullptr;
  const ReasoningFormat* reasoning = nullptr;
};
// The names that --tool-call-parser and --reasoning-parser take (vLLM's), ascending; "auto" and "none" are not in it.
std::vector<std::string_view> tool_parser_names();
std::vector<std::string_view> reasoning_parser_names();
// Finds the formats by name, "auto" (from the source of the chat template) or "none". An unknown name is an error that
// suggests the nearest.
Result<Dialect> choose_dialect(std::string_view tool_parser, std::string_view reasoning_parser,
                               std::string_view template_source);
std::string_view name(const ToolFormat& format);
std::string_view name(const ReasoningFormat& format);

enum class ToolChoice : uint8_t { kNone, kAuto, kRequired, kNamed };

// What the answer to one request is read with.
struct ParseOptions {
  std::vector<Tool> tools;
  ToolChoice choice = ToolChoice::kNone;
  std::string named;                 // with kNamed
  bool parallel = true;              // false: calls after the first are dropped
  bool starts_in_reasoning = false;  // from starts_in_reasoning()
  json::Value template_kwargs;       // enable_thinking, thinking, ...: some reasoning formats depend on them
};

// A piece of an answer, in the order in which the model wrote it.
struct Event {
  enum class Kind : uint8_t {
    kReasoning,  // text
    kContent,    // text
    kCallBegin,  // call, id, name: a new call; its arguments follow
    kArguments,  // call, text: the next piece of the call's arguments; all pieces together are one JSON object
    kCallEnd,    // call
  };
  Kind kind = Kind::kContent;
  std::string text = {};
  int32_t call = 0;  // counts up from 0
  std::string name = {};
  std::string id = {};  // only if the markup has one (Kimi); else the API makes one
};

// Reads one answer. Text that may be the beginning of a marker is held back until it is decided; arguments are never
// half of a JSON escape. The concatenated events do not depend on how the text was cut into pieces. Never fails: what
// cannot be parsed is content. One thread at a time.
class Parser {
 public:
  Parser(const Dialect& dialect, ParseOptions options);
  ~Parser();
  // `text` is the answer's next piece, with special tokens written out (skip_special_tokens off).
  void feed(std::string_view text, std::vector<Event>& events);
  // The answer is over; `truncated` says that a length limit cut it.
  void finish(bool truncated, std::vector<Event>& events);
  // Whether the text fed so far ends inside reasoning; for counting reasoning tokens.
  bool in_reasoning() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Whether generation starts inside the reasoning: `prompt` is the end of the rendered prompt.
bool starts_in_reasoning(const Dialect& dialect, std::string_view prompt, const json::Value& template_kwargs);
// The strings that end the reasoning ("</think>"); the first one is written if a thinking budget is used up. Empty: the
// dialect has no reasoning.
std::vector<std::string> reasoning_ends(const Dialect& dialect);
// The strings that begin reasoning ("<think>"); empty: the dialect has no reasoning.
std::vector<std::string> reasoning_starts(const Dialect& dialect);
// The markers of tool calls that end the reasoning although no end marker was written ("<tool_call>"). A grammar that
// waits for the end of the reasoning is fed from such a marker on, the marker included. Meaningful only if the request
// has tools.
std::vector<std::string> implicit_reasoning_ends(const Dialect& dialect);
// The texts of all markers that the dialect's parser looks for; special tokens in them must not be left out of the
// text.
std::vector<std::string> marker_texts(const Dialect& dialect);

// The structural tag (grammar/compile.h) that constrains an answer with tools, null if nothing is to be constrained:
// - required: one or more calls in the model's markup (one if !parallel); named: exactly one call of that tool.
// - auto: free text, in which a call's marker starts a constrained call, if any tool is strict or !parallel; `format`
//   (the structural tag format of response_format, or null) is then the alternative to calls.
// Arguments follow the tool's schema if it is strict, or if the choice is required or named; else they are any object.
// The constraint applies to what follows the reasoning. An error says what cannot be constrained.
Result<json::Value> tool_constraint(const Dialect& dialect, const ParseOptions& options, const json::Value& format);

// The structural tag of an answer without calls that follows `format`, with what the markup writes around the content
// (harmony: an optional analysis, then the final channel); `format` itself for most dialects.
json::Value answer_constraint(const Dialect& dialect, const json::Value& format);

}  // namespace quire::markup
