// SPDX-License-Identifier: Apache-2.0
// Fuzzes the Jinja engine: the input is a template, then a NUL byte, then the context as JSON.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "text/jinja/chat_template.h"
#include "text/jinja/template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quire;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = input.find('\0');
  const std::string_view source = input.substr(0, end);
  json::Value context{json::Object{}};
  if (end != std::string_view::npos) {
    auto parsed = json::parse(input.substr(end + 1));
    if (parsed.ok() && parsed->is_object()) context = std::move(parsed).value();
  }
  auto parsed = text::jinja::Template::parse(source);
  if (!parsed.ok()) return 0;
  if (size % 16 == 0) (void)text::find_traits(*parsed);
  text::jinja::RenderOptions options;
  options.limits.max_steps = 20'000;
  options.limits.max_output_bytes = size_t{1} << 18;
  options.limits.max_memory_bytes = size_t{8} << 20;
  options.now = std::tm{};
  options.now->tm_mday = 1;
  options.now->tm_year = 100;
  options.immutable = (size & 1) != 0;
  std::vector<text::jinja::Variable> variables;
  for (const auto& [name, value] : context.as_object()) {
    variables.push_back({name, &value, text::Origin::kUntrusted, name == "messages"});
  }
  const auto rendered = parsed->render_marked(variables, options);
  if (!rendered.ok()) return 0;
  size_t done = 0;
  for (const text::OriginRange& range : rendered->origins.ranges(rendered->size())) {
    QUIRE_CHECK(done <= range.begin && range.begin < range.end && range.end <= rendered->size(),
                "origins are in order and inside the text");
    done = range.end;
  }
  return 0;
}
