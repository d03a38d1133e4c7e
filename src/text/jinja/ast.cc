// SPDX-License-Identifier: Apache-2.0
// The tables of a parsed template: its strings and its names.
#include "text/jinja/ast.h"

namespace quire::text::jinja {

Value Program::intern(std::string_view text) {
  auto [it, added] = interned_.try_emplace(std::string(text), nullptr);
  if (added) {
    strings.push_back(make_immortal(std::string(text)));
    it->second = strings.back().get();
  }
  return Value::string(it->second);
}

int Program::name_id(std::string_view name) {
  const auto [it, added] = name_ids_.try_emplace(std::string(name), static_cast<int>(names.size()));
  if (added) names.push_back(intern(name));
  return it->second;
}

}  // namespace quire::text::jinja
