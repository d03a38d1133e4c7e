// SPDX-License-Identifier: Apache-2.0
// Looks keys up by digest, and decides about origins.
#include "http/gate.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <utility>

#include "base/strings.h"

namespace quire::http {

namespace {

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

std::string join(const std::vector<std::string>& items) {
  std::string out;
  for (const std::string& item : items) out += (out.empty() ? "" : ", ") + item;
  return out;
}

bool contains(const std::vector<std::string>& items, std::string_view item) {
  return std::find(items.begin(), items.end(), item) != items.end();
}

}  // namespace

KeyRing::KeyRing(const std::vector<std::string>& keys, const std::vector<NamedKey>& named, NeedsKey needs_key)
    : needs_key_(std::move(needs_key)) {
  for (const std::string& key : keys) add("key-" + std::to_string(entries_.size() + 1), key);
  for (const NamedKey& key : named) add(key.name, key.key);
}

void KeyRing::add(std::string name, std::string_view key) {
  Entry& entry = entries_.emplace_back();
  entry.name = std::move(name);
  SHA256(reinterpret_cast<const uint8_t*>(key.data()), key.size(), entry.digest.data());
}

const KeyRing::Entry* KeyRing::find(std::string_view key) const {
  Digest digest;
  SHA256(reinterpret_cast<const uint8_t*>(key.data()), key.size(), digest.data());
  const Entry* found = nullptr;
  for (const Entry& entry : entries_) {
    if (CRYPTO_memcmp(entry.digest.data(), digest.data(), digest.size()) == 0) found = &entry;
  }
  return found;
}

std::optional<std::string> KeyRing::caller(const api::HttpRequest& request) const {
  if (entries_.empty() || request.method == "OPTIONS" || (needs_key_ && !needs_key_(request.path))) return "";
  const Entry* found = nullptr;
  if (const std::string* authorization = request.header("Authorization")) {
    const std::string_view text = trim(*authorization);
    const size_t space = text.find(' ');
    if (space != std::string_view::npos && ascii_lower(text.substr(0, space)) == "bearer") {
      found = find(trim(text.substr(space)));
    }
  }
  if (const std::string* key = request.header("x-api-key"); found == nullptr && key != nullptr) found = find(*key);
  if (found == nullptr) return std::nullopt;
  return found->name;
}

Cors::Cors(CorsOptions options) : options_(std::move(options)) {
  all_origins_ = contains(options_.origins, "*");
  all_headers_ = contains(options_.headers, "*");
  if (contains(options_.methods, "*")) options_.methods = {"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"};
  allowed_headers_ = {"Accept", "Accept-Language", "Content-Language", "Content-Type"};
  allowed_headers_.insert(allowed_headers_.end(), options_.headers.begin(), options_.headers.end());
  std::sort(allowed_headers_.begin(), allowed_headers_.end());
  allowed_headers_.erase(std::unique(allowed_headers_.begin(), allowed_headers_.end()), allowed_headers_.end());
}

bool Cors::allows_origin(std::string_view origin) const {
  return all_origins_ || contains(options_.origins, origin);
}

std::optional<Cors::Preflight> Cors::preflight(const api::HttpRequest& request) const {
  if (options_.origins.empty() || request.method != "OPTIONS") return std::nullopt;
  const std::string* origin = request.header("Origin");
  const std::string* method = request.header("Access-Control-Request-Method");
  if (origin == nullptr || method == nullptr) return std::nullopt;
  const std::string* wanted = request.header("Access-Control-Request-Headers");

  Preflight answer;
  std::vector<std::string> failures;
  const bool name_origin = !all_origins_ || options_.credentials;  // "*" is not allowed with credentials
  if (name_origin) {
    answer.headers.emplace_back("Vary", "Origin");
  } else {
    answer.headers.emplace_back("Access-Control-Allow-Origin", "*");
  }
  answer.headers.emplace_back("Access-Control-Allow-Methods", join(options_.methods));
  answer.headers.emplace_back("Access-Control-Max-Age", "600");
  if (!all_headers_) answer.headers.emplace_back("Access-Control-Allow-Headers", join(allowed_headers_));
  if (options_.credentials) answer.headers.emplace_back("Access-Control-Allow-Credentials", "true");

  if (!allows_origin(*origin)) {
    failures.emplace_back("origin");
  } else if (name_origin) {
    answer.headers.emplace_back("Access-Control-Allow-Origin", *origin);
  }
  if (!contains(options_.methods, *method)) failures.emplace_back("method");
  if (wanted != nullptr && all_headers_) {
    answer.headers.emplace_back("Access-Control-Allow-Headers", *wanted);
  } else if (wanted != nullptr) {
    std::vector<std::string> known;
    for (const std::string& header : allowed_headers_) known.push_back(ascii_lower(header));
    for (std::string_view rest = *wanted; !rest.empty();) {
      const size_t comma = std::min(rest.find(','), rest.size());
      if (!contains(known, ascii_lower(trim(rest.substr(0, comma))))) {
        failures.emplace_back("headers");
        break;
      }
      rest.remove_prefix(std::min(comma + 1, rest.size()));
    }
  }
  answer.status = failures.empty() ? 200 : 400;
  answer.body = failures.empty() ? "OK" : "Disallowed CORS " + join(failures);
  return answer;
}

api::Headers Cors::answer_headers(const api::HttpRequest& request) const {
  api::Headers out;
  const std::string* origin = request.header("Origin");
  if (options_.origins.empty() || origin == nullptr) return out;
  const bool name_origin = !all_origins_ || request.header("Cookie") != nullptr;
  if (!name_origin) {
    out.emplace_back("Access-Control-Allow-Origin", "*");
  } else if (allows_origin(*origin)) {
    out.emplace_back("Access-Control-Allow-Origin", *origin);
    out.emplace_back("Vary", "Origin");
  }
  if (options_.credentials) out.emplace_back("Access-Control-Allow-Credentials", "true");
  return out;
}

}  // namespace quire::http
