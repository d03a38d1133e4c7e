// SPDX-License-Identifier: Apache-2.0
// Reads the key file, and keeps the buckets of each key.
#include "api/keys.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/file.h"
#include "base/json.h"

namespace quire::api {
namespace {

constexpr size_t kMaxFile = size_t{4} << 20;
constexpr size_t kMaxName = 64;

// Names appear in logs and metric labels.
bool plain_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxName && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.' || c == '@';
  });
}

Result<int64_t> limit_of(const json::Value& value, const std::string& where) {
  if (!value.is_int() || value.as_int() < 1) return invalid_argument({where, " must be an integer of at least 1"});
  return value.as_int();
}

Result<ApiKey> parse_entry(const json::Value& entry, const std::string& where) {
  if (!entry.is_object()) return invalid_argument({where, " must be an object with name and key"});
  ApiKey out;
  for (const auto& [field, value] : entry.as_object()) {
    const std::string place = where + "." + field;
    if (field == "name" || field == "key") {
      if (!value.is_string() || value.as_string().empty()) return invalid_argument({place, " must be a text"});
      (field == "name" ? out.name : out.key) = value.as_string();
    } else if (field == "requests_per_minute") {
      QUIRE_ASSIGN(out.limits.requests_per_minute, limit_of(value, place));
    } else if (field == "tokens_per_minute") {
      QUIRE_ASSIGN(out.limits.tokens_per_minute, limit_of(value, place));
    } else if (field == "max_sequences") {
      QUIRE_ASSIGN(out.limits.max_sequences, limit_of(value, place));
    } else {
      return invalid_argument({place,
                               " is not known; the fields are name, key, requests_per_minute, tokens_per_minute and "
                               "max_sequences"});
    }
  }
  if (!plain_name(out.name)) {
    return invalid_argument({where, ".name must have 1 to 64 letters, digits and - _ . @"});
  }
  const bool clean = std::all_of(out.key.begin(), out.key.end(), [](char c) { return c > ' ' && c < 0x7f; });
  if (out.key.empty() || !clean) {
    return invalid_argument({where, ".key must be a text without spaces, as it stands in a header"});
  }
  return out;
}

}  // namespace

Result<std::vector<ApiKey>> parse_key_file(std::string_view text, const std::string& file) {
  auto parsed = json::parse(text, {.max_depth = 4, .max_bytes = kMaxFile, .refuse_repeats = true});
  if (!parsed.ok()) return invalid_argument({"--api-key-file ", file, " is ", parsed.error().message});
  const json::Value* list = parsed->is_object() ? parsed->find("keys") : nullptr;
  if (list == nullptr || !list->is_array() || list->as_array().empty()) {
    return invalid_argument(
        {"--api-key-file ", file, " must have the form {\"keys\": [{\"name\": \"ada\", \"key\": \"...\"}, ...]}"});
  }
  std::vector<ApiKey> keys;
  std::set<std::string> names, secrets;
  for (const json::Value& entry : list->as_array()) {
    const std::string where = "--api-key-file " + file + ": keys[" + std::to_string(keys.size()) + "]";
    QUIRE_ASSIGN(ApiKey key, parse_entry(entry, where));
    if (!names.insert(key.name).second) return invalid_argument({where, " has the name '", key.name, "' again"});
    if (!secrets.insert(key.key).second) return invalid_argument({where, " has the key of another entry"});
    keys.push_back(std::move(key));
  }
  return keys;
}

Result<std::vector<ApiKey>> read_key_file(const std::filesystem::path& file) {
  QUIRE_ASSIGN(const std::string text, read_file(file, kMaxFile));
  return parse_key_file(text, file.string());
}

KeyLedger::KeyLedger(const std::vector<ApiKey>& keys) {
  for (const ApiKey& key : keys) {
    accounts_[key.name].limits = key.limits;  // the first refill fills the buckets: they were empty long ago
  }
}

void KeyLedger::add_series(metrics::ServerMetrics& metrics) const {
  for (const auto& [name, account] : accounts_) metrics.add_key(name);
}

