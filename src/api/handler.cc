// SPDX-License-Identifier: Apache-2.0
// Questions about the headers and the path of a request.
#include "api/handler.h"

#include <algorithm>
#include <cctype>

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

bool HttpRequest::from_anthropic_client() const {
  if (path.starts_with("/v1/messages")) return true;
  return path.starts_with("/v1/models") && header("anthropic-version") != nullptr;
}

}  // namespace quire::api
