// SPDX-License-Identifier: Apache-2.0
// For tests only: renders the templates in JSON lines on stdin, and prints one JSON line for each.
//   in:  {"template": ..., "context": {...}, "now": [year, month, day, hour, minute, second], "mutable": true}
//   out: {"ok": true, "text": ...} or {"ok": false, "error": ...}
// With "marked": true, the texts of the context count as untrusted data (those of "messages" by their roles), and
// "origins" in the result lists [begin, end, origin] of the bytes that are not from the template.
#include <cstdio>
#include <iostream>
#include <string>

#include "base/json.h"
#include "text/jinja/template.h"

namespace {

using quire::json::Object;
using quire::json::Value;

std::tm read_now(const Value& parts) {
  std::tm now{};
  const auto& p = parts.as_array();
  now.tm_year = static_cast<int>(p[0].as_int()) - 1900;
  now.tm_mon = static_cast<int>(p[1].as_int()) - 1;
  now.tm_mday = static_cast<int>(p[2].as_int());
  now.tm_hour = static_cast<int>(p[3].as_int());
  now.tm_min = static_cast<int>(p[4].as_int());
  now.tm_sec = static_cast<int>(p[5].as_int());
  return now;
}

Value answer(const quire::Result<quire::text::MarkedText>& result) {
  Value line{Object{}};
  line.set("ok", result.ok());
  line.set(result.ok() ? "text" : "error", result.ok() ? result->text : result.error().message);
  if (!result.ok()) return line;
  quire::json::Array ranges;
  for (const quire::text::OriginRange& range : result->origins.ranges(result->size())) {
    ranges.emplace_back(quire::json::Array{static_cast<int64_t>(range.begin), static_cast<int64_t>(range.end),
                                           static_cast<int64_t>(range.origin)});
  }
  line.set("origins", std::move(ranges));
  return line;
}

quire::Result<quire::text::MarkedText> check(const std::string& text) {
  QUIRE_ASSIGN(const Value request, quire::json::parse(text));
  QUIRE_ASSIGN(const std::string source, quire::json::get_string(request, "template"));
  QUIRE_ASSIGN(const auto parsed, quire::text::jinja::Template::parse(source));
  quire::text::jinja::RenderOptions options;
  QUIRE_ASSIGN(const bool mutable_values, quire::json::get_bool_or(request, "mutable", false));
  options.immutable = !mutable_values;
  const Value* now = request.find("now");
  if (now != nullptr && now->is_array()) options.now = read_now(*now);
  const Value* context = request.find("context");
  QUIRE_ASSIGN(const bool marked, quire::json::get_bool_or(request, "marked", false));
  const auto origin = marked ? quire::text::Origin::kUntrusted : quire::text::Origin::kTemplate;
  std::vector<quire::text::jinja::Variable> variables;
  if (context != nullptr && context->is_object()) {
    for (const auto& [name, value] : context->as_object()) {
      const bool token = name == "bos_token" || name == "eos_token";
      variables.push_back(
          {name, &value, token ? quire::text::Origin::kTemplate : origin, marked && name == "messages"});
    }
  }
  return parsed.render_marked(variables, options);
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    if (line.empty()) continue;
    std::cout << quire::json::dump(answer(check(line))) << std::endl;
  }
  return 0;
}
