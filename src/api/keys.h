// SPDX-License-Identifier: Apache-2.0
// API keys with names and limits: reading the key file, and counting what each key uses.
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
  int64_t tokens_per_minute = 0;  // in prompts and answers
  int64_t max_sequences = 0;      // waiting or running at the same time
};

struct ApiKey {
  std::string name;  // in metrics and logs
  std::string key;
  KeyLimits limits;
};

// Reads {"keys": [{"name": ..., "key": ..., "requests_per_minute": ..., "tokens_per_minute": ..., "max_sequences":
// ...}, ...]}. Errors name the file and the entry, never a key.
Result<std::vector<ApiKey>> read_key_file(const std::filesystem::path& file);
Result<std::vector<ApiKey>> parse_key_file(std::string_view json, const std::string& file);

// Counts what each key uses and refuses what exceeds its limits. The rates are token buckets that hold one minute's
// worth. A request pays for itself and for its prompt when it begins, and for its answer when it ends, so a bucket can
// fall below zero. Any thread.
class KeyLedger {
 public:
  using Clock = std::chrono::steady_clock;
  explicit KeyLedger(const std::vector<ApiKey>& keys);

  // What a request has paid. If it is destroyed before commit() (the engine refused the request), everything is given
  // back; after it, the request has ended: its sequences are given back and its answer is paid for.
  // REQUIRES: the ledger outlives it. One thread at a time.
  class Lease {
   public:
    Lease(KeyLedger& ledger, metrics::ServerMetrics* metrics, std::string name, int64_t sequences,
          int64_t prompt_tokens)
        : ledger_(ledger),
          metrics_(metrics),
          name_(std::move(name)),
          sequences_(sequences),
          prompt_tokens_(prompt_tokens) {}
    ~Lease() { ledger_.end(*this); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    void commit();  // the engine has accepted the request
    void add_tokens(int64_t tokens) { generated_ += tokens; }

   private:
    friend class KeyLedger;
    KeyLedger& ledger_;
    metrics::ServerMetrics* const metrics_;
    const std::string name_;
    const int64_t sequences_;
    const int64_t prompt_tokens_;
    int64_t generated_ = 0;
    bool committed_ = false;
  };
  // Makes the series of every key. REQUIRES: begin() counts only in metrics with which this was called before.
  void add_series(metrics::ServerMetrics& metrics) const;
  // Null for a caller that is not in the ledger. The error is a 429 with the limit and the time to wait, or a 400 if
  // the request could never be within the limits. `metrics` counts the request, unless it is null; it outlives the
  // lease.
  ApiResult<std::unique_ptr<Lease>> begin(const std::string& name, int64_t sequences, int64_t prompt_tokens,
                                          Clock::time_point now = Clock::now(),
                                          metrics::ServerMetrics* metrics = nullptr);

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
  void end(const Lease& lease);

  std::mutex mutex_;  // guards accounts_
  std::map<std::string, Account> accounts_;
};

}  // namespace quire::api
