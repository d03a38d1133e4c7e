// SPDX-License-Identifier: Apache-2.0
// What the tests of the markup share: the tools of a request, and an answer put together from events.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "markup/markup.h"

namespace quire::markup::testing {

struct Call {
  std::string name;
  std::string arguments;
  std::string id = {};
  bool ended = true;
  bool operator==(const Call&) const = default;
};

struct Answer {
  std::string reasoning;
  std::string content;
  std::vector<Call> calls;
  bool operator==(const Answer&) const = default;
};

// Puts the events together; a call that is out of order is a bug of the parser.
inline Answer collect(const std::vector<Event>& events) {
  Answer answer;
  for (const Event& event : events) {
    const auto last = static_cast<int32_t>(answer.calls.size()) - 1;
    switch (event.kind) {
      case Event::Kind::kReasoning:
        answer.reasoning += event.text;
        break;
      case Event::Kind::kContent:
        answer.content += event.text;
        break;
      case Event::Kind::kCallBegin:
        QUIRE_CHECK(event.call == last + 1, "calls count up");
        QUIRE_CHECK(answer.calls.empty() || answer.calls.back().ended, "a call ends before the next one begins");
        answer.calls.push_back({event.name, {}, event.id, false});
        break;
      case Event::Kind::kArguments:
        QUIRE_CHECK(event.call == last && !answer.calls.back().ended, "arguments belong to the open call");
        answer.calls.back().arguments += event.text;
        break;
      case Event::Kind::kCallEnd:
        QUIRE_CHECK(event.call == last && !answer.calls.back().ended, "only an open call ends");
        answer.calls.back().ended = true;
        break;
    }
  }
  return answer;
}

// Parses `text` in pieces that end at `cuts` (ascending).
inline Answer parse_in_pieces(const Dialect& dialect, const ParseOptions& options, std::string_view text,
                              const std::vector<size_t>& cuts, bool truncated = false) {
  Parser parser(dialect, options);
  std::vector<Event> events;
  size_t at = 0;
  for (const size_t cut : cuts) {
    parser.feed(text.substr(at, cut - at), events);
    at = cut;
  }
  parser.feed(text.substr(at), events);
  parser.finish(truncated, events);
  return collect(events);
}

inline Answer parse_whole(const Dialect& dialect, const ParseOptions& options, std::string_view text,
                          bool truncated = false) {
  return parse_in_pieces(dialect, options, text, {}, truncated);
}

// get_weather(city, days, unit), write_file(path, text, options), ping().
inline std::vector<Tool> tools() {
  const auto schema = [](std::string_view text) { return json::parse(text).value(); };
  return {
      {"get_weather", "The weather of a city", schema(R"({"type": "object", "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}, "required": ["city"]})")},
      {"write_file", "Writes a file", schema(R"({"type": "object", "properties": {
        "path": {"type": "string"}, "text": {"type": "string"},
        "options": {"type": "object", "properties": {"mode": {"type": "integer"}, "force": {"type": "boolean"}}},
        "tags": {"type": "array", "items": {"type": "string"}}},
        "required": ["path"]})")},
      {"ping", "", json::Value()},
  };
}

inline Dialect dialect_of(std::string_view tool_parser, std::string_view reasoning_parser = "none") {
  return choose_dialect(tool_parser, reasoning_parser, "").value();
}

inline ParseOptions options_of(ToolChoice choice = ToolChoice::kAuto) {
  ParseOptions options;
  options.tools = tools();
  options.choice = choice;
  return options;
}

}  // namespace quire::markup::testing
