// SPDX-License-Identifier: Apache-2.0
// What goes into the engine and what comes out: token ids and settings, never text.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "sampling/params.h"
#include "sampling/sampler.h"

namespace quire::engine {

using RequestId = uint64_t;

struct Request {
  std::vector<int32_t> prompt;
  sampling::SamplingParams params;
  int64_t priority = 0;    // lower runs first under the priority policy
  std::string cache_salt;  // separates prefix caches
};
using RequestPtr = std::shared_ptr<const Request>;  // all its sequences share it

enum class FinishReason : uint8_t { kNone, kStop, kLength, kAbort, kError };
const char* name(FinishReason reason);

// What one step brought to one sequence (child `child` of a request with n > 1).
struct Output {
  RequestId id = 0;
  int32_t child = 0;
  std::vector<int32_t> tokens;                                       // new ones
  std::vector<std::vector<sampling::TokenLogprob>> logprobs;         // one a new token, when asked for
  std::vector<std::vector<sampling::TokenLogprob>> prompt_logprobs;  // the next prompt positions', from position 1 on
  FinishReason finish = FinishReason::kNone;
  std::optional<int32_t> stop_token;                // the stop_token_ids entry that ended it; nothing for EOS
  std::optional<Error> error;                       // with kError
  int64_t cached_tokens = 0;                        // prompt tokens that were found in the prefix cache
  int64_t num_preemptions = 0;                      // of this sequence, so far
  std::chrono::steady_clock::time_point scheduled;  // when it first got a share of a step
};

}  // namespace quire::engine
