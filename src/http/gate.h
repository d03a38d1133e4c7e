// SPDX-License-Identifier: Apache-2.0
// Who may ask: API keys and CORS, decided from a request's head alone.
#pragma once

#include <array>
#include <cstdint>
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

// The keys that open the guarded paths. Only digests are kept, and a look-up takes the same time for any wrong key.
// Immutable after construction: any thread.
class KeyRing {
 public:
  // Keys without a name are called key-1, key-2 and so on.
  KeyRing(const std::vector<std::string>& keys, const std::vector<NamedKey>& named);
  // The name of the key that the request has ("Authorization: Bearer", or "x-api-key" as Anthropic's clients send it);
  // "" when the path needs no key or no keys are set; nothing when it needs one and has none of these.
  std::optional<std::string> caller(const api::HttpRequest& request) const;

 private:
  using Digest = std::array<uint8_t, 32>;
  struct Entry {
    std::string name;
    Digest digest;
  };
  void add(std::string name, std::string_view key);
  const Entry* find(std::string_view key) const;
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
  // The answer to a preflight; nothing when the request is none (or CORS is off).
  std::optional<Preflight> preflight(const api::HttpRequest& request) const;
  // What an ordinary answer to this request carries.
  api::Headers answer_headers(const api::HttpRequest& request) const;

 private:
  bool allows_origin(std::string_view origin) const;
  CorsOptions options_;
  bool all_origins_ = false;
  bool all_headers_ = false;
  std::vector<std::string> allowed_headers_;  // what a preflight lists, with those that are always safe, sorted
};

}  // namespace quire::http