void KeyLedger::refill(Bucket& bucket, int64_t per_minute, Clock::time_point now) {
  const double seconds = std::max(0.0, std::chrono::duration<double>(now - bucket.at).count());
  bucket.level =
      std::min(static_cast<double>(per_minute), bucket.level + seconds * static_cast<double>(per_minute) / 60);
  bucket.at = now;
}

namespace {

ApiFailure over_limit(const std::string& sentence, double wait_s) {
  const auto seconds = static_cast<int64_t>(std::ceil(std::clamp(wait_s, 1.0, 3600.0)));
  ApiError error{429, "RateLimitError", sentence + "; try again in " + std::to_string(seconds) + " s.", ""};
  error.retry_after_s = seconds;
  return error;
}

}  // namespace

ApiResult<std::unique_ptr<KeyLedger::Lease>> KeyLedger::begin(const std::string& name, int64_t sequences,
                                                              int64_t prompt_tokens, Clock::time_point now,
                                                              metrics::ServerMetrics* metrics) {
  const std::lock_guard lock(mutex_);
  const auto it = accounts_.find(name);
  if (it == accounts_.end()) return std::unique_ptr<Lease>();
  Account& account = it->second;
  const KeyLimits& limits = account.limits;
  const std::string owner = "The key of '" + name + "' ";
  const auto refuse = [&](const char* reason, const std::string& sentence, double wait_s) {
    if (metrics != nullptr) metrics->on_key_rejected(name, reason);
    return over_limit(sentence, wait_s);
  };
  if (limits.max_sequences > 0 && sequences > limits.max_sequences) {
    return bad_field(
        "n", {"must be smaller: the request asks for ", sequences, " sequences (prompts times n), and the key of '",
              name, "' may have ", limits.max_sequences, "."});
  }
  if (limits.tokens_per_minute > 0 && prompt_tokens > limits.tokens_per_minute) {
    return bad_field("prompt", {"has ", prompt_tokens, " tokens, and the key of '", name, "' may use ",
                                limits.tokens_per_minute, " a minute."});
  }
  if (limits.max_sequences > 0 && account.sequences + sequences > limits.max_sequences) {
    return refuse("max_sequences",
                  owner + "has " + std::to_string(account.sequences) + " sequences under way and may have " +
                      std::to_string(limits.max_sequences),
                  1);
  }
  refill(account.requests, limits.requests_per_minute, now);
  refill(account.tokens, limits.tokens_per_minute, now);
  if (limits.requests_per_minute > 0 && account.requests.level < 1) {
    return refuse("requests_per_minute",
                  owner + "may send " + std::to_string(limits.requests_per_minute) + " requests a minute",
                  (1 - account.requests.level) * 60 / static_cast<double>(limits.requests_per_minute));
  }
  const double wanted = static_cast<double>(prompt_tokens);
  if (limits.tokens_per_minute > 0 && account.tokens.level < std::max(wanted, 1.0)) {
    return refuse("tokens_per_minute",
                  owner + "may use " + std::to_string(limits.tokens_per_minute) + " tokens a minute",
                  (std::max(wanted, 1.0) - account.tokens.level) * 60 / static_cast<double>(limits.tokens_per_minute));
  }
  account.requests.level -= 1;
  account.tokens.level -= wanted;
  account.sequences += sequences;
  return std::make_unique<Lease>(*this, metrics, name, sequences, prompt_tokens);
}

void KeyLedger::Lease::commit() {
  committed_ = true;
  if (metrics_ != nullptr) metrics_->on_key_begin(name_, prompt_tokens_, sequences_);
}

void KeyLedger::end(const Lease& lease) {
  const std::lock_guard lock(mutex_);
  Account& account = accounts_.at(lease.name_);
  account.sequences -= lease.sequences_;
  if (lease.committed_) {
    account.tokens.level -= static_cast<double>(lease.generated_);
    if (lease.metrics_ != nullptr) lease.metrics_->on_key_end(lease.name_, lease.generated_, lease.sequences_);
  } else {
    account.requests.level += 1;
    account.tokens.level += static_cast<double>(lease.prompt_tokens_);
  }
}

}  // namespace quire::api
