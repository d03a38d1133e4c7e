// SPDX-License-Identifier: Apache-2.0
// API keys with names and limits: the file they are read from, and the account of what each one uses.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "api/error.h"
#include "base/result.h"
#include "metrics/server_metrics.h"

namespace quire::api {

// What the owner of a key may use; 0 is no limit.
struct KeyLimits {
  int64_t requests_per_minute = 0;
  int64_t tokens_per_minute = 0;  // of prompts and answers
  int64_t max_sequences = 0;      // that wait or run at the same time
};

struct ApiKey {
  std::string name;  // stands in metrics and logs
  std::string key;
  KeyLimits limits;
};

// Reads {"keys": [{"name": ..., "key": ..., "requests_per_minute": ..., "tokens_per_minute": ..., "max_sequences":
// ...}, ...]}. Errors name the file and the entry, never a key.
Result<std::vector<ApiKey>> read_key_file(const std::filesystem::path& file);
Result<std::vector<ApiKey>> parse_key_file(std::string_view json, const std::string& file);

// Counts what each key uses and refuses what goes over its limits. Rates are token buckets that hold one minute's
// worth: a request pays for itself and for its prompt when it begins, and for its answer when it ends, so a bucket may
// fall below zero and is then in debt. Any thread.
class KeyLedger {
 public:
  using Clock = std::chrono::steady_clock;
  // `metrics` may be null; it outlives the ledger.
  explicit KeyLedger(const std::vector<ApiKey>& keys, metrics::ServerMetrics* metrics = nullptr);

  // A request under way; when it is destroyed its sequences are given back and its answer is paid for. The ledger
  // outlives it.
  class Lease {
   public:
    Lease(KeyLedger& ledger, std::string name, int64_t sequences)
        : ledger_(ledger), name_(std::move(name)), sequences_(sequences) {}
    ~Lease() { ledger_.end(name_, sequences_, generated_); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    void add_tokens(int64_t tokens) { generated_ += tokens; }  // one thread at a time

   private:
    KeyLedger& ledger_;
    const std::string name_;
    const int64_t sequences_;
    int64_t generated_ = 0;
  };
  // Null without an error for a caller that is not in the ledger. 429 with the limit and the time to wait for, or 400
  // for a request that could never be within the limits.
  ApiResult<std::unique_ptr<Lease>> begin(const std::string& name, int64_t sequences, int64_t prompt_tokens,
                                          Clock::time_point now = Clock::now());

 private:
  struct Bucket {
    double level = 0;
    Clock::time_point at;
  };
  struct Account {
    KeyLimits limits;
    Bucket requests, tokens;
    int64_t sequences = 0;
  };
  static void refill(Bucket& bucket, int64_t per_minute, Clock::time_point now);
  ApiError refuse(const std::string& name, const char* reason, const std::string& sentence, double wait_s);
  void end(const std::string& name, int64_t sequences, int64_t generated);

  metrics::ServerMetrics* const metrics_;
  std::mutex mutex_;  // guards accounts_
  std::map<std::string, Account> accounts_;
};

}  // namespace quire::api
