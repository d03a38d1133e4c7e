// SPDX-License-Identifier: Apache-2.0
// Questions about the headers and the path of a request.
#include "api/handler.h"

#include <algorithm>
#include <cctype>
#include <charconv>

namespace quire::api {

const std::string* HttpRequest::header(std::string_view name) const {
  const auto same = [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
  };
  for (const auto& [key, value] : headers) {
    if (std::equal(key.begin(), key.end(), name.begin(), name.end(), same)) return &value;
  }
  return nullptr;
}

std::string HttpRequest::query_value(std::string_view name) const {
  std::string_view rest = query;
  while (!rest.empty()) {
    const std::string_view pair = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(pair.size() + 1, rest.size()));
    if (!pair.starts_with(name) || pair.size() <= name.size() || pair[name.size()] != '=') continue;
    std::string out;
    for (size_t i = name.size() + 1; i < pair.size(); ++i) {
      unsigned char byte = static_cast<unsigned char>(pair[i]);
      if (byte == '%' && i + 2 < pair.size() &&
          std::from_chars(&pair[i] + 1, &pair[i] + 3, byte, 16).ptr == &pair[i] + 3) {
        i += 2;
      } else if (byte == '+') {
        byte = ' ';
      }
      out += static_cast<char>(byte);
    }
    return out;
  }
  return "";
}

bool HttpRequest::from_anthropic_client() const {
  if (path.starts_with("/v1/messages")) return true;
  return path.starts_with("/v1/models") && header("anthropic-version") != nullptr;
}

}  // namespace quire::api
