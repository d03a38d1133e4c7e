// SPDX-License-Identifier: Apache-2.0
// Who may send requests: API keys and CORS, decided from the head of a request alone.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/handler.h"

namespace quire::http {

struct NamedKey {
  std::string name;
  std::string key;
};

// Whether a path needs an API key, if the server has keys.
using NeedsKey = std::function<bool(std::string_view path)>;

// The API keys of the server. Only digests are kept, and a look-up takes the same time for every wrong key. Immutable
// after construction: any thread.
class KeyRing {
 public:
  // Keys without a name are called key-1, key-2 and so on. Without `needs_key` every path needs one.
  KeyRing(const std::vector<std::string>& keys, const std::vector<NamedKey>& named, NeedsKey needs_key);
  // The name of the key in the request ("Authorization: Bearer", or "x-api-key" as Anthropic's clients send it); "" if
  // the path needs no key or the server has none; nothing if the path needs a key and the request has no valid one.
  std::optional<std::string> caller(const api::HttpRequest& request) const;

 private:
  using Digest = std::array<uint8_t, 32>;
  struct Entry {
    std::string name;
    Digest digest;
  };
  void add(std::string name, std::string_view key);
  const Entry* find(std::string_view key) const;
  const NeedsKey needs_key_;
  std::vector<Entry> entries_;
};

struct CorsOptions {
  std::vector<std::string> origins;  // empty: no CORS
  std::vector<std::string> methods;
  std::vector<std::string> headers;
  bool credentials = false;
};

// Cross-origin rules, with the answers of Starlette's CORSMiddleware. Immutable after construction: any thread.
class Cors {
 public:
  explicit Cors(CorsOptions options);

  struct Preflight {
    int status = 200;
    std::string body;
    api::Headers headers;
  };
  // The answer to a preflight; nothing if the request is not a preflight, or CORS is off.
  std::optional<Preflight> preflight(const api::HttpRequest& request) const;
  // The CORS headers of an ordinary answer to this request.
  api::Headers answer_headers(const api::HttpRequest& request) const;

 private:
  bool allows_origin(std::string_view origin) const;
  CorsOptions options_;
  bool all_origins_ = false;
  bool all_headers_ = false;
  std::vector<std::string> allowed_headers_;  // those of the options and those that are always safe, sorted
};

}  // namespace quire::http
