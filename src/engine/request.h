// SPDX-License-Identifier: Apache-2.0
// Request and Output: what the engine takes and returns, in token ids, never text.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/constraint.h"
#include "model/adapter.h"
#include "model/pooling/pooler_config.h"
#include "sampling/params.h"
#include "sampling/sampler.h"

namespace quire::engine {

using RequestId = uint64_t;

struct Request {
  std::vector<int32_t> prompt;
  sampling::SamplingParams params;
  int64_t priority = 0;           // lower runs first under the priority policy
  std::string cache_salt;         // requests with different salts share no cached prefixes
  ConstraintPtr constraint;       // null: none; each of the n sequences makes its own from it
  model::AdapterPtr adapter;      // null: none
  std::string adapter_name = {};  // as clients call it, for KV events
  // Not kNone: the request samples nothing. It ends with the prompt, and its output has these hidden states.
  model::PoolRows pool = model::PoolRows::kNone;
  int64_t second_segment = -1;  // >= 0: from this token on the token type is 1
  int64_t pooled_floats = 0;    // in the output, for the memory of requests

  // What a cached prefix must have been computed with, besides its tokens: the salt and the load of the adapter. A salt
  // never looks like the key of an adapter: one that begins with the mark of these gets the mark twice.
  std::string cache_key() const { return key_with(adapter != nullptr ? std::to_string(adapter->id) : std::string()); }
  // The same for tiers that outlive the process: the contents of the adapter instead of its load.
  std::string stored_cache_key() const { return key_with(adapter != nullptr ? adapter->digest : std::string()); }

 private:
  std::string key_with(const std::string& adapter_key) const {
    constexpr char kMark = '\x01';
    if (!adapter_key.empty()) return kMark + adapter_key + "\n" + cache_salt;
    return cache_salt.starts_with(kMark) ? kMark + cache_salt : cache_salt;
  }
};
using RequestPtr = std::shared_ptr<const Request>;  // shared by all of its sequences

enum class FinishReason : uint8_t { kNone, kStop, kLength, kAbort, kError };
const char* name(FinishReason reason);

// What one step added to one sequence (number `child` of the n of its request).
struct Output {
  RequestId id = 0;
  int32_t child = 0;
  std::vector<int32_t> tokens;                                // sampled in this step
  std::vector<std::vector<sampling::TokenLogprob>> logprobs;  // one list per new token, if requested
  std::vector<std::vector<sampling::TokenLogprob>>
      prompt_logprobs;                // of the next prompt tokens, beginning with the second
  std::vector<uint64_t> row_digests;  // one per new token, if requested: of the model's logits, before any setting
  std::vector<float> pooled;          // with Request::pool: the first, last or mean row, or all rows one after another
  uint64_t seed = 0;                  // of this sequence, whether the request had one or it was drawn
  FinishReason finish = FinishReason::kNone;
  std::optional<int32_t> stop_token;                // the entry of stop_token_ids that ended it; none for EOS
  std::optional<Error> error;                       // with kError
  int64_t cached_tokens = 0;                        // prompt tokens found in the prefix cache
  int64_t restored_tokens = 0;                      // of these: read from a tier below the KV cache
  bool restored_from_disk = false;                  // at least some of them
  int64_t num_preemptions = 0;                      // of this sequence, so far
  std::chrono::steady_clock::time_point scheduled;  // when it was first admitted
};

}  // namespace quire::engine
