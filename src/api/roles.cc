// SPDX-License-Identifier: Apache-2.0
// The roles of OpenAI's API, and those that a template names.
#include "api/roles.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <set>

#include "base/utf8.h"

namespace quire::api {
namespace {

constexpr std::array<std::string_view, 6> kRoles = {"system", "developer", "user", "assistant", "tool", "function"};

bool is_name(std::string_view role) {
  return !role.empty() && role.size() <= 64 && std::all_of(role.begin(), role.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-';
  });
}

// Whether the template has the role as a string literal.
bool names_role(std::string_view source, std::string_view role) {
  for (const char* quote : {"'", "\""}) {
    if (source.find(quote + std::string(role) + quote) != std::string_view::npos) return true;
  }
  return false;
}

}  // namespace

ApiStatus check_roles(const Service& service, const ChatInput& input) {
  const text::ChatTemplate* own = service.model().chat_template();
  size_t at = 0;
  std::set<std::string> named;  // roles that the template names, so that each is looked up once
  for (const json::Value& message : input.messages.as_array()) {
    const std::string where = "messages[" + std::to_string(at++) + "].role";
    const json::Value* value = message.find("role");
    if (value == nullptr || !value->is_string()) continue;
    const std::string& role = value->as_string();
    if (std::find(kRoles.begin(), kRoles.end(), role) != kRoles.end()) continue;
    if (named.contains(role)) continue;
    if (is_name(role)) {
      bool found = input.chat_template && names_role(*input.chat_template, role);
      for (const std::string& name : own == nullptr ? std::vector<std::string>{} : own->names()) {
        found = found || names_role(own->source(name), role);
      }
      if (found) {
        named.insert(role);
        continue;
      }
    }
    std::string shown;
    json::append_quoted(shown, utf8::beginning(role, 40));
    return bad_field(where, {"must be system, developer, user, assistant, tool or function, or another role that the "
                             "model's chat template names; got ",
                             shown, "."});
  }
  return Ok{};
}

}  // namespace quire::api
