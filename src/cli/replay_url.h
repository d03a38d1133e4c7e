// SPDX-License-Identifier: Apache-2.0
// Sends what receipts describe to a running server, and compares the receipts that come back.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "llm/receipt_check.h"

namespace quire::cli {

constexpr int64_t kMaxReplayRequests = 256;  // each has a thread

struct ReplayTarget {
  std::string url;
  std::string model;  // the model's name there; "": that of the receipt
  std::string api_key;
  bool insecure = false;    // accept any TLS certificate
  int64_t concurrency = 1;  // requests under way at the same time; at most kMaxReplayRequests
};

// Calls `on_verdict` for each receipt, by its index, one call at a time. Ends early once `stop` returns true, which is
// called by several threads. The Error says why the server cannot be asked at all.
Status replay_at(const ReplayTarget& target, std::span<const llm::ReadReceipt> receipts,
                 const std::function<void(size_t, const llm::Verdict&)>& on_verdict, const std::function<bool()>& stop);

}  // namespace quire::cli
